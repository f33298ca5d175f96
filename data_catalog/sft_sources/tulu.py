"""Tulu 3, instruction following with verifiable constraints.

Columns `id`, `prompt`, `messages` (`role`, `content`), `constraints`, 29,980 rows:
https://huggingface.co/datasets/allenai/tulu-3-sft-personas-instruction-following. Not run on the real
file. The report has its responses rewritten (`rstar2 sft rewrite`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_catalog.sft_sources.draft import Draft, Event, Unusable

COLUMNS = ("messages",)


def convert(row: Mapping[str, Any]) -> Draft:
    return Draft(events=tuple(events_of_messages(row["messages"])))


def events_of_messages(messages: Any) -> list[Event]:
    """Of `role` and `content`: system, user and assistant."""
    kinds: Mapping[str, Any] = {"system": "system", "user": "user", "assistant": "say"}
    if any(message["role"] not in kinds for message in messages):
        raise Unusable("an unknown speaker")
    return [Event(kind=kinds[m["role"]], text=str(m["content"] or "")) for m in messages]
