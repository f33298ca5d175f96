"""The difficulty filter's manifests as rows: what its chunks measured, and what it decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from data_catalog.records import Manifest

DECISIONS = {"keep": "kept", "drop": "filtered"}


def pass_rate_rows(chunk: Manifest) -> Iterator[dict[str, object]]:
    """The columns of `pass_rates` that a chunk knows."""
    conditions = dict(chunk.values["measured"])
    conditions["checkpoint"] = conditions["checkpoint"]["uri"]
    for tries in chunk.values["tries"]:
        yield _tries(tries) | conditions


def verdict_rows(decided: Manifest) -> Iterator[dict[str, object]]:
    """The columns of `filter_verdicts` that a filter knows; one from before bands lacks some."""
    common = dict(decided.values.get("band", {}))
    common["checkpoint"] = decided.values["checkpoint"]["uri"]
    for verdict in decided.values["verdicts"]:
        yield (
            _tries(verdict)
            | common
            | {
                "decision": DECISIONS[verdict["decision"]],
                "is_undecided": verdict.get("is_undecided"),
                "reason": verdict["reason"],
            }
        )


def _tries(row: Mapping[str, Any]) -> dict[str, object]:
    names = ("problem_id", "num_decided", "num_correct")
    return {name: row[name] for name in names} | {"num_attempts": row["num_rollouts"]}
