from __future__ import annotations

import pytest
from rollout_builders import make_group

from rstar2.difficulty import (
    DifficultyVerdict,
    Tries,
    difficulty_verdicts,
    filter_problems,
    tries_from,
    tries_of,
    verdict_row,
)
from rstar2.filter_config import FilterConfig
from rstar2.types import Problem


def verdict(rewards: list[float | None], **config: int) -> DifficultyVerdict:
    return difficulty_verdicts([tries_of(make_group(rewards))], FilterConfig(**config))[0]


def tried(num_correct: int, num_undecided: int = 0) -> list[float | None]:
    """Rewards of eight attempts; those that are neither are wrong."""
    wrong = [0.0] * (8 - num_correct - num_undecided)
    return [*[1.0] * num_correct, *wrong, *[None] * num_undecided]


def test_eight_of_eight_is_dropped() -> None:
    seen = verdict([1.0] * 8)
    assert (seen.decision, seen.tries.num_correct, seen.tries.num_decided) == ("drop", 8, 8)
    assert seen.reason == "solved 8 of 8 decided attempts: 8 or more are dropped"


@pytest.mark.parametrize(
    ("num_correct", "pass_rate"), [(0, 0.0), (1, 0.125), (5, 0.625), (7, 0.875)]
)
def test_fewer_than_eight_are_kept_with_their_pass_rate(num_correct: int, pass_rate: float) -> None:
    seen = verdict(tried(num_correct))
    assert (seen.decision, seen.tries.pass_rate, seen.is_undecided) == ("keep", pass_rate, False)


def test_a_problem_never_solved_is_kept_and_says_so() -> None:
    assert verdict([0.0] * 8).reason == "never solved in 8 decided attempts"


def test_an_undecided_attempt_is_no_success() -> None:
    seen = verdict(tried(7, num_undecided=1))
    assert (seen.decision, seen.is_undecided) == ("keep", True)
    assert (seen.tries.num_correct, seen.tries.num_decided) == (7, 7)
    assert seen.reason == (
        "solved 7 of 7 decided attempts, 1 of 8 undecided or failed: too few to tell whether it is "
        "solved 8 times"
    )


def test_an_undecided_attempt_is_no_failure_either() -> None:
    seen = verdict(tried(7, num_undecided=1), drop_at=7)
    assert (seen.decision, seen.is_undecided) == ("drop", False)
    assert verdict([1.0, 0.0, 0.0, 0.0, None, None]).tries.pass_rate == 0.25


def test_undecided_attempts_do_not_matter_once_it_cannot_be_solved_often_enough() -> None:
    seen = verdict([1.0] * 6 + [0.0, None])
    assert (seen.reason, seen.is_undecided) == (
        "solved 6 of 7 decided attempts: fewer than 8",
        False,
    )


def test_without_a_decided_attempt_nothing_is_known() -> None:
    seen = verdict([None] * 8)
    assert (seen.decision, seen.tries.pass_rate, seen.is_undecided) == ("keep", None, True)


@pytest.mark.parametrize(
    ("num_correct", "num_undecided", "decision", "is_undecided", "reason"),
    [
        (1, 0, "drop", False, "solved 1 of 8 decided attempts: fewer than 2 are dropped"),
        (2, 0, "keep", False, "solved 2 of 8 decided attempts: within 2 to 6"),
        (6, 0, "keep", False, "solved 6 of 8 decided attempts: within 2 to 6"),
        (7, 0, "drop", False, "solved 7 of 8 decided attempts: 7 or more are dropped"),
        (0, 1, "drop", False, "solved 0 of 7 decided attempts: fewer than 2 are dropped"),
        (7, 1, "drop", False, "solved 7 of 7 decided attempts: 7 or more are dropped"),
        (5, 1, "keep", False, "solved 5 of 7 decided attempts: within 2 to 6"),
        (
            *(1, 1, "keep", True),
            "solved 1 of 7 decided attempts, 1 of 8 undecided or failed: too few to tell whether "
            "it is solved 2 times",
        ),
        (
            *(6, 1, "keep", True),
            "solved 6 of 7 decided attempts, 1 of 8 undecided or failed: too few to tell whether "
            "it is solved 7 times",
        ),
    ],
)
def test_a_band_of_two_to_six(
    num_correct: int, num_undecided: int, decision: str, is_undecided: bool, reason: str
) -> None:
    seen = verdict(tried(num_correct, num_undecided), min_correct=2, max_correct=6)
    assert (seen.decision, seen.is_undecided, seen.reason) == (decision, is_undecided, reason)


@pytest.mark.parametrize(("num_correct", "decision"), [(0, "drop"), (1, "keep"), (8, "drop")])
def test_a_band_without_the_ends(num_correct: int, decision: str) -> None:
    assert verdict(tried(num_correct), min_correct=1).decision == decision


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
    sampled = [tries_of(make_group(rewards, problem_id=name)) for name, rewards in groups.items()]
    kept = filter_problems(problems, difficulty_verdicts(sampled, FilterConfig()))
    return {p.problem_id: p.pass_rate for p in kept}


def test_fewer_attempts_than_the_threshold_never_drop() -> None:
    seen = verdict([1.0] * 4)
    assert (seen.decision, seen.is_undecided) == ("keep", True)
    assert seen.reason == (
        "solved 4 of 4 decided attempts, only 4 sampled: too few to tell whether it is solved 8 "
        "times"
    )


def test_a_verdict_in_a_manifest_is_read_as_what_was_counted() -> None:
    row = verdict_row(verdict(tried(3, num_undecided=1)))
    assert row["pass_rate"] == 3 / 7
    assert tries_from(row) == Tries(problem_id="p0", num_correct=3, num_decided=7, num_rollouts=8)
