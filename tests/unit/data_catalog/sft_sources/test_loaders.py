"""A row of each public SFT set, in the layout of its card, becomes a conversation in our template."""

from __future__ import annotations

import json

import pytest
from sft_rows import (
    APIGEN_MT,
    GLAIVE,
    MAGICODER,
    MAGICODER_EVOL,
    NEMOTRON,
    NEMOTRON_TEXT,
    TOOLACE,
    TULU,
)

from data_catalog.sft_sources import apigen_mt, glaive, magicoder, nemotron, toolace, tulu
from data_catalog.sft_sources.draft import Unusable, write
from rstar2.prompt import PYTHON_TOOL
from rstar2.tool_calls import parse_tool_calls


def texts(draft) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in write(draft)]


def test_toolace_calls_written_as_python_become_json():
    draft = toolace.convert(TOOLACE)
    roles = texts(draft)
    assert [role for role, _ in roles] == ["user", "assistant", "tool", "assistant"]
    assert roles[1][1] == (
        '<reason></reason><tool_call>\n{"name": "Market Trends API", "arguments": {"trend_type": '
        '"INDEXES", "days": 7}}\n</tool_call><tool_call>\n{"name": "Market Trends API", "arguments": '
        '{"trend_type": "CRYPTO", "filters": {"open": true, "ids": [1, 2]}}}\n</tool_call>'
    )
    assert roles[3][1] == "<reason></reason><answer>Three are up.</answer>"


def test_toolace_signatures_are_json_schema():
    (tool,) = toolace.convert(TOOLACE).tools
    assert tool.name == "Market Trends API"
    assert tool.parameters["type"] == "object"
    assert tool.parameters["properties"]["days"] == {"type": "integer", "default": 3}


@pytest.mark.parametrize(
    "text",
    [
        "[f(1)]",
        "[f(a=1]",
        "[f(a=open('x'))]",
        "[f(**a)]",
        "[f(a=1)",
        "[f(a={1: 2})]",
        "[f(a=b)]",
        "[f(a=1, a=2)]",
    ],
)
def test_a_call_that_cannot_be_read_is_unusable(text):
    with pytest.raises(Unusable, match="not written as a call"):
        list(toolace.read_calls(text))


def test_names_of_arguments_need_not_be_pythons():
    (call,) = toolace.read_calls(
        "[f(user-id=1, from='a=b, c', class={\"x\": [1, -2.5]}, api.key=null)]"
    )
    assert call.arguments == {
        "user-id": 1,
        "from": "a=b, c",
        "class": {"x": [1, -2.5]},
        "api.key": None,
    }


def test_calls_without_arguments_and_with_a_last_comma_are_read():
    first, second = toolace.read_calls("[f(), Get It(a=1,)]")
    assert (first.arguments, second.name, second.arguments) == ({}, "Get It", {"a": 1})


@pytest.mark.parametrize(
    "text", ["[f(a=1)] I will tell you.", "[get 'x'(a=1)", "[f(a=1), then g]", "[(a=1)]"]
)
def test_what_begins_like_a_call_is_never_trained_as_an_answer(text):
    turns = [{"from": "user", "value": "Hi"}, {"from": "assistant", "value": text}]
    with pytest.raises(Unusable):
        write(toolace.convert(TOOLACE | {"conversations": turns}))


def test_a_string_of_a_call_may_hold_brackets_and_quotes():
    (call,) = toolace.read_calls(r"""[f(a="x) 'y' ](", b='it\'s')]""")
    assert call.arguments == {"a": "x) 'y' ](", "b": "it's"}


def test_apigen_keeps_the_policy_and_ends_with_the_agent():
    roles = texts(apigen_mt.convert(APIGEN_MT))
    assert roles[0] == ("system", "# Retail policy\nAsk for the e-mail first.")
    assert roles[4] == (
        "assistant",
        '<reason></reason><tool_call>\n{"name": "cancel", "arguments": {"order_id": "W1"}}\n'
        "</tool_call>",
    )
    assert roles[5:] == [
        ("tool", '{"status": "cancelled"}'),
        ("assistant", "<reason></reason><answer>It is cancelled.</answer>"),
    ]


def test_apigens_thoughts_are_left_out():
    thought = [
        {"from": "function_call", "value": '{"name": "think", "arguments": {"thought": "Hm."}}'},
        {"from": "observation", "value": ""},
    ]
    turns = APIGEN_MT["conversations"]
    think = {"name": "think", "description": "Think.", "parameters": {"type": "object"}}
    row = APIGEN_MT | {
        "conversations": [*turns[:3], *thought, *turns[3:]],
        "tools": json.dumps([*json.loads(APIGEN_MT["tools"]), think]),
    }
    assert apigen_mt.convert(row) == apigen_mt.convert(APIGEN_MT)


def test_glaives_arguments_in_single_quotes_are_read():
    draft = glaive.convert(GLAIVE)
    roles = texts(draft)
    (call,) = parse_tool_calls(roles[1][1])
    assert call.arguments == {"base": "USD", "note": "it's {urgent}"}
    assert [tool.name for tool in draft.tools] == ["get_rate", "get_news"]
    assert roles[2:4] == [
        ("tool", '{"rate": 0.9}'),
        ("assistant", "<reason></reason><answer>It is 0.9.</answer>"),
    ]
    assert roles[-1][1] == "<reason></reason><answer>You are welcome.</answer>"


def test_glaive_without_functions_has_no_tools():
    row = {
        "system": "SYSTEM: You are a helpful assistant.",
        "chat": "USER: Hi\n\n\nASSISTANT: Hello",
    }
    assert glaive.convert(row).tools == ()


def test_magicoders_program_becomes_a_call_and_the_rest_its_reason():
    draft = magicoder.convert(MAGICODER)
    assert draft.tools == (PYTHON_TOOL,)
    assert texts(draft) == [
        ("user", "Print the sum of 1 and 2."),
        (
            "assistant",
            "<reason>We add them.\n\nIt prints 3.</reason><tool_call>\n"
            '{"name": "python", "arguments": {"code": "print(1 + 2)"}}\n</tool_call>',
        ),
    ]


def test_magicoders_second_release_is_read_too():
    assert "print(3)" in texts(magicoder.convert(MAGICODER_EVOL))[1][1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lang": "cpp"}, "not Python"),
        ({"solution": "```cpp\nint x;\n```"}, "not Python"),
        ({"solution": "No program."}, "not exactly one program"),
        ({"solution": "```python\na\n```\n```python\nb\n```"}, "not exactly one program"),
        ({"solution": "```python\nprint 3\n```"}, "does not compile"),
    ],
)
def test_a_solution_that_is_no_call_is_unusable(change, reason):
    with pytest.raises(Unusable, match=reason):
        magicoder.convert(MAGICODER | change)


def test_tulu_is_answered_in_the_answer_tag():
    assert texts(tulu.convert(TULU)) == [
        ("user", "Answer in one word: capital of France?"),
        ("assistant", "<reason></reason><answer>Paris</answer>"),
    ]


def test_nemotrons_switch_is_no_part_of_the_conversation():
    expected = ("assistant", "<reason></reason><answer>Hat.</answer>")
    assert texts(nemotron.convert(NEMOTRON))[-1] == expected
    assert texts(nemotron.convert(NEMOTRON_TEXT)) == [("user", "A rhyme on cat."), expected]


def test_nemotron_of_another_category_is_unusable():
    with pytest.raises(Unusable, match="category chat"):
        nemotron.convert(NEMOTRON | {"category": "math"})


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([("human", "Hi"), ("gpt", "say <answer>1</answer>")], "spells a tag"),
        ([("human", "use <|im_end|>"), ("gpt", "no")], "spells a tag"),
        ([("human", "Hi"), ("gpt", " ")], "empty message"),
        ([("gpt", "Hi"), ("human", "Hi")], "out of order"),
        ([("human", "Hi"), ("human", "Hi"), ("gpt", "Hi")], "out of order"),
        ([("human", "Hi")], "out of order"),
        ([("human", "Hi"), ("robot", "Hi")], "unknown speaker"),
        ([("human", "Hi"), ("function_call", '{"name": "x", "arguments": {}}')], "not offered"),
        ([("human", "Hi"), ("function_call", "cancel()")], "a call is not JSON"),
        ([("human", "Hi"), ("function_call", "[1]")], "no name with arguments"),
        (
            [
                ("human", "Hi"),
                ("function_call", '{"name": "cancel", "arguments": {}}'),
                ("gpt", "x"),
            ],
            "after a call in one turn",
        ),
    ],
)
def test_what_cannot_be_said_in_the_template_is_unusable(turns, reason):
    row = APIGEN_MT | {"conversations": [{"from": who, "value": what} for who, what in turns]}
    with pytest.raises(Unusable, match=reason):
        write(apigen_mt.convert(row))
