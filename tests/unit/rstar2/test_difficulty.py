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


@pytest.mark.parametrize(
    ("num_correct", "pass_rate"), [(0, 0.0), (1, 0.125), (5, 0.625), (7, 0.875)]
)
def test_fewer_than_eight_are_kept_with_their_pass_rate(num_correct: int, pass_rate: float) -> None:
    seen = verdict([1.0] * num_correct + [0.0] * (8 - num_correct))
    assert (seen.decision, seen.pass_rate) == ("keep", pass_rate)


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
    assert verdict([1.0, 0.0, 0.0, 0.0, None, None]).pass_rate == 0.25


def test_undecided_attempts_do_not_matter_once_it_cannot_be_solved_often_enough() -> None:
    assert verdict([1.0] * 6 + [0.0, None]).reason == "solved 6 of 7 decided attempts: fewer than 8"


def test_without_a_decided_attempt_nothing_is_known() -> None:
    seen = verdict([None] * 8)
    assert (seen.decision, seen.pass_rate) == ("keep", None)


def test_kept_problems_carry_their_pass_rate() -> None:
    groups = {"b": [1.0] * 8, "a": [1.0] * 3 + [0.0] * 5}
    assert kept_of({"a": None, "b": None, "c": None}, groups) == {"a": 0.375, "c": None}


def test_what_a_source_knew_is_replaced_by_what_was_measured_and_by_nothing_else() -> None:
    known = {"measured": 0.25, "undecided": 0.25, "not-sampled": 0.25}
    groups = {"measured": [1.0] * 5 + [0.0] * 3, "undecided": [None] * 8}
    assert kept_of(known, groups) == {"measured": 0.625, "undecided": 0.25, "not-sampled": 0.25}


def kept_of(
    known: dict[str, float | None], groups: dict[str, list[float | None]]
) -> dict[str, float | None]:
    """Pass rate by id of the kept problems, in their order."""
    problems = [
        Problem(problem_id=name, question="q", answer="1", source="s", pass_rate=rate)
        for name, rate in known.items()
    ]
    sampled = [make_group(rewards, problem_id=name) for name, rewards in groups.items()]
    kept = filter_problems(problems, difficulty_verdicts(sampled, FilterConfig()))
    return {p.problem_id: p.pass_rate for p in kept}


def test_fewer_attempts_than_the_threshold_never_drop() -> None:
    seen = verdict([1.0] * 4)
    assert seen.decision == "keep"
    assert seen.reason.endswith("only 4 sampled: 8 correct are needed to drop")
