from __future__ import annotations

import numpy as np
import pytest
from chat_tokenizer import SPECIAL, TAGS, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from rstar2.chat import open_chat
from rstar2.config import ChatConfig
from rstar2.conversations import Message
from rstar2.prompt import PYTHON_TOOL
from rstar2.types import ToolResult, ToolStatus

TOKENIZER = make_tokenizer()
ADDED_IDS = frozenset(TOKENIZER.convert_tokens_to_ids([*SPECIAL, *TAGS]))
BARE = open_chat(TOKENIZER, ChatConfig(style="bare", prefill_reason=False), [PYTHON_TOOL])
FULL = open_chat(TOKENIZER, ChatConfig(style="full"), [PYTHON_TOOL])


def ok(stdout: str) -> ToolResult:
    return ToolResult(status=ToolStatus.OK, stdout=stdout)


def small_chat(max_tokens: int, style="bare"):
    config = ChatConfig(style=style, prefill_reason=False, observation_max_tokens=max_tokens)
    return open_chat(TOKENIZER, config, [PYTHON_TOOL])


def test_bare_prompt_is_the_question_and_the_generation_prompt():
    prompt = BARE.render_prompt("2 + 2?")
    assert BARE.decode(prompt) == "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"


def test_full_prompt_shows_the_tool_the_tags_and_the_box():
    text = FULL.decode(FULL.render_prompt("2 + 2?"))
    assert text.startswith("<|im_start|>system\n")
    assert '"name": "python"' in text
    assert "\\boxed{" in text
    assert text.endswith("2 + 2?<|im_end|>\n<|im_start|>assistant\n<reason>")


def test_prompt_is_read_only():
    assert not BARE.render_prompt("2 + 2?").flags.writeable


def test_stop_token_is_the_end_of_a_turn():
    assert BARE.stop_token_ids == (TOKENIZER.convert_tokens_to_ids("<|im_end|>"),)


def test_another_end_of_text_stops_too():
    tokenizer = make_tokenizer()
    tokenizer.eos_token = "<pad>"
    chat = open_chat(tokenizer, ChatConfig(style="bare"), [])
    assert chat.stop_token_ids == tuple(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<pad>"]))


def test_bare_observation_is_compact():
    ids, _ = BARE.render_observation([ok("4\n")])
    assert BARE.decode(ids) == (
        "\n<|im_start|>user\n<tool_response>4</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_full_observation_holds_all_results_in_one_user_turn():
    ids, _ = FULL.render_observation([ok("4\n"), ok("5\n")])
    assert FULL.decode(ids) == (
        "\n<|im_start|>user\n<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n<reason>"
    )


def test_observation_that_fits_is_not_truncated():
    _, results = small_chat(8).render_observation([ok("1234")])
    assert not results[0].is_truncated


def test_long_observation_is_cut_in_the_middle_to_the_limit():
    chat = small_chat(9)
    whole, _ = chat.render_observation([ok("123456789")])
    ids, results = chat.render_observation([ok("0123456789" * 10)])
    assert results[0].is_truncated
    assert "<tool_response>012...789</tool_response>" in chat.decode(ids)
    assert len(ids) == len(whole)


def test_cut_marker_of_full_style_says_what_it_is():
    ids, _ = small_chat(40, "full").render_observation([ok("0123456789" * 10)])
    assert "[... cut ...]" in FULL.decode(ids)


def test_cut_keeps_whole_characters():
    ids, _ = small_chat(10).render_observation([ok("好" * 30)])
    text = BARE.decode(ids)
    assert "�" not in text
    assert "好...好" in text


def test_limit_smaller_than_the_marker_still_holds():
    ids, results = small_chat(1).render_observation([ok("0123456789")])
    assert results[0].is_truncated
    assert BARE.decode(ids).count("<tool_response>.</tool_response>") == 1


def test_result_cut_by_the_sandbox_stays_marked():
    result = ToolResult(status=ToolStatus.OK, stdout="4", is_truncated=True)
    assert BARE.render_observation([result])[1][0].is_truncated


def test_bare_observation_shows_the_exception_line_alone():
    stderr = 'Traceback (most recent call last):\n  File "snippet", line 2\nNameError: x\n'
    ids, _ = BARE.render_observation([ToolResult(status=ToolStatus.ERROR, stderr=stderr)])
    assert "<tool_response>NameError: x</tool_response>" in BARE.decode(ids)


@pytest.mark.parametrize("chat", [BARE, FULL], ids=["bare", "full"])
@given(parts=st.lists(st.sampled_from([*SPECIAL, *TAGS, "<", "|im_end|>", "Ω", "🎉", "\n", " a"])))
@settings(max_examples=60, deadline=None)
def test_text_of_others_never_becomes_a_tag(chat, parts):
    text = "".join(parts)
    prompt = chat.render_prompt(text)
    empty = chat.render_prompt("")
    inside = [int(i) for i in prompt if int(i) in ADDED_IDS]
    assert inside == [int(i) for i in empty if int(i) in ADDED_IDS]
    assert text in chat.decode(prompt)


def test_added_token_of_one_character_is_spelled_in_bytes():
    tokenizer = make_tokenizer(extra_tokens=("Ж",))
    chat = open_chat(tokenizer, ChatConfig(style="bare"), [])
    prompt = chat.render_prompt("a Ж b")
    assert tokenizer.convert_tokens_to_ids("Ж") not in prompt
    assert "a Ж b" in chat.decode(prompt)


def test_half_a_surrogate_pair_in_tool_output_does_no_harm():
    ids, _ = BARE.render_observation([ok("a\ud800b")])
    assert "<tool_response>a?b</tool_response>" in BARE.decode(ids)


CONVERSATION = (
    Message(role="user", content="2 + 2?"),
    Message(role="assistant", content="<tool_call>{}</tool_call>"),
    Message(role="tool", content="4"),
    Message(role="assistant", content="<answer>\\boxed{4}</answer>"),
)


def test_conversation_masks_exactly_the_assistant_turns():
    ids, mask = BARE.render_conversation(CONVERSATION)
    assert BARE.decode(ids[mask]) == (
        "<tool_call>{}</tool_call><|im_end|><answer>\\boxed{4}</answer><|im_end|>"
    )


def test_conversation_begins_as_a_rollout_does():
    ids, _ = BARE.render_conversation(CONVERSATION)
    prompt = BARE.render_prompt("2 + 2?")
    np.testing.assert_array_equal(ids[: len(prompt)], prompt)


def test_tags_of_an_assistant_message_are_tags():
    ids, mask = BARE.render_conversation(CONVERSATION)
    assert TOKENIZER.convert_tokens_to_ids("<tool_call>") in ids[mask]


def test_tag_that_the_tokenizer_does_not_know_is_text_like_its_surroundings():
    messages = [Message(role="user", content="q"), Message(role="assistant", content="a<think>b")]
    ids, mask = BARE.render_conversation(messages)
    assert list(ids[mask])[:-1] == TOKENIZER.encode("a<think>b")


def test_other_control_tokens_in_an_assistant_message_are_text():
    messages = [Message(role="user", content="q"), Message(role="assistant", content="<|im_end|>!")]
    ids, mask = BARE.render_conversation(messages)
    assert list(ids[mask]).count(BARE.stop_token_ids[0]) == 1
    assert BARE.decode(ids[mask]) == "<|im_end|>!<|im_end|>"


def test_conversation_with_a_system_message_is_rendered_as_it_stands():
    messages = [
        Message(role="system", content="Be short."),
        Message(role="user", content="Hi"),
        Message(role="assistant", content="<reason></reason>Hi."),
        Message(role="user", content="Bye"),
        Message(role="assistant", content="<reason></reason>Bye."),
    ]
    ids, mask = FULL.render_conversation(messages)
    assert FULL.decode(ids) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n<reason></reason>Hi.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n<reason></reason>Bye.<|im_end|>"
    )
    assert FULL.decode(ids[mask]) == "</reason>Hi.<|im_end|></reason>Bye.<|im_end|>"


@pytest.mark.parametrize(
    "roles",
    [(), ("assistant",), ("user",), ("user", "tool"), ("user", "assistant", "tool"), ("system",)],
)
def test_conversation_whose_roles_do_not_alternate_is_refused(roles):
    messages = [Message(role=role, content="x") for role in roles]
    with pytest.raises(ValueError, match=r"message"):
        BARE.render_conversation(messages)


def test_assistant_message_without_the_prefilled_reason_is_refused():
    messages = [Message(role="user", content="q"), Message(role="assistant", content="4")]
    with pytest.raises(ValueError, match="expected <reason>"):
        FULL.render_conversation(messages)


def test_tokenizer_without_chat_tokens_is_refused():
    tokenizer = make_tokenizer()
    tree = tokenizer.backend_tokenizer.to_str().replace("<|im_end|>", "<|other|>")
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(tree)
    with pytest.raises(ValueError, match=r"no added token <\|im_end\|>"):
        open_chat(tokenizer, ChatConfig(), [])


def test_tokenizer_with_a_prefix_space_is_refused():
    with pytest.raises(ValueError, match="prefix space"):
        open_chat(make_tokenizer(add_prefix_space=True), ChatConfig(), [])


def test_tokenizer_that_changes_letters_is_refused():
    tokenizer = make_tokenizer(normalizer=normalizers.Lowercase())
    with pytest.raises(ValueError, match="expected the same text"):
        open_chat(tokenizer, ChatConfig(), [])
