"""The chunks in which the difficulty filter samples, what they measured, and the band in force.

Reads the ledger and the problem set alone: no model, no rollouts, no Prefect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rstar2.config import ConfigError, RecipeConfig
from rstar2.difficulty import Tries, tries_from
from rstar2.filter_config import FilterConfig
from rstar2.profiles import override_config
from rstar2.rollout_files import read_problems
from rstar2.types import StageResult
from tasks.ledger import FILTER, Ledger


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Neighbours in the problem set that are sampled and committed together."""

    number: int
    """1-based."""
    first: int
    """Place in the set of its first problem."""
    stop: int
    is_last: bool


def chunks_to_sample(ledger: Ledger, config: RecipeConfig, start: StageResult) -> list[Chunk]:
    """The chunks of the problem set that are not committed yet, in order.

    They begin where the committed ones end, whatever size those had.
    """
    assert start.problem_set is not None, "the configuration has no filter before the first stage"
    num_problems = len(read_problems(ledger.store.local_path(start.problem_set)))
    size, done = config.filter.problems_per_chunk, ledger.steps(FILTER, "chunk")
    firsts = range(sum(len(m.values["tries"]) for m in done), num_problems, size)
    return [
        Chunk(
            number=number,
            first=first,
            stop=min(first + size, num_problems),
            is_last=first + size >= num_problems,
        )
        for number, first in enumerate(firsts, start=len(done) + 1)
    ]


def measured_tries(ledger: Ledger) -> tuple[Tries, ...]:
    """Every problem that was tried, in the order of its set.

    A filter that ended names them with its verdicts; one from before there were chunks only there.
    """
    decided = ledger.find("filter", stage=FILTER)
    if decided is not None:
        return tuple(tries_from(row) for row in decided.values["verdicts"])
    chunks = ledger.steps(FILTER, "chunk")
    return tuple(tries_from(row) for chunk in chunks for row in chunk.values["tries"])


def is_measured(ledger: Ledger) -> bool:
    """Whether every problem was tried."""
    chunks = ledger.steps(FILTER, "chunk")
    return bool(chunks) and bool(chunks[-1].values["is_last"])


def filter_in_force(ledger: Ledger, config: RecipeConfig) -> FilterConfig:
    """The run's filter, with the band that was applied, or that a person answered its hold with."""
    answers = [ledger.find("answer", stage=stage) for stage in ledger.config().stages]
    for manifest in (ledger.find("filter", stage=FILTER), *answers):
        if manifest is not None and (band := manifest.values.get("band")):
            return config.filter.model_copy(update=band)
    return config.filter


BAND_KEYS = ("filter.min_correct", "filter.max_correct", "filter.drop_at")


def with_band(config: RecipeConfig, overrides: Sequence[str]) -> RecipeConfig:
    """The run's own configuration with another band; what changes anything else is refused."""
    for override in overrides:
        if override.partition("=")[0].strip() not in BAND_KEYS:
            raise ConfigError(
                f"--set {override!r}: only the band can be another one, the rest was measured; "
                f"expected {BAND_KEYS[0]}=COUNT or {BAND_KEYS[1]}=COUNT"
            )
    return override_config(config, overrides)
