"""Signs of reasoning in SFT data, and what is none."""

import pytest

from rstar2.reasoning_markers import reasoning_marker


@pytest.mark.parametrize(
    ("row", "reply", "marker"),
    [
        ({"reasoning": "on"}, "Yes.", "column reasoning"),
        ({"reasoning": True}, "Yes.", "column reasoning"),
        ({"reasoning_content": "First, "}, "Yes.", "column reasoning_content"),
        ({"system_prompt": "detailed thinking on"}, "Yes.", "system prompt: thinking on"),
        ({}, "<think>\nOk.</think>Yes.", "thinking tags"),
        ({}, "Ok.</think>Yes.", "thinking tags"),
        ({}, "< Reasoning >Ok.", "thinking tags"),
        ({}, "<|begin_of_thought|>Ok.", "thinking tags"),
        ({}, r"So $\boxed{4}$.", "boxed answer"),
        ({}, "Hmm. But wait, 7. Let me verify: 4.", "thinks aloud"),
    ],
)
def test_reasoning_is_recognised(row, reply, marker):
    assert reasoning_marker(row, ["Fine.", reply]) == marker


@pytest.mark.parametrize(
    "row",
    [
        {"reasoning": "off", "system_prompt": "detailed thinking off"},
        {"reasoning": None, "thinking": ""},
        {},
    ],
)
@pytest.mark.parametrize(
    "reply",
    [
        "Wait, let me check the order first.",
        "I think the box is `boxed`.",
        "The reasons: <b>cost</b> and time.",
    ],
)
def test_ordinary_replies_are_none(row, reply):
    assert reasoning_marker(row, [reply]) is None


@pytest.mark.parametrize("name", ["think", "Sequential_Thinking", "reflect"])
def test_a_call_of_a_thinking_tool_is_reasoning(name):
    assert reasoning_marker({}, ["Fine."], ["search", name]) == "calls a thinking tool"
    assert reasoning_marker({}, ["Fine."], ["search", f"{name}_of_names"]) is None
