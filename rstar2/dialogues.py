"""SFT conversations of other people's making: where each comes from, its tools, and as a file.

Reads and writes JSONL, one dialogue a row; turns them into tokens with a check that no other data needs.
What a dialogue says is decided elsewhere (`data_catalog.sft_sources`, `rstar2.rewriting`).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rstar2.chat import Chat
from rstar2.config import ChatConfig
from rstar2.conversations import Conversation, Message, SftDataError, conversation_of_rows
from rstar2.jsonl import listed, parse_line, shorter
from rstar2.prompt import ToolSchema
from rstar2.types import Mask, TokenIds, read_only

RENDERS_DIFFERENTLY = "a turn renders differently alone and in context"
TOO_LONG = "longer than sft.batch_tokens"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialogue:
    """A conversation that poses no problem of ours: the assistant is asked for no box."""

    dialogue_id: str
    """`<source>/<row>`."""
    source: str
    messages: Conversation
    tools: tuple[ToolSchema, ...] = ()
    original: Conversation | None = None
    """The messages before they were rewritten."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RenderedDialogues:
    """What can be trained on, and how many could not, by reason."""

    rows: tuple[tuple[TokenIds, Mask], ...]
    dropped: Mapping[str, int]


def render_dialogues(
    dialogues: Iterable[Dialogue], chat: Chat, *, max_tokens: int
) -> RenderedDialogues:
    """Tokens and loss masks. One that is not certain to be masked right is dropped and counted."""
    rows: list[tuple[TokenIds, Mask]] = []
    dropped: Counter[str] = Counter()
    for dialogue in dialogues:
        rendered = render_once(chat.of_dialogue(dialogue.tools), dialogue.messages)
        if rendered is None:
            dropped[RENDERS_DIFFERENTLY] += 1
        elif len(rendered[0]) > max_tokens:
            dropped[TOO_LONG] += 1
        else:
            rows.append(rendered)
    return RenderedDialogues(rows=tuple(rows), dropped=dict(dropped))


def render_once(chat: Chat, messages: Sequence[Message]) -> tuple[TokenIds, Mask] | None:
    """Tokens of the whole conversation, encoded once, and the mask from the assistant's characters.

    None where a turn has other tokens in it than alone, as a rollout would have them: text that
    spells a tag, or that grows together with what stands beside it.
    """
    text, alone = "", []
    spans: list[tuple[int, int]] = []
    for is_sampled, ids in chat.conversation_parts(messages):
        start, text = len(text), text + chat.decode(read_only(ids, np.int32))
        alone += ids
        if is_sampled:
            spans.append((start, len(text)))
    token_ids, offsets = chat.encode_whole(text)
    if token_ids != alone:
        return None
    return read_only(token_ids, np.int32), _mask_of_characters(offsets, spans)


def _mask_of_characters(
    offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> Mask:
    """True on the tokens whose characters lie in one of the spans; both are in order."""
    starts = np.array([start for start, _ in offsets])
    mask = np.zeros(len(offsets), dtype=np.bool_)
    for start, stop in spans:
        mask |= (starts >= start) & (starts < stop)
    return read_only(mask, np.bool_)


def is_dialogue_file(path: Path) -> bool:
    """Whether the rows of a conversation file name their tools: then they are dialogues."""
    with path.open("rb") as file:
        first = next((line for line in file if line.strip()), b"")
    row = parse_line(first, is_first=True)
    return isinstance(row, Mapping) and "tools" in row


def write_dialogues(path: Path, dialogues: Iterable[Dialogue]) -> None:
    """One JSON row each; written beside `path`, then renamed over it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with temporary.open("w", encoding="utf-8") as file:
        for dialogue in dialogues:
            file.write(json.dumps(_row(dialogue), ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def read_dialogues(path: Path, config: ChatConfig) -> tuple[Dialogue, ...]:
    """Raises `SftDataError` listing up to 20 bad rows by line."""
    found: list[Dialogue] = []
    malformed: list[str] = []
    for number, row in _rows(path):
        try:
            found.append(_dialogue(row, config))
        except (KeyError, TypeError, ValueError) as error:
            malformed.append(f"  line {number}: {_why(error)}")
    if malformed:
        raise SftDataError(
            f"{path}: {len(malformed)} malformed rows, nothing was started:\n"
            + "\n".join(listed(malformed))
            + "\nExpected rows as `rstar2 sft mix` writes them. Make the file again."
        )
    if not found:
        raise SftDataError(f"{path} has no dialogues: expected rows with messages and tools")
    return tuple(found)


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, parse_line(line, is_first=number == 1)


def _row(dialogue: Dialogue) -> dict[str, object]:
    row: dict[str, object] = {
        "dialogue_id": dialogue.dialogue_id,
        "source": dialogue.source,
        "tools": [
            {"name": t.name, "description": t.description, "parameters": t.parameters}
            for t in dialogue.tools
        ],
        "messages": _message_rows(dialogue.messages),
    }
    if dialogue.original is not None:
        row["original"] = _message_rows(dialogue.original)
    return row


def _message_rows(messages: Conversation) -> list[dict[str, str]]:
    return [{"role": m.role, "content": m.content} for m in messages]


def _dialogue(row: Mapping[str, Any] | str, config: ChatConfig) -> Dialogue:
    if isinstance(row, str):
        raise ValueError(row)
    original = row.get("original")
    return Dialogue(
        dialogue_id=str(row["dialogue_id"]),
        source=str(row["source"]),
        tools=tuple(
            ToolSchema(
                name=t["name"], description=t["description"], parameters=dict(t["parameters"])
            )
            for t in row["tools"]
        ),
        messages=conversation_of_rows(row["messages"], config),
        original=None if original is None else conversation_of_rows(original, config),
    )


def _why(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else shorter(str(error))
