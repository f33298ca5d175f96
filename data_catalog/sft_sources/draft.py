"""A published conversation on its way into the recipe's template: `<reason>`, `<tool_call>`, `<answer>`.

Pure. What is said before a call becomes its reason, what is said to the user becomes the answer; the
reason of an answer stays empty, since this data has none. What cannot be said in the template raises
`Unusable` with a reason that is counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rstar2.config import ChatConfig
from rstar2.conversations import Conversation, Message, Role, check_conversation
from rstar2.prompt import SPELLED_TAG, ToolSchema
from rstar2.tool_calls import parse_tool_calls
from rstar2.types import ToolCall

_JSON_TYPES = {
    **{"dict": "object", "map": "object", "list": "array", "tuple": "array", "set": "array"},
    **{"str": "string", "int": "integer", "float": "number", "double": "number", "bool": "boolean"},
}


_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "result": "tool"}


class Unusable(ValueError):
    """A row is not used. The message is one of a few reasons, by which such rows are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened in a conversation."""

    kind: Literal["system", "user", "say", "call", "result"]
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A row as its loader read it."""

    events: tuple[Event, ...]
    tools: tuple[ToolSchema, ...] = ()

    @property
    def replies(self) -> list[str]:
        return [event.text for event in self.events if event.kind == "say"]

    @property
    def tools_called(self) -> list[str]:
        return [call.name for event in self.events for call in event.calls]


def write(draft: Draft) -> Conversation:
    """The conversation in the template, up to the assistant's last turn."""
    offered = {tool.name for tool in draft.tools}
    messages: list[Message] = []
    turn: list[Event] = []
    for event in draft.events:
        if event.kind in ("say", "call"):
            turn.append(event)
            continue
        messages += _assistant(turn, offered)
        turn = []
        messages.append(Message(role=_ROLES[event.kind], content=_text(event.text)))
    messages += _assistant(turn, offered)
    while messages and messages[-1].role != "assistant":
        messages.pop()
    try:
        check_conversation(messages, ChatConfig())
    except ValueError:
        raise Unusable("turns are out of order") from None
    return tuple(messages)


def _assistant(turn: Sequence[Event], offered: set[str]) -> list[Message]:
    """The assistant's turn: nothing, an answer, or calls after what was said before them."""
    if not turn:
        return []
    kinds = [event.kind for event in turn]
    if "say" in kinds[kinds.index("call") :] if "call" in kinds else False:
        raise Unusable("says something after a call in one turn")
    said = "\n\n".join(_text(event.text) for event in turn if event.kind == "say")
    calls = [call for event in turn for call in event.calls]
    if not calls:
        return [Message(role="assistant", content=f"<reason></reason><answer>{said}</answer>")]
    if any(call.name not in offered for call in calls):
        raise Unusable("calls a tool that is not offered")
    content = f"<reason>{said}</reason>" + "".join(map(_call, calls))
    if parse_tool_calls(content) != tuple(calls):
        raise Unusable("a call does not read back")
    return [Message(role="assistant", content=content)]


def _call(call: ToolCall) -> str:
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    if SPELLED_TAG.search(body):
        raise Unusable("spells a tag of the template")
    return f"<tool_call>\n{body}\n</tool_call>"


def _text(text: str) -> str:
    text = text.strip()
    if not text:
        raise Unusable("empty message")
    if SPELLED_TAG.search(text):
        raise Unusable("spells a tag of the template")
    return text


def read_json(text: object, what: str) -> Any:
    """The value that a column holds as JSON text."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        raise Unusable(f"{what} is not JSON") from None


def tool_schemas(tools: object) -> tuple[ToolSchema, ...]:
    """Of a list of `{name, description, parameters}`, also inside OpenAI's `function`."""
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise Unusable("tools are no list of signatures")
    return tuple(_schema(tool.get("function", tool)) for tool in tools)


def _schema(tool: Mapping[str, Any]) -> ToolSchema:
    name, parameters = tool.get("name"), tool.get("parameters") or {}
    if not isinstance(name, str) or not isinstance(parameters, Mapping):
        raise Unusable("tools are no list of signatures")
    schema = {"type": "object", "properties": {}} | _json_schema(parameters)
    return ToolSchema(name=name, description=str(tool.get("description") or ""), parameters=schema)


def _json_schema(value: Any) -> Any:
    """The same with the names of JSON schema where a set writes Python's, as in `"type": "dict"`."""
    if isinstance(value, list):
        return [_json_schema(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: _JSON_TYPES.get(part, part)
        if key == "type" and isinstance(part, str)
        else _json_schema(part)
        for key, part in value.items()
        if part is not None  # a column of structs holds every key of every row
    }


def tool_call(name: object, arguments: object) -> ToolCall:
    """A call of parts that JSON gave."""
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise Unusable("a call is no name with arguments")
    return ToolCall(name=name, arguments=dict(arguments))
