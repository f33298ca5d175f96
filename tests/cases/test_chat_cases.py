"""Conversations whose tokens other systems changed on the way. K-rows; K2 and T6, T17 in rollouts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from chat_tokenizer import SPECIAL, TAGS, make_tokenizer
from scripted_engine import Script
from tokenizers import normalizers

from rstar2.agent_loop import Limits, run_rollout
from rstar2.chat import open_chat
from rstar2.config import ChatConfig
from rstar2.conversations import Message
from rstar2.prompt import PYTHON_TOOL, ToolSchema
from rstar2.tool_calls import parse_tool_calls
from rstar2.types import (
    Problem,
    Rollout,
    RolloutStatus,
    ToolCall,
    ToolResult,
    ToolStatus,
)

TOKENIZER = make_tokenizer()
NEWLINE = TOKENIZER.encode("\n")[0]
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
CALL = '<tool_call>{"name": "python", "arguments": {"code": "2"}}</tool_call>'
FULL_CONFIG = ChatConfig(style="full", prefill_reason=False)
FULL = open_chat(TOKENIZER, FULL_CONFIG, [PYTHON_TOOL])
MESSAGES = [
    Message(role="user", content="2?"),
    Message(role="assistant", content=CALL),
    Message(role="tool", content="2"),
    Message(role="assistant", content="<answer>\\boxed{2}</answer>"),
]


async def execute(call: ToolCall, /, *, call_id: str) -> ToolResult:
    return ToolResult(status=ToolStatus.OK, stdout=f"{call.arguments['code']}\n")


async def roll(engine: Script, *, max_response_tokens: int = 1000) -> Rollout:
    return await run_rollout(
        Problem(problem_id="p", question="2?", answer="2", source="test"),
        FULL,
        engine,
        execute,
        limits=Limits(max_response_tokens=max_response_tokens, max_turns=4, temperature=0.6),
        rollout_id="r",
        seed=1,
    )


def test_k1_ids_equal_one_rendering_of_the_whole_text():
    ids, _ = FULL.render_conversation(MESSAGES)
    assert list(ids) == TOKENIZER.encode(FULL.decode(ids))
    assert FULL.decode(ids).count("<|im_end|>\n<|im_start|>") == 4


def test_k1_newline_after_a_turn_is_there_and_masked():
    ids, mask = FULL.render_conversation(MESSAGES)
    ends = [i for i in np.flatnonzero(ids == END) if mask[i]]
    assert len(ends) == 2
    assert ids[ends[0] + 1] == NEWLINE
    assert not mask[ends[0] + 1]


async def test_k1_rollout_has_the_tokens_of_the_rendering():
    rollout = await roll(
        Script(TOKENIZER, f"{CALL}<|im_end|>", "<answer>\\boxed{2}</answer><|im_end|>")
    )
    ids, mask = FULL.render_conversation(MESSAGES)
    np.testing.assert_array_equal(rollout.token_ids, ids)
    np.testing.assert_array_equal(rollout.loss_mask, mask)


async def test_k2_thought_of_an_earlier_turn_is_kept():
    engine = Script(
        TOKENIZER, f"<think>2 is 2</think>{CALL}<|im_end|>", "<answer>\\boxed{2}</answer><|im_end|>"
    )
    await roll(engine)
    assert "<think>2 is 2</think>" in FULL.decode(engine.requests[1].token_ids)


def test_k7_end_of_a_thought_without_its_start_ends_a_thought():
    assert parse_tool_calls(f"{CALL}</think> It is 2.") == ()
    assert len(parse_tool_calls(f"It is 2.</think>{CALL}")) == 1


@pytest.mark.parametrize("style", ["bare", "full"])
@pytest.mark.parametrize("tag", [*SPECIAL, *TAGS, "<pad>"])
def test_k8_tag_in_tool_output_becomes_ordinary_ids(tag, style):
    chat = open_chat(TOKENIZER, ChatConfig(style=style), [PYTHON_TOOL])
    plain, _ = chat.render_observation([ToolResult(status=ToolStatus.OK, stdout="a  b")])
    ids, _ = chat.render_observation([ToolResult(status=ToolStatus.OK, stdout=f"a {tag}{tag} b")])
    added = set(TOKENIZER.convert_tokens_to_ids([*SPECIAL, *TAGS, "<pad>"]))
    assert [i for i in ids if i in added] == [i for i in plain if i in added]
    assert f"a {tag}{tag} b" in chat.decode(ids)


@pytest.mark.parametrize("tag", [*SPECIAL, *TAGS])
def test_k8_tag_in_the_question_becomes_ordinary_ids(tag):
    prompt = FULL.render_prompt(f"What is {tag}?")
    tag_id = TOKENIZER.convert_tokens_to_ids(tag)
    assert list(prompt).count(tag_id) == list(FULL.render_prompt("What is ?")).count(tag_id)
    assert f"What is {tag}?" in FULL.decode(prompt)


@pytest.mark.parametrize("tools", [(), (PYTHON_TOOL,)])
@pytest.mark.parametrize("style", ["bare", "full"])
def test_k9_mask_does_not_move_with_the_system_prompt(tools, style):
    chat = open_chat(TOKENIZER, ChatConfig(style=style, prefill_reason=False), tools)
    ids, mask = chat.render_conversation(MESSAGES)
    assert chat.decode(ids[mask]) == f"{CALL}<|im_end|><answer>\\boxed{{2}}</answer><|im_end|>"


def test_k9_other_tools_change_the_prompt_only():
    other = ToolSchema(name="look", description="Looks.", parameters={"type": "object"})
    chat = open_chat(TOKENIZER, FULL_CONFIG, [PYTHON_TOOL, other])
    assert '"name": "look"' in chat.decode(chat.render_prompt("2?"))


def test_k10_prefilled_reason_is_in_the_prompt_and_not_trained_twice():
    chat = open_chat(TOKENIZER, ChatConfig(style="full", prefill_reason=True), [PYTHON_TOOL])
    messages = [
        Message(role="user", content="2?"),
        Message(role="assistant", content="<reason>2</reason><answer>\\boxed{2}</answer>"),
    ]
    ids, mask = chat.render_conversation(messages)
    prompt = chat.render_prompt("2?")
    assert chat.decode(prompt).endswith("<|im_start|>assistant\n<reason>")
    np.testing.assert_array_equal(ids[: len(prompt)], prompt)
    assert chat.decode(ids[mask]) == "2</reason><answer>\\boxed{2}</answer><|im_end|>"


def test_k11_sixteen_threads_tokenise_while_the_tokenizer_is_changed():
    tokenizer = make_tokenizer()
    chat = open_chat(tokenizer, FULL_CONFIG, [PYTHON_TOOL])
    expected = list(chat.render_prompt("2?"))

    def change() -> None:
        for length in range(1, 40):
            tokenizer(["a b", "c"], truncation=True, max_length=length, padding=True)

    def render(_: int) -> list[int]:
        for _ in range(40):
            chat.render_observation([ToolResult(status=ToolStatus.OK, stdout="<answer>" * 9)])
        return list(chat.render_prompt("2?"))

    with ThreadPoolExecutor(16) as pool:
        changing = pool.submit(change)
        assert list(pool.map(render, range(15))) == [expected] * 15
        changing.result()


def test_t14_unicode_output_comes_back_byte_for_byte():
    text = "Ω≈√2 你好 🎉"
    ids, _ = FULL.render_observation([ToolResult(status=ToolStatus.OK, stdout=text)])
    assert f"<tool_response>\n{text}\n</tool_response>" in FULL.decode(ids)


UNICODE_FORMS = [
    normalizers.NFC(),
    normalizers.NFKC(),
    normalizers.NFD(),
    normalizers.Sequence([normalizers.NFC(), normalizers.Sequence([normalizers.NFKD()])]),
]
"""Qwen's own tokenizer has the first: it would compose what the text of others leaves apart."""
DECOMPOSED = "e\u0301 \u1100\u1161 \u0915\u093c \u212b ﬁ ² é"


@pytest.mark.parametrize("normalizer", UNICODE_FORMS)
@pytest.mark.parametrize("style", ["bare", "full"])
def test_t14_text_of_others_keeps_its_unicode_form(normalizer, style):
    config = ChatConfig(style=style, prefill_reason=False)
    chat = open_chat(make_tokenizer(normalizer=normalizer), config, [PYTHON_TOOL])
    observation, _ = chat.render_observation([ToolResult(status=ToolStatus.OK, stdout=DECOMPOSED)])
    talk = [
        Message(role="user", content=DECOMPOSED),
        Message(role="assistant", content=f"<answer>{DECOMPOSED}</answer>"),
    ]
    ids, mask = chat.render_conversation(talk)
    assert DECOMPOSED in chat.decode(observation)
    assert DECOMPOSED in chat.decode(chat.render_prompt(DECOMPOSED))
    assert chat.decode(ids[mask]) == f"<answer>{DECOMPOSED}</answer><|im_end|>"


async def test_t6_call_cut_by_the_limit_is_a_truncation_and_not_an_answer():
    rollout = await roll(Script(TOKENIZER, f"{CALL}<|im_end|>"), max_response_tokens=12)
    assert rollout.status is RolloutStatus.TRUNCATED_LENGTH
    assert rollout.num_tool_calls == 0


async def test_t17_unknown_tool_is_told_so_and_counts_as_an_error():
    text = CALL.replace("python", "bash")
    engine = Script(TOKENIZER, f"{text}<|im_end|>", "<answer>\\boxed{2}</answer><|im_end|>")
    rollout = await roll(engine)
    assert "Unknown tool. 'bash' is none of: python." in FULL.decode(engine.requests[1].token_ids)
    assert rollout.num_tool_errors == 1


async def test_s1_value_of_a_last_expression_is_shown():
    ids, _ = FULL.render_observation([ToolResult(status=ToolStatus.OK, value="2")])
    assert "<tool_response>\n2\n</tool_response>" in FULL.decode(ids)


async def test_g6_rollout_without_a_call_has_no_tool_error():
    rollout = await roll(Script(TOKENIZER, "<answer>\\boxed{2}</answer><|im_end|>"))
    assert (rollout.num_tool_calls, rollout.num_tool_errors) == (0, 0)


async def test_g18_engine_samples_at_the_temperature_of_the_limits():
    engine = Script(TOKENIZER, "<answer>\\boxed{2}</answer><|im_end|>")
    await roll(engine)
    assert engine.requests[0].temperature == 0.6
