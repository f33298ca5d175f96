"""The difficulty filter (report §4.2, §4.3): problems outside a band of correct attempts are dropped.

Counts the groups that the newest policy sampled, gives one verdict for each problem. Pure. By default
only problems that are always solved are dropped: the report removes the easy ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from rstar2.filter_config import FilterConfig
from rstar2.types import Group, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """What a policy made of one problem."""

    problem_id: str
    num_correct: int
    num_decided: int
    """Attempts with a reward: undecided and failed ones are neither solved nor failures."""
    num_rollouts: int

    @property
    def pass_rate(self) -> float | None:
        """Correct / decided; None where nothing was decided."""
        return self.num_correct / self.num_decided if self.num_decided else None


@dataclass(frozen=True, kw_only=True, slots=True)
class DifficultyVerdict:
    """What became of one problem, and why."""

    tries: Tries
    decision: Literal["keep", "drop"]
    is_undecided: bool
    """Kept since too few of its attempts were decided to tell on which side of the band it lies."""
    reason: str


def tries_of(group: Group) -> Tries:
    return Tries(
        problem_id=group.problem_id,
        num_correct=sum(rollout.reward == 1.0 for rollout in group.decided),
        num_decided=len(group.decided),
        num_rollouts=len(group.rollouts),
    )


def tries_from(row: Mapping[str, Any]) -> Tries:
    """From the row of a manifest: that of a chunk, or a verdict's."""
    return Tries(**{field.name: row[field.name] for field in fields(Tries)})


def verdict_row(verdict: DifficultyVerdict) -> dict[str, object]:
    """The verdict as a manifest has it."""
    return {
        **asdict(verdict.tries),
        "decision": verdict.decision,
        "is_undecided": verdict.is_undecided,
        "reason": verdict.reason,
        "pass_rate": verdict.tries.pass_rate,
    }


def difficulty_verdicts(
    tries: Sequence[Tries], config: FilterConfig
) -> tuple[DifficultyVerdict, ...]:
    """One verdict for each problem, in order.

    Attempts without a reward could have been right or wrong: a problem is dropped only where it
    lies outside the band either way.
    """
    return tuple(_verdict(row, config) for row in tries)


def filter_problems(
    problems: Sequence[Problem], verdicts: Sequence[DifficultyVerdict]
) -> tuple[Problem, ...]:
    """The kept problems in their order, each with its measured pass rate.

    A problem without a verdict, or without a decided attempt, keeps what was known of it.
    """
    by_id = {verdict.tries.problem_id: verdict for verdict in verdicts}
    kept = []
    for problem in problems:
        verdict = by_id.get(problem.problem_id)
        if verdict is None:
            kept.append(problem)
        elif verdict.decision == "keep":
            rate = verdict.tries.pass_rate
            kept.append(problem if rate is None else replace(problem, pass_rate=rate))
    return tuple(kept)


def _verdict(tries: Tries, config: FilterConfig) -> DifficultyVerdict:
    lowest, highest = config.band
    fewest = tries.num_correct
    most = fewest + max(config.num_rollouts, tries.num_rollouts) - tries.num_decided
    is_dropped = fewest > highest or most < lowest
    return DifficultyVerdict(
        tries=tries,
        decision="drop" if is_dropped else "keep",
        is_undecided=not is_dropped and not lowest <= fewest <= most <= highest,
        reason=_reason(tries, config, most),
    )


def _reason(tries: Tries, config: FilterConfig, most: int) -> str:
    """`most`: times it may have been solved, had every attempt been decided."""
    lowest, highest = config.band
    solved = f"solved {tries.num_correct} of {tries.num_decided} decided attempts"
    if tries.num_correct > highest:
        return f"{solved}: {highest + 1} or more are dropped"
    if most < lowest:
        return f"{solved}: fewer than {lowest} are dropped"
    if most > highest:
        return _too_few_to_drop(tries, solved, highest + 1)
    if tries.num_correct < lowest:
        return _too_few_to_drop(tries, solved, lowest)
    if lowest:
        return f"{solved}: within {lowest} to {highest}"
    if tries.num_correct == 0:
        return f"never solved in {tries.num_decided} decided attempts"
    return f"{solved}: fewer than {highest + 1}"


def _too_few_to_drop(tries: Tries, solved: str, threshold: int) -> str:
    missing = tries.num_rollouts - tries.num_decided
    why = f"{missing} of {tries.num_rollouts} undecided or failed"
    if not missing:
        why = f"only {tries.num_rollouts} sampled"
    return f"{solved}, {why}: too few to tell whether it is solved {threshold} times"
