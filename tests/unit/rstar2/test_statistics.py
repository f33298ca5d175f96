from __future__ import annotations

import math

import pytest
from rollout_builders import make_group, make_rollout, make_turn

from rstar2.statistics import is_solved, rollout_statistics, score, wilson_interval
from rstar2.types import Group, RolloutStatus


def test_one_attempt_each_is_wilsons_interval() -> None:
    """8 of 10: Wilson's 95 % interval is 0.4902 to 0.9433."""
    seen = score("x", [make_group([float(n < 8)]) for n in range(10)])
    assert seen.mean == 0.8
    assert (seen.low, seen.high) == (
        pytest.approx(0.49016, abs=1e-5),
        pytest.approx(0.94332, abs=1e-5),
    )
    assert seen.standard_error == pytest.approx(math.sqrt(0.8 * 0.2 / 10))


def test_attempts_that_always_agree_tell_no_more_than_one() -> None:
    one = score("x", [make_group([float(n < 8)]) for n in range(10)])
    many = score("x", [make_group([float(n < 8)] * 16) for n in range(10)])
    assert (many.low, many.high) == pytest.approx((one.low, one.high))


def test_attempts_that_differ_as_by_chance_tell_more() -> None:
    """Problem means 1/4, 1/2, 3/4 around 1/2: variance 1/24, so 8 attempts a problem count as 6."""
    groups = [make_group([1.0] * n + [0.0] * (8 - n)) for n in (2, 4, 6)]
    seen = score("x", groups)
    assert seen.standard_error == pytest.approx(math.sqrt((1 / 24) / 3))
    assert (seen.low, seen.high) == pytest.approx(wilson_interval(0.5, 18))


def test_equal_problem_means_count_as_independent_attempts_at_most() -> None:
    seen = score("x", [make_group([1.0, 0.0]) for _ in range(5)])
    assert (seen.low, seen.high) == pytest.approx(wilson_interval(0.5, 10))


def test_all_solved_keeps_a_width() -> None:
    """Rule of Wilson at 100 % of 20 problems: the lower end is 20 / (20 + 1.96^2)."""
    seen = score("x", [make_group([1.0] * 4) for _ in range(20)])
    assert (seen.mean, seen.high) == (1.0, 1.0)
    assert seen.low == pytest.approx(20 / (20 + 1.959964**2), abs=1e-6)


def test_undecided_attempts_are_left_out_and_counted() -> None:
    """Means 2/3 and 0 of two problems with a decided attempt; the third enters no mean."""
    groups = [make_group([1.0, 1.0, 0.0, None]), make_group([0.0] * 4), make_group([None] * 4)]
    seen = score("x", groups)
    assert seen.mean == pytest.approx(1 / 3)
    assert (seen.num_problems, seen.num_attempts, seen.num_undecided) == (3, 12, 5)


def test_problems_count_alike_whatever_their_attempts() -> None:
    """Means 1/3 and 1: over attempts it would be 6 of 12."""
    groups = [make_group([1.0] * 3 + [0.0] * 6), make_group([1.0] * 3)]
    assert score("x", groups).mean == pytest.approx(2 / 3)


def test_without_a_decided_attempt_the_interval_is_everything() -> None:
    seen = score("x", [make_group([None])])
    assert (seen.low, seen.high) == (0.0, 1.0)
    assert score("x", []).num_problems == 0


def test_mean_tokens_and_truncation_are_over_all_attempts() -> None:
    cut = make_rollout("a", turns=[make_turn([1] * 7)], status=RolloutStatus.TRUNCATED_LENGTH)
    done = make_rollout("b", turns=[make_turn([1] * 3)])
    seen = score("x", [Group(problem_id="p", rollouts=(cut, done))])
    assert (seen.mean_response_tokens, seen.truncation_rate) == (5.0, 0.5)


def test_step_figures_count_groups_by_what_became_of_them() -> None:
    groups = [
        make_group([1.0, 0.0, 1.0, 0.0]),
        make_group([1.0, 1.0, 1.0, 1.0]),
        make_group([0.0, 0.0, 0.0, None]),
        make_group([1.0, None, None, None]),
    ]
    seen = rollout_statistics(groups, group_size=2)
    assert (seen["num_problems"], seen["num_rollouts"], seen["num_undecided"]) == (4, 16, 4)
    assert (seen["num_groups_without_signal"], seen["num_groups_too_small"]) == (2, 1)
    assert seen["reward"] == pytest.approx(7 / 12)
    assert seen["solved_rate"] == 0.25


@pytest.mark.parametrize(
    ("rewards", "solved"),
    [
        ([1.0] * 4, True),
        ([1.0] * 3 + [0.0], False),
        ([1.0] * 3 + [None], False),  # undecided or failed: not known to be solved
        ([None] * 4, False),
        ([0.0] * 4, False),
    ],
)
def test_a_problem_is_solved_when_every_rollout_was_correct(
    rewards: list[float | None], solved: bool
) -> None:
    assert is_solved(make_group(rewards)) is solved


def test_a_problem_without_rollouts_is_not_solved() -> None:
    assert not is_solved(make_group([]))


def test_truncation_counts_the_length_limit_over_all_rollouts() -> None:
    rollouts = (
        make_rollout("a", status=RolloutStatus.TRUNCATED_LENGTH, reward=0.0),
        make_rollout("b", status=RolloutStatus.TRUNCATED_TURNS, reward=0.0),
        make_rollout("c", status=RolloutStatus.FAILED, reward=None),
        make_rollout("d"),
    )
    seen = rollout_statistics([Group(problem_id="p", rollouts=rollouts)], group_size=2)
    assert (seen["truncation_rate"], seen["turn_limit_rate"]) == (0.25, 0.25)
    assert (seen["num_failed"], seen["num_undecided"]) == (1, 0)


def test_tool_figures_by_status() -> None:
    rollouts = (
        make_rollout("a", statuses=["ok", "error"]),
        make_rollout("b", statuses=["malformed", "ok"], num_answer_tags=2),
        make_rollout("c", statuses=["timeout", "unknown_tool"], reward=0.0),
        make_rollout("d", statuses=()),
    )
    seen = rollout_statistics([Group(problem_id="p", rollouts=rollouts)], group_size=2)
    assert seen["num_tool_calls"] == 6
    assert seen["tool_error_rate"] == pytest.approx(4 / 6)
    assert seen["tool_error_rate_positives"] == pytest.approx(2 / 4)
    assert seen["first_call_success_rate"] == pytest.approx(1 / 2)
    assert seen["valid_call_rate"] == pytest.approx(4 / 6)
    assert seen["format_penalty_positives"] == pytest.approx((0 + 0.5 + 0) / 3)


def test_a_step_without_rollouts_is_all_zeros() -> None:
    assert set(rollout_statistics([], group_size=2).values()) == {0}
