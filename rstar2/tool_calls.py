"""Reads tool calls from the text of one sampled turn.

Reads a string, returns values; writes nothing. Linear in the length of the text, and no input makes
it raise. What it decides, where others differ:

- A call is `<tool_call>`, one JSON object, `</tool_call>`; white space between them is free. The
  JSON is decoded from the opening tag on, so a tag inside a JSON string is a part of that string.
- Raw newlines and tabs inside JSON strings are accepted. Duplicate keys, NaN and Infinity, lone
  surrogates, fences, single quotes and trailing commas are malformed.
- `arguments` is an object, or a string holding the JSON of an object (the wire form of some APIs).
- Complete JSON without the closing tag is malformed. A closing tag alone is no call.
- A call inside a closed `<reason>` or `<think>` block is a thought and not a call; the block may
  have been opened by the prompt. A block that is still open when the turn ends hides nothing, and
  neither does the end of one that is not open.

It does not know which tools exist; `check_arguments` compares a call with a schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from rstar2.types import MalformedToolCall, ToolCall

MAX_MALFORMED = 50
"""After so many in one turn the rest of the text is not read."""
OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"
_TAGS = re.compile(r"</?tool_call>|</?reason>|</?think>")
_SPACE = re.compile(r"\s*")


class _NotACall(ValueError):
    """Text between call tags is no call. Carries where, when that is known better than the start."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.position = position


def parse_tool_calls(text: str) -> tuple[ToolCall | MalformedToolCall, ...]:
    """All calls of a turn in order, the malformed ones among them with their reason."""
    calls: list[ToolCall | MalformedToolCall] = []
    num_before_block: int | None = 0  # of the open block: the prompt may have opened one
    num_malformed = position = 0
    while match := _TAGS.search(text, position):
        position = match.end()
        tag = match.group()
        if tag == OPEN_TAG:
            call, position = _read_call(text, position)
            calls.append(call)
            num_malformed += isinstance(call, MalformedToolCall)
            if num_malformed == MAX_MALFORMED:
                break
        elif tag in ("<reason>", "<think>"):
            num_before_block = len(calls)
        elif tag in ("</reason>", "</think>") and num_before_block is not None:
            # The block closed: what was called inside it was only thought of.
            del calls[num_before_block:]
            num_before_block = None
    return tuple(calls)


def check_arguments(call: ToolCall, parameters: Mapping[str, object]) -> str | None:
    """What is wrong with a call's arguments by the tool's JSON schema, or None.

    Looks at required names, unknown names and string types: all that a tool here declares.
    """
    properties = parameters.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    required = parameters.get("required")
    names = required if isinstance(required, Sequence) else ()
    missing = [str(name) for name in names if name not in call.arguments]
    if missing:
        return f"argument {missing[0]!r} is missing"
    for name, value in call.arguments.items():
        schema = known.get(name)
        if not isinstance(schema, Mapping):
            return f"argument {name!r} is unknown; expected {', '.join(map(str, known))}"
        if schema.get("type") == "string" and not isinstance(value, str):
            return f"argument {name!r} must be a string"
    return None


def _read_call(text: str, start: int) -> tuple[ToolCall | MalformedToolCall, int]:
    """The call whose opening tag ends at `start`, and the offset where reading goes on."""
    begin = _skip_space(text, start)
    try:
        tree, end = _DECODER.raw_decode(text, begin)
        after = _skip_space(text, end)
        if not text.startswith(CLOSE_TAG, after):
            raise _NotACall(f"expected {CLOSE_TAG} after the JSON object", after)
        return _to_call(tree), after + len(CLOSE_TAG)
    except json.JSONDecodeError as error:
        return _malformed(text, start, f"not valid JSON: {error.msg}", error.pos)
    except RecursionError:
        return _malformed(text, start, "not valid JSON: nested too deeply", begin)
    except _NotACall as error:
        where = begin if error.position is None else error.position
        return _malformed(text, start, str(error), where)
    except ValueError:
        # The interpreter's limit on the digits of one integer.
        return _malformed(text, start, "not valid JSON: a number has too many digits", begin)


def _malformed(text: str, start: int, reason: str, where: int) -> tuple[MalformedToolCall, int]:
    """The malformed call; reading goes on after its closing tag or at the next other tag."""
    following = _TAGS.search(text, start)
    if following is None:
        resume = len(text)
    else:
        resume = following.end() if following.group() == CLOSE_TAG else following.start()
    return MalformedToolCall(reason=reason, position=where), resume


def _to_call(tree: object) -> ToolCall:
    if not isinstance(tree, dict):
        raise _NotACall("expected a JSON object with name and arguments")
    name, arguments = tree.get("name"), tree.get("arguments")
    if not isinstance(name, str) or not name:
        raise _NotACall("name is missing or is not a string")
    if isinstance(arguments, str):
        arguments = _decode_string(arguments)
    if not isinstance(arguments, dict):
        raise _NotACall("arguments is missing or is not a JSON object")
    _refuse_surrogates({"name": name, "arguments": arguments})
    return ToolCall(name=name, arguments=arguments)


def _decode_string(text: str) -> object:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _NotACall(f"arguments is a string that is not valid JSON: {error.msg}") from None


def _refuse_surrogates(tree: object) -> None:
    """No file, pipe or wire can carry half of a surrogate pair."""
    try:
        json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _NotACall("a string holds half of a surrogate pair") from None


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        raise _NotACall("a key occurs twice")
    return tree


def _refuse_constant(name: str) -> NoReturn:
    raise _NotACall(f"{name} is not JSON")


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


_DECODER = json.JSONDecoder(
    strict=False, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
)
