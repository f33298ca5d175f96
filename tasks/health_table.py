"""What a stage lost and redid, and how its resources were at its end, as a person reads it.

Pure: from what a ledger holds to Markdown. Knows neither Prefect nor an open resource.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra.health import ResourceHealth
from rstar2.types import Losses


def health_table(losses: Losses, healths: Sequence[ResourceHealth]) -> str:
    """A sentence and a table in Markdown; empty for a stage that recorded neither."""
    lines = ["", "", losses.sentence or "Nothing was lost."] if healths or losses.sentence else []
    if healths:
        lines += ["", "| resource at the end | ready | at once | seen |", "|-|-|-|-|"]
    for health in healths:
        ready = "yes" if health.is_ready else "no"
        seen = health.seen.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {health.name} | {ready} | {health.capacity} | {seen} |")
    return "\n".join(lines)
