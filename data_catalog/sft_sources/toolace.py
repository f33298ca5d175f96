"""ToolACE: calls written as Python, tools as JSON inside the system text.

Columns `system`, `conversations` (`from`: user, assistant, tool; `value`), 11.3K rows:
https://huggingface.co/datasets/Team-ACE/ToolACE. Not run on the real file.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from data_catalog.sft_sources.draft import Draft, Event, Unusable, tool_call, tool_schemas
from rstar2.types import ToolCall

COLUMNS = ("system", "conversations")
_STARTS_LIKE_CALLS = re.compile(r"\s*\[[^\[\]\n]{0,200}\(")
_ARGUMENT = re.compile(r"\s*(?P<name>[^\s=\"'()\[\]{},]+)\s*=\s*(?P<value>.*?)\s*", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}


def convert(row: Mapping[str, Any]) -> Draft:
    """The tools of the system text, and its turns; how to write a call is ours to say."""
    events = [_event(turn) for turn in row["conversations"]]
    return Draft(events=tuple(events), tools=tool_schemas(_tools(str(row["system"]))))


def _event(turn: Mapping[str, Any]) -> Event:
    speaker, text = turn["from"], str(turn["value"])
    if speaker == "user":
        return Event(kind="user", text=text)
    if speaker == "tool":
        return Event(kind="result", text=text)
    if speaker != "assistant":
        raise Unusable("an unknown speaker")
    if _STARTS_LIKE_CALLS.match(text):  # read as calls or not at all: an answer it is not
        return Event(kind="call", calls=tuple(read_calls(text)))
    return Event(kind="say", text=text)


def _tools(system: str) -> object:
    """The first JSON list of objects in the system text."""
    start = re.search(r"\[\s*\{", system)
    if start is None:
        return []
    try:
        return json.JSONDecoder().raw_decode(system, start.start())[0]
    except ValueError:
        raise Unusable("tools are not JSON") from None


def read_calls(text: str) -> Iterator[ToolCall]:
    """The calls of `[Name of the tool(key=value, …), other(…)]`; a name may hold spaces."""
    text = text.strip()
    if not text.endswith("]"):
        raise Unusable("a call is not written as a call")
    rest = text[1:-1]
    while rest.strip(" ,\n"):
        rest = rest.lstrip(" ,\n")
        name, separator, _ = rest.partition("(")
        stop = _closing(rest) if separator else None
        if stop is None:
            raise Unusable("a call is not written as a call")
        yield tool_call(name.strip(), _arguments(rest[len(name) + 1 : stop]))
        rest = rest[stop + 1 :]


def _outside_strings(text: str) -> Iterator[tuple[int, str]]:
    """Positions and characters that stand in no quotes."""
    quote, position = "", 0
    while position < len(text):
        character = text[position]
        if quote:
            position += character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            yield position, character
        position += 1


def _closing(text: str) -> int | None:
    """Where the first bracket of the text closes."""
    depth = 0
    for position, character in _outside_strings(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character in ")]}":
            return position
    return None


def _arguments(inside: str) -> dict[str, Any]:
    """Of `name=value, …`; a name need not be one of Python's: `user-id`, `from`."""
    depth, edges = 0, [-1]
    for position, character in _outside_strings(inside):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character == ",":
            edges.append(position)
    edges.append(len(inside))
    parts = [inside[start + 1 : stop] for start, stop in itertools.pairwise(edges)]
    found: dict[str, Any] = {}
    for part in parts:
        if not part.strip():
            continue
        match = _ARGUMENT.fullmatch(part)
        if match is None or match["name"] in found:
            raise Unusable("a call is not written as a call")
        found[match["name"]] = _value(_expression(match["value"]))
    return found


def _expression(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unusable("a call is not written as a call") from None


def _value(node: ast.expr) -> Any:
    """A literal of Python or of JSON."""
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_value(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise Unusable("a call is not written as a call")
        return dict(zip(keys, map(_value, node.values), strict=True))
    try:
        value = ast.literal_eval(node)
    except ValueError:
        raise Unusable("a call is not written as a call") from None
    if not isinstance(value, str | int | float | bool | None):
        raise Unusable("a call is not written as a call")
    return value
