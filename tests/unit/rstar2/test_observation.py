from __future__ import annotations

import pytest

from rstar2.observation import format_observation
from rstar2.types import ToolResult, ToolStatus

TRACEBACK = (
    'Traceback (most recent call last):\n  File "snippet", line 2\nZeroDivisionError: by 0\n'
)


def test_output_comes_before_the_value():
    result = ToolResult(status=ToolStatus.OK, stdout="hello\n", value="2")
    assert format_observation(result) == "hello\n2"


def test_value_alone_is_shown():
    assert format_observation(ToolResult(status=ToolStatus.OK, value="2")) == "2"


def test_silence_is_said():
    assert format_observation(ToolResult(status=ToolStatus.OK)) == "(no output)"


def test_warnings_of_code_that_ended_well_are_not_shown():
    result = ToolResult(status=ToolStatus.OK, stdout="4\n", stderr="DeprecationWarning: x\n")
    assert format_observation(result) == "4"


def test_error_shows_output_message_and_traceback():
    result = ToolResult(status=ToolStatus.ERROR, stdout="1\n", stderr=TRACEBACK)
    assert format_observation(result) == "1\n" + TRACEBACK.rstrip()


def test_bare_error_is_its_last_line():
    result = ToolResult(status=ToolStatus.ERROR, stderr=TRACEBACK)
    assert format_observation(result, style="bare") == "ZeroDivisionError: by 0"


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\r"])
def test_bare_error_is_the_last_line_as_python_ends_lines(inside):
    result = ToolResult(status=ToolStatus.ERROR, stderr=f"Traceback\nValueError: a{inside}b\n")
    assert format_observation(result, style="bare") == f"ValueError: a{inside}b"


def test_error_without_a_traceback_shows_its_detail():
    result = ToolResult(status=ToolStatus.ERROR, detail="Killed by signal 11.")
    assert format_observation(result) == "Killed by signal 11."


def test_output_before_a_time_limit_is_not_shown():
    result = ToolResult(status=ToolStatus.TIMEOUT, stdout="17 lines, or 18", detail="CPU: 4 s.")
    assert format_observation(result) == "Time limit exceeded. CPU: 4 s."


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (ToolStatus.TIMEOUT, "Time limit exceeded."),
        (ToolStatus.MALFORMED, "Malformed tool call."),
        (ToolStatus.UNKNOWN_TOOL, "Unknown tool."),
    ],
)
def test_bare_style_shows_one_fixed_sentence(status, text):
    result = ToolResult(status=status, detail="Something longer.")
    assert format_observation(result, style="bare") == text
