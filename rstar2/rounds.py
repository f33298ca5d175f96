"""The rounds of a step: draw problems, sample their groups, draw again for those that teach nothing.

Pure but for the sampling, which the caller hands in. What is drawn depends on the groups seen so far
and on their order, never on which of them was finished first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rstar2.config import StageConfig
from rstar2.problems import draw_problems
from rstar2.types import Group, Problem

SampleGroups = Callable[[Sequence[Problem]], Sequence[Group]]


def groups_of_step(
    problems: Sequence[Problem],
    settings: StageConfig,
    *,
    stage: str,
    step: int,
    seed: int,
    sample: SampleGroups,
) -> tuple[list[Group], int]:
    """All groups that `sample` gave in the step, and the number of rounds.

    Round 0 draws `num_problems_per_step` problems. Each of up to `max_refill_rounds` further ones
    draws as many as there are groups too few that can be trained on; it ends early where there are
    enough, or no problem is left that the step did not draw.
    """
    groups: list[Group] = []
    for round_index in range(1 + settings.max_refill_rounds):
        missing = settings.num_problems_per_step - num_usable(groups, settings.group_size)
        drawn = draw_problems(
            problems,
            stage=stage,
            step=step,
            round=round_index,
            num=missing,
            shares=settings.shares,
            seed=seed,
            drawn=[group.problem_id for group in groups],
        )
        if not drawn:
            return groups, round_index
        groups += sample(drawn)
    return groups, 1 + settings.max_refill_rounds


def num_usable(groups: Sequence[Group], group_size: int) -> int:
    """Groups that can be trained on: signal, and at least G decided rollouts."""
    return sum(group.has_signal and len(group.decided) >= group_size for group in groups)
