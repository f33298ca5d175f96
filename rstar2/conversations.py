"""SFT conversations: what they must be, and how those of a file are read.

Reads a JSONL file, rows `{"messages": [{"role": …, "content": …}, …]}`; gives checked
conversations. Nothing is skipped in silence: every row that cannot be rendered is listed by its
line. Does not make conversations (`sft_data`) and turns none into tokens (`chat`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rstar2.config import ChatConfig
from rstar2.jsonl import is_unicode, listed, parse_line, shorter

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
_FIRST = ("system", "user")
_AFTER = {
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


class SftDataError(ValueError):
    """A conversation file is wrong; the message names the lines, what was seen, what is expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message of an SFT conversation."""

    role: Role
    content: str
    """Of `tool`: the text of an observation, see `Chat.format_observation`. Of `assistant`: the
    whole sampled text without `<|im_end|>`; it begins with `<reason>` under `prefill_reason`."""


Conversation = tuple[Message, ...]


def prefill(config: ChatConfig) -> str:
    """What the prompt brings of each of the assistant's texts."""
    return "<reason>" if config.prefill_reason else ""


def check_conversation(messages: Sequence[Message], config: ChatConfig) -> None:
    """Raises `ValueError` for one that cannot be rendered.

    The roles alternate, the last message is the assistant's, and each of the assistant's begins
    with what the prompt brings.
    """
    start = prefill(config)
    expected: tuple[str, ...] = _FIRST
    for index, message in enumerate(messages):
        if message.role not in expected:
            raise ValueError(
                f"message {index} has the role {message.role!r}: expected {' or '.join(expected)}"
            )
        if message.role == "assistant" and not message.content.startswith(start):
            raise ValueError(
                f"message {index} (assistant) begins {message.content[:20]!r}: expected {start}, "
                "which the prompt brings under chat.prefill_reason; begin it so, or set it to false"
            )
        expected = _AFTER[message.role]
    if not messages or messages[-1].role != "assistant":
        raise ValueError("the last message must be the assistant's: there is nothing to learn from")


def read_conversations(path: Path, config: ChatConfig) -> tuple[Conversation, ...]:
    """The conversations of a JSONL file, each fit to be rendered.

    Raises `SftDataError` listing up to 20 bad rows by line.
    """
    if not path.is_file():
        raise SftDataError(
            f"no such file: {path}; expected a JSONL file of conversations (sft.data)"
        )
    found: list[Conversation] = []
    malformed: list[str] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = parse_line(line, is_first=number == 1) if line.strip() else None
            conversation = _conversation(row, config) if isinstance(row, Mapping) else row
            if isinstance(conversation, str):
                malformed.append(f"  line {number}: {conversation}")
            elif conversation is not None:
                found.append(conversation)
    if malformed:
        raise SftDataError(_malformed_message(path, malformed))
    if not found:
        raise SftDataError(f"{path} has no conversations: expected JSONL rows with `messages`")
    return tuple(found)


def _conversation(row: Mapping[str, Any], config: ChatConfig) -> Conversation | str:
    """The conversation of a row, or what is wrong with it."""
    if "messages" not in row:
        return f"'messages' is missing (keys seen: {_keys(row)}): expected a list of messages"
    try:
        return conversation_of_rows(row["messages"], config)
    except ValueError as error:
        return str(error)


def conversation_of_rows(rows: object, config: ChatConfig) -> Conversation:
    """The conversation of `[{"role": …, "content": …}, …]`; `ValueError` says what is wrong."""
    if not isinstance(rows, list):
        raise ValueError(f"'messages' is {shorter(repr(rows))}: expected a list of messages")
    messages: list[Message] = []
    for index, each in enumerate(rows):
        fault = _fault(each)
        if fault is not None:
            raise ValueError(f"message {index}: {fault}")
        messages.append(Message(role=each["role"], content=each["content"]))
    check_conversation(messages, config)
    return tuple(messages)


def _fault(row: object) -> str | None:
    """Why a row's entry is no message, or None where it is one."""
    if not isinstance(row, dict):
        return f"{shorter(repr(row))}: expected an object with role and content"
    if row.get("role") not in ROLES:
        seen = shorter(repr(row["role"])) if "role" in row else f"missing (keys seen: {_keys(row)})"
        return f"'role' is {seen}: expected {', '.join(ROLES)}"
    content = row.get("content")
    if not isinstance(content, str):
        seen = shorter(repr(content)) if "content" in row else "missing"
        return f"'content' is {seen}: expected text"
    if not is_unicode(content):
        return "'content' holds a lone surrogate: expected valid Unicode"
    others = [key for key in row if key not in ("role", "content")]
    if others:
        # A call beside the text would be dropped in silence.
        return (
            f"has {shorter(', '.join(others))} beside role and content: expected these two alone; "
            "write a call into the content, as in <tool_call>{…}</tool_call>"
        )
    return None


def _keys(row: Mapping[str, Any]) -> str:
    return shorter(", ".join(row) or "none")


def _malformed_message(path: Path, malformed: list[str]) -> str:
    return "\n".join(
        [
            f"{path}: {len(malformed)} malformed rows, nothing was started:",
            *listed(malformed),
            'Expected rows as {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", '
            '"content": "…"}]}. Correct or remove these rows.',
        ]
    )
