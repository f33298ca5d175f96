from __future__ import annotations

from rollout_builders import make_step

from rstar2.retention import best_step, kept_steps

RISE_AND_FALL = [make_step(n + 1, reward=r) for n, r in enumerate([0.1, 0.5, 0.7, 0.3, 0.1, 0.0])]
ALL = [1, 2, 3, 4, 5, 6]


def test_the_best_step_ends_the_window_with_the_highest_reward() -> None:
    assert best_step(RISE_AND_FALL, ALL, window=2) == 3


def test_only_saved_steps_can_be_the_best() -> None:
    assert best_step(RISE_AND_FALL, [2, 4, 6], window=2) == 4


def test_a_window_that_is_not_full_is_no_best() -> None:
    assert best_step(RISE_AND_FALL[:1], [1], window=2) is None


def test_of_equal_windows_the_earliest_is_the_best() -> None:
    flat = [make_step(n, reward=0.5) for n in ALL]
    assert best_step(flat, ALL, window=2) == 2


def test_steps_without_a_decided_rollout_are_passed_over() -> None:
    """Step 4's reward of 0.0 is no reward: the window that ends at step 5 is that of 3 and 5."""
    rewards = [0.1, 0.2, 0.6, 0.0, 0.8, 0.5]
    series = [
        make_step(n + 1, reward=reward, num_undecided=384 if n == 3 else 0)
        for n, reward in enumerate(rewards)
    ]
    assert best_step(series, ALL, window=2) == 5


def test_the_newest_two_and_the_best_are_kept() -> None:
    assert kept_steps(RISE_AND_FALL, ALL, window=2) == {3, 5, 6}


def test_without_rewards_the_newest_two_are_kept() -> None:
    assert kept_steps([], [350, 700, 1050], window=1) == {700, 1050}


def test_a_best_step_was_kept_at_every_step_since() -> None:
    for end in range(3, 7):
        assert 3 in kept_steps(RISE_AND_FALL[:end], ALL[:end], window=2)
