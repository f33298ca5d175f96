"""Glaive function calling v2: a conversation as one text, its arguments as JSON in single quotes.

Columns `system` (`SYSTEM: …`, then the signatures one after another) and `chat` (`USER:`, `ASSISTANT:`,
`FUNCTION RESPONSE:`, turns ended by `<|endoftext|>`), 113K rows:
https://huggingface.co/datasets/glaiveai/glaive-function-calling-v2. Not run on the real file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from data_catalog.sft_sources.draft import Draft, Event, Unusable, tool_call, tool_schemas

COLUMNS = ("system", "chat")
_TURN = re.compile(r"^[ \t]*(USER|ASSISTANT|FUNCTION RESPONSE):", re.MULTILINE)
_CALL = "<functioncall>"
_QUOTED = re.compile(r"'(?P<json>\{.*\})'\s*\}\s*$", re.DOTALL)
_NAME = re.compile(r'\{\s*"name"\s*:\s*"(?P<name>[^"]+)"\s*,\s*"arguments"\s*:\s*')


def convert(row: Mapping[str, Any]) -> Draft:
    """The system text says nothing but the signatures, so only these stay."""
    tools = tool_schemas(list(_signatures(str(row["system"]))))
    return Draft(events=tuple(_events(str(row["chat"]))), tools=tools)


def _signatures(system: str) -> Iterator[Any]:
    """The JSON objects that follow each other in the text."""
    position = system.find("{")
    while position >= 0:
        try:
            value, stop = json.JSONDecoder().raw_decode(system, position)
        except ValueError:
            raise Unusable("tools are not JSON") from None
        yield value
        position = system.find("{", stop)


def _events(chat: str) -> Iterator[Event]:
    parts = _TURN.split(chat)
    if parts[0].strip():
        raise Unusable("an unknown speaker")
    for speaker, text in zip(parts[1::2], parts[2::2], strict=True):
        text = text.replace("<|endoftext|>", "").strip()
        if speaker == "USER":
            yield Event(kind="user", text=text)
        elif speaker == "FUNCTION RESPONSE":
            yield Event(kind="result", text=text)
        else:
            yield from _assistant(text)


def _assistant(text: str) -> Iterator[Event]:
    said, mark, call = text.partition(_CALL)
    if said.strip() or not mark:
        yield Event(kind="say", text=said)
    if mark:
        yield Event(kind="call", calls=(tool_call(*_name_and_arguments(call.strip())),))


def _name_and_arguments(call: str) -> tuple[object, object]:
    """Of `{"name": "f", "arguments": '{"a": 1}'}`, which is not JSON, or of the same as JSON."""
    head = _NAME.match(call)
    if head is None:
        raise Unusable("a call is no name with arguments")
    rest = call[head.end() :]
    quoted = _QUOTED.fullmatch(rest)
    try:
        if quoted:
            arguments = json.loads(quoted["json"].replace(r"\'", "'"), strict=False)
        else:
            arguments = json.loads(call)["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        raise Unusable("a call's arguments is not JSON") from None
    return head["name"], arguments
