from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2.prompt import PYTHON_TOOL
from rstar2.tool_calls import MAX_MALFORMED, check_arguments, parse_tool_calls
from rstar2.types import MalformedToolCall, ToolCall

CALL = '<tool_call>{"name": "python", "arguments": {"code": "1"}}</tool_call>'
PYTHON = ToolCall(name="python", arguments={"code": "1"})


def reasons(text: str) -> list[str]:
    return [call.reason for call in parse_tool_calls(text) if isinstance(call, MalformedToolCall)]


def test_text_without_a_call_has_none():
    assert parse_tool_calls("The answer is 4.<|im_end|>") == ()


def test_white_space_around_the_object_is_free():
    text = '<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>'
    assert parse_tool_calls(text) == (PYTHON,)


def test_calls_come_in_order():
    other = CALL.replace('"1"', '"2"')
    calls = parse_tool_calls(f"first {CALL} then {other}")
    assert calls == (PYTHON, ToolCall(name="python", arguments={"code": "2"}))


def test_malformed_call_does_not_hide_the_next_one():
    calls = parse_tool_calls(f"<tool_call>{{oops</tool_call>{CALL}")
    assert isinstance(calls[0], MalformedToolCall)
    assert calls[1] == PYTHON


def test_call_without_its_closing_tag_does_not_hide_the_next_one():
    calls = parse_tool_calls(f"<tool_call>{{oops {CALL}")
    assert isinstance(calls[0], MalformedToolCall)
    assert calls[1] == PYTHON


def test_position_is_where_parsing_failed():
    (call,) = parse_tool_calls('ab<tool_call>{"name": oops}</tool_call>')
    assert isinstance(call, MalformedToolCall)
    assert call.position == 'ab<tool_call>{"name": oops}'.index("oops")


def test_complete_object_without_a_closing_tag_is_malformed():
    assert reasons('<tool_call>{"name": "python", "arguments": {}}<|im_end|>') == [
        "expected </tool_call> after the JSON object"
    ]


def test_closing_tag_alone_is_no_call():
    assert parse_tool_calls('{"name": "python", "arguments": {}}</tool_call>') == ()


def test_arguments_may_be_the_json_of_an_object():
    text = '<tool_call>{"name": "python", "arguments": "{\\"code\\": \\"1\\"}"}</tool_call>'
    assert parse_tool_calls(text) == (PYTHON,)


def test_deep_nesting_is_malformed():
    assert reasons("<tool_call>" + "[" * 50_000) == ["not valid JSON: nested too deeply"]


def test_number_with_too_many_digits_is_malformed():
    assert reasons("<tool_call>" + "1" * 10_000 + "</tool_call>") == [
        "not valid JSON: a number has too many digits"
    ]


def test_half_a_surrogate_pair_is_malformed():
    text = '<tool_call>{"name": "python", "arguments": {"code": "\\ud800"}}</tool_call>'
    assert reasons(text) == ["a string holds half of a surrogate pair"]


def test_call_in_a_closed_reason_block_is_a_thought():
    assert parse_tool_calls(f"<reason>maybe {CALL} no</reason> 4") == ()


def test_call_after_a_reason_block_is_a_call():
    assert parse_tool_calls(f"<reason>think</reason>{CALL}") == (PYTHON,)


def test_call_before_a_reason_block_is_a_call():
    assert parse_tool_calls(f"{CALL}<reason>then {CALL}</reason>") == (PYTHON,)


def test_open_reason_block_hides_nothing():
    assert parse_tool_calls(f"<reason>let me compute {CALL}") == (PYTHON,)


@pytest.mark.parametrize("close", ["</reason>", "</think>"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<reason>a</reason>", ""),
        ("<think>a</think>", " 4"),
        ("a</reason>", ""),
        ("<reason>a</reason><reason>b</reason>", "</reason>"),
        (f"<reason>{CALL}</reason>", ""),
    ],
)
def test_end_of_a_block_that_is_not_open_hides_nothing(before, after, close):
    assert parse_tool_calls(f"{before}{CALL}{close}{after}") == (PYTHON,)


def test_malformed_call_before_the_end_of_a_closed_block_is_still_answered():
    assert len(reasons(f"<reason>a</reason><tool_call>a</reason>{CALL}")) == 1


def test_reason_tag_inside_an_argument_closes_nothing():
    text = CALL.replace('"1"', "\"print('</reason>')\"")
    assert parse_tool_calls(text) == (
        ToolCall(name="python", arguments={"code": "print('</reason>')"}),
    )


def test_reading_stops_after_many_malformed_calls():
    assert len(parse_tool_calls("<tool_call>oops</tool_call>" * 1000 + CALL)) == MAX_MALFORMED


PIECES = ["<tool_call>", "</tool_call>", "<reason>", "</think>", CALL, '{"name": ', '"', "\\", "["]


@given(st.lists(st.sampled_from([*PIECES, "{", "}", ",", ":", "NaN", "\n", "Ω", "1e999", "\\u"])))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_it_raise(parts):
    parse_tool_calls("".join(parts))


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_code_survives_the_way_there(code):
    import json

    text = json.dumps({"name": "python", "arguments": {"code": code}}, ensure_ascii=False)
    assert parse_tool_calls(f"<tool_call>{text}</tool_call>") == (
        ToolCall(name="python", arguments={"code": code}),
    )


def test_arguments_that_fit_the_schema_have_no_fault():
    call = ToolCall(name="python", arguments={"code": "1", "input": ""})
    assert check_arguments(call, PYTHON_TOOL.parameters) is None


def test_missing_argument_is_named():
    call = ToolCall(name="python", arguments={})
    assert check_arguments(call, PYTHON_TOOL.parameters) == "argument 'code' is missing"


def test_unknown_argument_is_named():
    call = ToolCall(name="python", arguments={"code": "1", "timeout": "9"})
    fault = check_arguments(call, PYTHON_TOOL.parameters)
    assert fault == "argument 'timeout' is unknown; expected code, input"


def test_argument_of_another_type_is_named():
    call = ToolCall(name="python", arguments={"code": 1})
    assert check_arguments(call, PYTHON_TOOL.parameters) == "argument 'code' must be a string"
