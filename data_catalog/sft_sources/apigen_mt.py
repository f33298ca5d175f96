"""APIGen-MT: agents of a shop and an airline, several turns each.

Columns `conversations` (`from`: human, gpt, function_call, observation; `value`), `tools` (JSON text),
`system` (the domain's policy), 5,000 rows in one JSON array:
https://huggingface.co/datasets/Salesforce/APIGen-MT-5k. Not run on the real file.

Its domains are those of tau-bench, whose tool `think` takes a thought and gives nothing back. That is
reasoning: the tool, its calls and their empty results are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_catalog.sft_sources.draft import (
    Draft,
    Event,
    Unusable,
    read_json,
    tool_call,
    tool_schemas,
)

THINK = "think"
COLUMNS = ("conversations", "tools", "system")


def convert(row: Mapping[str, Any]) -> Draft:
    """The policy stays: what the agent does depends on it."""
    system = str(row["system"] or "")
    events = [Event(kind="system", text=system)] if system.strip() else []
    events += _without_thoughts([_event(turn) for turn in row["conversations"]])
    tools = tool_schemas(read_json(row["tools"], "tools"))
    return Draft(events=tuple(events), tools=tuple(t for t in tools if t.name != THINK))


def _without_thoughts(events: list[Event]) -> list[Event]:
    kept: list[Event] = []
    is_after_thought = False
    for event in events:
        is_thought = any(call.name == THINK for call in event.calls)
        if not is_thought and not (is_after_thought and event.kind == "result"):
            kept.append(event)
        is_after_thought = is_thought
    return kept


def _event(turn: Mapping[str, Any]) -> Event:
    speaker, text = turn["from"], str(turn["value"])
    match speaker:
        case "human":
            return Event(kind="user", text=text)
        case "gpt":
            return Event(kind="say", text=text)
        case "observation":
            return Event(kind="result", text=text)
        case "function_call":
            call = read_json(text, "a call")
            if not isinstance(call, Mapping):
                raise Unusable("a call is no name with arguments")
            arguments = read_json(call.get("arguments", {}), "a call's arguments")
            return Event(kind="call", calls=(tool_call(call.get("name"), arguments),))
    raise Unusable("an unknown speaker")
