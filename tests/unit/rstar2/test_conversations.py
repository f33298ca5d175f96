"""Conversation files: what is read as it stands, what is refused and how it is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2.config import ChatConfig
from rstar2.conversations import Message, SftDataError, read_conversations

CONFIG = ChatConfig(style="bare", prefill_reason=False)
USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}


def write_file(path: Path, *rows: object) -> Path:
    """Each row in a line of its own, as bytes as they are or as JSON that escapes nothing."""
    lines = [
        row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode()
        for row in rows
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def talk(*messages: object) -> dict[str, object]:
    return {"messages": list(messages), "source": "ignored"}


def test_a_conversation_file_is_read(tmp_path: Path) -> None:
    path = write_file(tmp_path / "talks.jsonl", talk(USER, ASSISTANT), b"", talk(USER, ASSISTANT))
    expected = (
        Message(role="user", content="Hi"),
        Message(role="assistant", content="Hello"),
    )
    assert read_conversations(path, CONFIG) == (expected, expected)


def test_a_byte_order_mark_and_windows_line_ends_are_no_text(tmp_path: Path) -> None:
    row = json.dumps(talk(USER, ASSISTANT)).encode()
    path = write_file(tmp_path / "talks.jsonl", b"\xef\xbb\xbf" + row + b"\r", row + b"\r")
    assert len(read_conversations(path, CONFIG)) == 2


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85", "\x1c", "\x0b", "\x0c"])
def test_a_line_end_of_unicode_inside_a_string_splits_nothing(tmp_path: Path, inside: str) -> None:
    text = f"one{inside}two"
    answer = {"role": "assistant", "content": text}
    path = write_file(tmp_path / "talks.jsonl", talk(USER, answer), talk(USER, ASSISTANT))
    assert [talk[1].content for talk in read_conversations(path, CONFIG)] == [text, "Hello"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"{", "not JSON"),
        (b'{"a": }', r"not JSON \(Expecting value at character 7\)"),
        (b"[1]", r"\[1\]: expected a JSON object"),
        (b'{"messages": "\xff"}', "not UTF-8 at byte 14"),
        (b"[" * 200_000, "nested too deeply"),
        ({"message": []}, r"'messages' is missing \(keys seen: message\): expected a list"),
        ({"messages": None}, "'messages' is None: expected a list"),
        ({"messages": {"role": "user"}}, "'messages' is .*: expected a list"),
        ({"messages": []}, "the last message must be the assistant's"),
        (talk("Hi"), "message 0: 'Hi': expected an object with role and content"),
        (talk({"content": "Hi"}), r"message 0: 'role' is missing \(keys seen: content\)"),
        (talk(USER, {"role": "model", "content": "x"}), "message 1: 'role' is 'model': expected "),
        (talk({"role": ["user"], "content": "x"}), r"message 0: 'role' is \['user'\]"),
        (talk(USER, {"role": "assistant"}), "message 1: 'content' is missing: expected text"),
        (talk(USER, {"role": "assistant", "content": None}), "message 1: 'content' is None"),
        (talk(USER, {"role": "assistant", "content": ["x"]}), r"message 1: 'content' is \['x'\]"),
        (talk(USER, {**ASSISTANT, "tool_calls": []}), "message 1: has tool_calls beside role"),
        (talk(USER), "the last message must be the assistant's"),
        (talk(USER, USER, ASSISTANT), "message 1 has the role 'user': expected assistant"),
        (talk(ASSISTANT), "message 0 has the role 'assistant': expected system or user"),
        (
            b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
            "message 0: 'content' holds a lone surrogate",
        ),
    ],
)
def test_a_bad_row_is_named_by_its_line_with_what_was_seen(
    tmp_path: Path, row: object, message: str
) -> None:
    path = write_file(tmp_path / "talks.jsonl", talk(USER, ASSISTANT), b" ", row)
    with pytest.raises(SftDataError, match=rf"line 3: {message}") as raised:
        read_conversations(path, CONFIG)
    assert str(raised.value).startswith(f"{path}: 1 malformed rows, nothing was started:")
    assert 'Expected rows as {"messages":' in str(raised.value)


def test_an_assistants_text_without_the_prefilled_reason_is_a_bad_row(tmp_path: Path) -> None:
    path = write_file(tmp_path / "talks.jsonl", talk(USER, ASSISTANT))
    with pytest.raises(SftDataError, match=r"line 1: message 1 .*expected <reason>"):
        read_conversations(path, ChatConfig(prefill_reason=True))


def test_all_bad_rows_are_counted_and_twenty_listed(tmp_path: Path) -> None:
    path = write_file(tmp_path / "talks.jsonl", *[b"x"] * 30)
    with pytest.raises(SftDataError, match="30 malformed rows") as raised:
        read_conversations(path, CONFIG)
    assert "line 20:" in str(raised.value)
    assert "line 21:" not in str(raised.value)
    assert "and 10 more" in str(raised.value)


@pytest.mark.parametrize("rows", [(), (b"", b" ")])
def test_a_file_without_a_row_is_refused(tmp_path: Path, rows: tuple[bytes, ...]) -> None:
    with pytest.raises(SftDataError, match="has no conversations"):
        read_conversations(write_file(tmp_path / "talks.jsonl", *rows), CONFIG)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(SftDataError, match=f"no such file: {path}"):
            read_conversations(path, CONFIG)
