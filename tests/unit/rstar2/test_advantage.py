from __future__ import annotations

import math

import pytest

from rstar2.advantage import group_advantages


def test_one_success_of_four_by_the_population_deviation() -> None:
    expected = [math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3)]
    assert group_advantages([1.0, 0.0, 0.0, 0.0]) == pytest.approx(expected)


def test_half_successes_give_plus_and_minus_one_at_any_size() -> None:
    assert group_advantages([1.0, 0.0]) == [1.0, -1.0]
    assert group_advantages([1.0, 0.0] * 8) == [1.0, -1.0] * 8


@pytest.mark.parametrize("rewards", [[0.0] * 8, [1.0] * 16, [0.1] * 3])
def test_equal_rewards_give_zeros(rewards: list[float]) -> None:
    assert group_advantages(rewards) == [0.0] * len(rewards)


def test_rewards_that_differ_by_rounding_stay_near_zero() -> None:
    """Without the floor under the deviation these would be +1 and -1."""
    assert group_advantages([0.1 + 0.2, 0.3]) == pytest.approx([0.0, 0.0], abs=1e-9)


def test_advantages_sum_to_zero() -> None:
    assert sum(group_advantages([1.0] * 3 + [0.0] * 13)) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("rewards", [[], [1.0]])
def test_a_group_without_another_to_compare_with_is_refused(rewards: list[float]) -> None:
    with pytest.raises(ValueError, match="two or more finite rewards"):
        group_advantages(rewards)


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="two or more finite rewards"):
        group_advantages([1.0, math.nan])
