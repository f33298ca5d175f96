"""Llama-Nemotron post-training data, its chat part with reasoning off.

Columns `input` (a list of `role` and `content`; in the first release one text in Llama's own template),
`output`, `category`, `reasoning` (`on`, `off`), `system_prompt`, `generator` and others; 39.8K rows of
`SFT/chat`: https://huggingface.co/datasets/nvidia/Llama-Nemotron-Post-Training-Dataset. Not run on the
real file. The report has its prompts rewritten (`rstar2 sft rewrite`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from data_catalog.sft_sources.draft import Draft, Event, Unusable
from data_catalog.sft_sources.tulu import events_of_messages

COLUMNS = ("input", "output", "category", "reasoning", "system_prompt")
_HEADER = re.compile(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>")
_MARKS = re.compile(r"<\|(?:begin_of_text|eot_id|end_of_text)\|>")
_SWITCH = re.compile(r"detailed thinking (?:on|off)", re.IGNORECASE)
"""A system text that only turns reasoning on or off is no part of the conversation."""


def convert(row: Mapping[str, Any]) -> Draft:
    if row["category"] != "chat":
        raise Unusable("not of the category chat")
    messages = row["input"]
    events = events_of_messages(_messages(messages) if isinstance(messages, str) else messages)
    said = [e for e in events if not (e.kind == "system" and _SWITCH.fullmatch(e.text.strip()))]
    output = _MARKS.sub("", str(row["output"] or ""))
    return Draft(events=(*said, Event(kind="say", text=output)))


def _messages(text: str) -> list[dict[str, str]]:
    """The messages of a text in Llama's template; its last header is that of the reply."""
    parts = _HEADER.split(_MARKS.sub("", text))
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    messages = [{"role": role, "content": content} for role, content in pairs]
    if not messages:
        return [{"role": "user", "content": text}]
    return messages[:-1] if not messages[-1]["content"].strip() else messages
