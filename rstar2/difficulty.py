"""The difficulty filter (report §4.2, §4.3): problems that the policy always solves are dropped.

Reads the groups that the newest policy sampled, gives one verdict for each problem. Pure. Problems
that are never solved stay: the report removes the easy ones only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rstar2.config import FilterConfig
from rstar2.types import Group, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class DifficultyVerdict:
    """What became of one problem, and why."""

    problem_id: str
    num_correct: int
    num_decided: int
    """Attempts with a reward: undecided and failed ones are neither solved nor failures."""
    num_rollouts: int
    decision: Literal["keep", "drop"]
    reason: str

    @property
    def pass_rate(self) -> float | None:
        """Correct / decided; None where nothing was decided."""
        return self.num_correct / self.num_decided if self.num_decided else None


def difficulty_verdicts(
    groups: Sequence[Group], config: FilterConfig
) -> tuple[DifficultyVerdict, ...]:
    """One verdict for each group, in order: `drop` at `drop_at` correct rollouts or more."""
    return tuple(_verdict(group, config) for group in groups)


def filter_problems(
    problems: Sequence[Problem], verdicts: Sequence[DifficultyVerdict]
) -> tuple[Problem, ...]:
    """The kept problems in their order, each with its measured pass rate.

    A problem without a verdict, or without a decided attempt, keeps what was known of it.
    """
    by_id = {verdict.problem_id: verdict for verdict in verdicts}
    kept = []
    for problem in problems:
        verdict = by_id.get(problem.problem_id)
        if verdict is None or (verdict.decision == "keep" and verdict.pass_rate is None):
            kept.append(problem)
        elif verdict.decision == "keep":
            kept.append(replace(problem, pass_rate=verdict.pass_rate))
    return tuple(kept)


def _verdict(group: Group, config: FilterConfig) -> DifficultyVerdict:
    num_correct = sum(rollout.reward == 1.0 for rollout in group.decided)
    num_decided = len(group.decided)
    is_dropped = num_correct >= config.drop_at
    return DifficultyVerdict(
        problem_id=group.problem_id,
        num_correct=num_correct,
        num_decided=num_decided,
        num_rollouts=len(group.rollouts),
        decision="drop" if is_dropped else "keep",
        reason=_reason(num_correct, num_decided, len(group.rollouts), config),
    )


def _reason(num_correct: int, num_decided: int, num_rollouts: int, config: FilterConfig) -> str:
    solved = f"solved {num_correct} of {num_decided} decided attempts"
    if num_correct >= config.drop_at:
        return f"{solved}: {config.drop_at} or more are dropped"
    missing = num_rollouts - num_decided
    if num_rollouts < config.drop_at:
        return f"{solved}, only {num_rollouts} sampled: {config.drop_at} correct are needed to drop"
    if num_correct + missing >= config.drop_at:
        return (
            f"{solved}, {missing} of {num_rollouts} undecided or failed: too few to tell whether "
            f"it is solved {config.drop_at} times"
        )
    if num_correct == 0:
        return f"never solved in {num_decided} decided attempts"
    return f"{solved}: fewer than {config.drop_at}"
