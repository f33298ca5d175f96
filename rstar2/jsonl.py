"""One line of a JSONL file, as an object or as the reason why it is none.

Reads bytes, as a file opened in binary mode gives them: a line ends at `\\n` alone. A JSON string may
hold Unicode's own line ends (U+2028, U+2029, U+0085) as they stand, and text that is split at those
is torn. Does not know what a row must hold (`conversations`, `data_catalog.sources`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MAX_LISTED = 20
"""Malformed rows that an error lists; the rest is counted."""
MAX_SHOWN = 80
"""Characters of a value that a message shows."""


def parse_line(line: bytes, *, is_first: bool) -> Mapping[str, Any] | str:
    """The object of a line, or what is wrong with it. The first line may begin with a BOM."""
    try:
        value = json.loads(line.decode("utf-8-sig" if is_first else "utf-8"))
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}: expected a JSON object in UTF-8"
    except RecursionError:
        return "nested too deeply: expected a flat JSON object"
    except ValueError as error:
        start = line[:40].decode(errors="replace").strip()
        return f"not JSON ({_fault(error)}): {start!r}; expected one JSON object a line"
    return object_or_reason(value)


def _fault(error: ValueError) -> str:
    """The parser's words without its own line number: it was given one line, whose number is known."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.colno}"
    return str(error)


def object_or_reason(value: object) -> Mapping[str, Any] | str:
    """A value of JSON where it is an object, else what it is instead."""
    return value if isinstance(value, dict) else f"{shorter(repr(value))}: expected a JSON object"


def shorter(text: str) -> str:
    """A text that fits into a message."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}…"


def is_unicode(text: str) -> bool:
    """Whether a text holds no half of a surrogate pair: such a text cannot be written down."""
    return text.isascii() or _SURROGATE.search(text) is None


_SURROGATE = re.compile("[\ud800-\udfff]")


def listed(malformed: list[str]) -> list[str]:
    """The first of the reasons, and how many more there are."""
    more = len(malformed) - MAX_LISTED
    return [*malformed[:MAX_LISTED], *([f"  and {more} more"] if more > 0 else [])]
