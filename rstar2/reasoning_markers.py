"""Signs of reasoning in SFT data: the report trains on none before RL (report §4.1).

Reads a row's columns and what the assistant says in it; gives the name of the first sign found. Reasons
are left to RL: data that carries them would over-fit the policy and lengthen its first answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MIN_SELF_TALK = 3
"""So many turns of phrase of somebody thinking aloud make a chain of thought; one makes a style."""
_TOOLS = re.compile(r"(?:sequential_?)?(?:think(?:ing)?|thought|reason(?:ing)?|reflect)", re.I)
_COLUMNS = ("reasoning", "thinking", "reasoning_content", "reasoning_trace", "thought")
_OFF = frozenset({"", "off", "no", "none", "false", "0"})
_TAGS = re.compile(
    r"</?\s*(?:think(?:ing)?|reason(?:ing)?|thoughts?|scratchpad)\s*>|<\|(?:begin|end)_of_thought\|>",
    re.IGNORECASE,
)
_SELF_TALK = re.compile(
    r"\b(?:wait,|but wait\b|hmm+\b|on second thought|let me (?:re-?check|double[- ]check|verify|"
    r"reconsider|re-?think|think (?:about|step|again))|let's think step by step|alternatively, "
    r"(?:i|we|maybe|perhaps)\b|actually, (?:no|wait)\b)",
    re.IGNORECASE,
)


def reasoning_marker(
    row: Mapping[str, Any], replies: Iterable[str], tools_called: Iterable[str] = ()
) -> str | None:
    """The sign that a row teaches reasoning, or None.

    `row` has the published columns, `replies` is what the assistant says, `tools_called` the names
    of the tools that it calls.
    """
    for column in _COLUMNS:
        if str(row.get(column) or "").strip().lower() not in _OFF:
            return f"column {column}"
    if re.search(r"thinking\s+on\b", str(row.get("system_prompt") or ""), re.IGNORECASE):
        return "system prompt: thinking on"
    if any(_TOOLS.fullmatch(name) for name in tools_called):
        return "calls a thinking tool"
    for reply in replies:
        if _TAGS.search(reply):
            return "thinking tags"
        if r"\boxed{" in reply:
            return "boxed answer"
        if len(_SELF_TALK.findall(reply)) >= MIN_SELF_TALK:
            return "thinks aloud"
    return None
