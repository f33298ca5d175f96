"""Tool calls that other parsers lost, ran by mistake or hung on. T15 and T16 (XML) are not built."""

from __future__ import annotations

import json

import pytest

from rstar2.tool_calls import parse_tool_calls
from rstar2.types import MalformedToolCall, ToolCall


def call(body: str) -> tuple[ToolCall | MalformedToolCall, ...]:
    return parse_tool_calls(f"<tool_call>{body}</tool_call>")


def reason(body: str) -> str:
    (only,) = call(body)
    assert isinstance(only, MalformedToolCall)
    return only.reason


def python(code: str) -> ToolCall:
    return ToolCall(name="python", arguments={"code": code})


def test_t1_closing_tag_inside_the_code_is_code():
    code = "print('</tool_call>')\nprint('<tool_call>')"
    body = json.dumps({"name": "python", "arguments": {"code": code}})
    assert call(body) == (python(code),)


def test_t2_raw_newline_and_tab_inside_a_string_are_accepted():
    assert call('{"name": "python", "arguments": {"code": "a\n\tb"}}') == (python("a\n\tb"),)


def test_t4_unescaped_quotes_are_an_error():
    assert "Expecting ',' delimiter" in reason(
        '{"name": "python", "arguments": {"code": "print("hi")"}}'
    )


def test_t5_missing_final_brace_is_an_error():
    assert "not valid JSON" in reason('{"name": "python", "arguments": {"code": "1"}')


def test_t6_call_cut_by_the_end_is_malformed_and_not_absent():
    (only,) = parse_tool_calls('<tool_call>{"name": "python", "argu')
    assert isinstance(only, MalformedToolCall)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"name": "python", "arguments": ["print(1)"]}', "arguments"),
        ('{"name": "python"}', "arguments"),
        ("{}", "name"),
        ('{"arguments": {"code": "1"}}', "name"),
        ('{"name": 3, "arguments": {}}', "name"),
        ('{"name": "python", "arguments": null}', "arguments"),
        ('{"name": "python", "arguments": "print(1)"}', "arguments is a string"),
        ('["python"]', "expected a JSON object"),
        ("", "not valid JSON"),
    ],
)
def test_t8_incomplete_calls_say_what_is_missing(body, expected):
    assert expected in reason(body)


def test_t10_call_in_a_thought_that_is_given_up_is_not_run():
    body = json.dumps({"name": "python", "arguments": {"code": "1"}})
    text = f"<think>I could run <tool_call>{body}</tool_call> but no.</think> It is 4."
    assert parse_tool_calls(text) == ()


def test_t10_thought_opened_by_the_prompt_counts_as_one():
    body = json.dumps({"name": "python", "arguments": {"code": "1"}})
    text = f"I could run <tool_call>{body}</tool_call> but no.</reason> It is 4."
    assert parse_tool_calls(text) == ()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('```json\n{"name": "python", "arguments": {}}\n```', "not valid JSON"),
        ("{'name': 'python', 'arguments': {}}", "not valid JSON"),
        ('{"name": "python", "arguments": {"code": True}}', "not valid JSON"),
        ('{"name": "python", "arguments": {},}', "not valid JSON"),
        ('{"name": "python", "arguments": {"code": NaN}}', "NaN is not JSON"),
        ('{"name": "python", "arguments": {"code": -Infinity}}', "-Infinity is not JSON"),
        ('{"name": "python", "name": "other", "arguments": {}}', "a key occurs twice"),
        ('{"name": "python", "arguments": {}} {}', "expected </tool_call>"),
    ],
)
def test_t12_what_is_not_json_is_an_error(body, expected):
    assert expected in reason(body)


@pytest.mark.parametrize("ascii_only", [True, False])
def test_t14_unicode_code_arrives_byte_for_byte(ascii_only):
    code = "print('Ω≈√2 你好 🎉')"
    body = json.dumps({"name": "python", "arguments": {"code": code}}, ensure_ascii=ascii_only)
    assert call(body) == (python(code),)


def test_t18_every_prefix_of_two_calls_is_read():
    body = json.dumps({"name": "python", "arguments": {"code": "print('a')"}})
    text = f"<reason>x</reason><tool_call>{body}</tool_call><tool_call>{body}</tool_call>"
    assert [len(parse_tool_calls(text[:stop])) for stop in (0, len(text))] == [0, 2]
    for stop in range(len(text)):
        assert len(parse_tool_calls(text[:stop])) <= 2


@pytest.mark.parametrize(
    "unit",
    ["<tool_call>", '<tool_call>{"a":"', '<tool_call>["', "<tool_call>[", '<tool_call>{"a":{"b":'],
)
def test_t18_long_hostile_text_is_read_to_its_bound(unit):
    calls = parse_tool_calls(unit * 50_000)
    assert calls
    assert all(isinstance(only, MalformedToolCall) for only in calls)
