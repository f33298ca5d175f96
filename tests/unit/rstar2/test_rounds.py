"""Refill rounds: what is drawn again, and when a step stops drawing."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_builders import make_group

from rstar2.config import StageConfig
from rstar2.problems import draw_problems
from rstar2.rounds import groups_of_step, num_usable
from rstar2.types import Group, Problem

POOL = tuple(
    Problem(problem_id=f"p{i:02d}", question=f"q{i}", answer="1", source="s") for i in range(20)
)
SIGNAL, SOLVED, UNDECIDED = (1.0, 0.0, 1.0, 0.0), (1.0,) * 4, (1.0, 0.0, None, None)


class Policy:
    """Gives every problem the rewards of its round, and remembers what it was asked."""

    def __init__(self, *rounds: Sequence[Sequence[float | None]]) -> None:
        self.rounds = rounds
        self.asked: list[list[str]] = []

    def sample(self, problems: Sequence[Problem]) -> list[Group]:
        rewards = self.rounds[len(self.asked)]
        self.asked.append([p.problem_id for p in problems])
        return [
            make_group(row, problem_id=p.problem_id)
            for p, row in zip(problems, rewards, strict=True)
        ]


def collect(
    policy: Policy, *, pool: Sequence[Problem] = POOL, max_refill_rounds: int = 2
) -> tuple[list[Group], int]:
    settings = StageConfig(
        num_problems_per_step=4,
        num_rollouts=4,
        group_size=3,
        max_refill_rounds=max_refill_rounds,
    )
    return groups_of_step(pool, settings, stage="rl-1", step=3, seed=7, sample=policy.sample)


def test_a_step_whose_groups_all_have_signal_is_one_round() -> None:
    policy = Policy([SIGNAL] * 4)
    groups, num_rounds = collect(policy)
    assert ([g.problem_id for g in groups], num_rounds) == (policy.asked[0], 1)
    assert len(policy.asked) == 1


def test_each_round_draws_as_many_as_there_are_groups_too_few() -> None:
    policy = Policy([SIGNAL, SOLVED, UNDECIDED, SOLVED], [SIGNAL, SOLVED, SIGNAL], [SIGNAL])
    groups, num_rounds = collect(policy)
    assert [len(asked) for asked in policy.asked] == [4, 3, 1]
    assert num_rounds == 3
    assert num_usable(groups, 3) == 4
    assert len({g.problem_id for g in groups}) == 8


def test_groups_without_signal_stay_among_those_of_the_step() -> None:
    groups, _ = collect(Policy([SOLVED] * 4, [SIGNAL] * 4))
    assert [len(set(r.reward for r in g.rollouts)) for g in groups] == [1] * 4 + [2] * 4


def test_the_limit_of_rounds_ends_a_step_that_still_lacks_groups() -> None:
    groups, num_rounds = collect(Policy([SOLVED] * 4, [SOLVED] * 4), max_refill_rounds=1)
    assert (len(groups), num_rounds, num_usable(groups, 3)) == (8, 2, 0)


def test_without_refills_a_step_is_the_reports_plain_rejection() -> None:
    groups, num_rounds = collect(Policy([SOLVED] * 4), max_refill_rounds=0)
    assert (len(groups), num_rounds) == (4, 1)


def test_a_set_that_is_used_up_ends_the_step() -> None:
    policy = Policy([SOLVED] * 4, [SOLVED] * 2)
    groups, num_rounds = collect(policy, pool=POOL[:6])
    assert sorted(g.problem_id for g in groups) == [p.problem_id for p in POOL[:6]]
    assert num_rounds == 2


def test_what_a_round_draws_depends_on_what_was_drawn_and_on_nothing_else() -> None:
    policy = Policy([SOLVED, SIGNAL, SOLVED, SIGNAL], [SIGNAL] * 2)
    collect(policy)
    again = draw_problems(
        POOL,
        stage="rl-1",
        step=3,
        round=1,
        num=2,
        shares={},
        seed=7,
        drawn=sorted(policy.asked[0]),
    )
    assert policy.asked[1] == [p.problem_id for p in again]
