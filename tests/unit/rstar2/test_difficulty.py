from __future__ import annotations

import pytest
from rollout_builders import make_group

from rstar2.config import FilterConfig
from rstar2.difficulty import DifficultyVerdict, difficulty_verdicts, filter_problems
from rstar2.types import Problem


def verdict(rewards: list[float | None], **config: int) -> DifficultyVerdict:
    return difficulty_verdicts([make_group(rewards)], FilterConfig(**config))[0]


def test_eight_of_eight_is_dropped() -> None:
    seen = verdict([1.0] * 8)
    assert (seen.decision, seen.num_correct, seen.num_decided) == ("drop", 8, 8)
    assert seen.reason == "solved 8 of 8 decided attempts: 8 or more are dropped"


@pytest.mark.parametrize("num_correct", [0, 1, 7])
def test_fewer_than_eight_are_kept(num_correct: int) -> None:
    assert verdict([1.0] * num_correct + [0.0] * (8 - num_correct)).decision == "keep"


def test_a_problem_never_solved_is_kept_and_says_so() -> None:
    assert verdict([0.0] * 8).reason == "never solved in 8 decided attempts"


def test_an_undecided_attempt_is_no_success() -> None:
    seen = verdict([1.0] * 7 + [None])
    assert (seen.decision, seen.num_correct, seen.num_decided) == ("keep", 7, 7)
    assert seen.reason == (
        "solved 7 of 7 decided attempts, 1 of 8 undecided or failed: too few to tell whether it is "
        "solved 8 times"
    )


def test_an_undecided_attempt_is_no_failure_either() -> None:
    seen = verdict([1.0] * 7 + [None], drop_at=7)
    assert seen.decision == "drop"
    assert verdict([1.0, 0.0, None, None]).pass_rate == 0.5


def test_undecided_attempts_do_not_matter_once_it_cannot_be_solved_often_enough() -> None:
    assert verdict([1.0] * 6 + [0.0, None]).reason == "solved 6 of 7 decided attempts: fewer than 8"


def test_without_a_decided_attempt_nothing_is_known() -> None:
    seen = verdict([None] * 8)
    assert (seen.decision, seen.pass_rate) == ("keep", None)


def test_kept_problems_carry_their_pass_rate() -> None:
    problems = [
        Problem(problem_id=name, question="q", answer="1", source="s") for name in ("a", "b", "c")
    ]
    verdicts = difficulty_verdicts(
        [
            make_group([1.0] * 8, problem_id="b"),
            make_group([1.0, 0.0] * 4, problem_id="a"),
        ],
        FilterConfig(),
    )
    kept = filter_problems(problems, verdicts)
    assert [(p.problem_id, p.pass_rate) for p in kept] == [("a", 0.5), ("c", None)]


def test_fewer_attempts_than_the_threshold_never_drop() -> None:
    seen = verdict([1.0] * 4)
    assert seen.decision == "keep"
    assert seen.reason.endswith("only 4 sampled: 8 correct are needed to drop")
