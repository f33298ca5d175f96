from __future__ import annotations

import math

import pytest
from rollout_builders import make_group, make_rollout, make_sample, make_turn

from rstar2.batching import (
    build_samples,
    micro_batches,
    padded_width,
    rollout_to_sample,
    shuffled_batches,
    split_updates,
)
from rstar2.types import Batch, Group


def test_a_sample_is_prompt_completions_and_observations_with_the_mask_on_sampled_tokens() -> None:
    rollout = make_rollout(
        prompt=[1, 2],
        turns=[
            make_turn([10, 11], logprobs=[-0.1, -0.2], statuses=["ok"], observation=[20, 21]),
            make_turn([12], logprobs=[-0.3]),
        ],
    )
    sample = rollout_to_sample(rollout, advantage=0.5, loss_weight=0.25)
    assert sample.token_ids.tolist() == [1, 2, 10, 11, 20, 21, 12]
    assert sample.loss_mask.tolist() == [False, False, True, True, False, False, True]
    assert sample.behaviour_logprobs.tolist() == pytest.approx([0, 0, -0.1, -0.2, 0, 0, -0.3])
    assert (sample.advantage, sample.loss_weight) == (0.5, 0.25)


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_logprob_that_is_not_finite_clears_its_mask(bad: float) -> None:
    rollout = make_rollout(prompt=[1], turns=[make_turn([5, 6], logprobs=[bad, -0.5])])
    sample = rollout_to_sample(rollout, advantage=1.0, loss_weight=1.0)
    assert sample.loss_mask.tolist() == [False, False, True]
    assert sample.behaviour_logprobs.tolist() == [0.0, 0.0, -0.5]


@pytest.mark.parametrize(
    ("num_logprobs", "turn", "seen"),
    [
        ((1, 1), 0, r"1 behaviour logprobs for 2 sampled tokens"),
        ((3, 0), 0, r"3 behaviour logprobs for 2 sampled tokens"),
        ((1, 2), 0, r"1 behaviour logprobs for 2 sampled tokens"),
        ((2, 0), 1, r"0 behaviour logprobs for 1 sampled tokens"),
    ],
)
def test_logprobs_that_do_not_match_the_tokens_of_a_turn_are_refused(
    num_logprobs: tuple[int, int], turn: int, seen: str
) -> None:
    """Also where the sums over the turns agree."""
    first, second = ([-0.5] * num for num in num_logprobs)
    rollout = make_rollout(
        "r7", turns=[make_turn([5, 6], logprobs=first), make_turn([7], logprobs=second)]
    )
    with pytest.raises(ValueError, match=f"'r7', turn {turn}: {seen}"):
        rollout_to_sample(rollout, advantage=1.0, loss_weight=1.0)


def test_an_empty_response_becomes_a_sample_without_loss() -> None:
    sample = rollout_to_sample(make_rollout(turns=[]), advantage=-1.0, loss_weight=1.0)
    assert sample.token_ids.tolist() == [1, 2]
    assert not sample.loss_mask.any()


def test_weights_divide_by_the_groups_sampled_tokens_then_by_the_groups() -> None:
    short = Group(
        problem_id="a",
        rollouts=(
            make_rollout("a0", problem_id="a", turns=[make_turn([5])]),
            make_rollout("a1", problem_id="a", turns=[make_turn([5, 6, 7])], reward=0.0),
        ),
    )
    samples = build_samples([short, make_group([1.0, 0.0], problem_id="b")])
    assert [s.loss_weight for s in samples] == [1 / 8, 1 / 8, 1 / 16, 1 / 16]
    assert [s.advantage for s in samples] == [1.0, -1.0, 1.0, -1.0]


def test_a_rollout_without_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="has no reward"):
        build_samples([make_group([1.0, None])])


def test_each_sample_keeps_its_own_reward_in_a_large_batch() -> None:
    groups = [make_group([1.0, 0.0, 0.0], problem_id=f"p{n:03d}") for n in range(70)]
    samples = build_samples(groups)
    assert [s.rollout_id for s in samples if s.advantage > 0] == [f"p{n:03d}/00" for n in range(70)]


def batch_of(*problem_ids: str) -> Batch:
    samples = tuple(
        make_sample([1, 2], [0, 1], rollout_id=f"{p}/{n}", problem_id=p, loss_weight=0.1)
        for p in problem_ids
        for n in range(2)
    )
    return Batch(stage="rl-1", step=1, policy_version=0, samples=samples)


def test_updates_hold_whole_groups_in_turn_and_are_weighted_as_their_own_batch() -> None:
    first, second = split_updates(batch_of("a", "b", "c"), 2)
    assert [s.rollout_id for s in first] == ["a/0", "a/1", "c/0", "c/1"]
    assert [s.rollout_id for s in second] == ["b/0", "b/1"]
    assert [s.loss_weight for s in first] == pytest.approx([0.15] * 4)
    assert [s.loss_weight for s in second] == pytest.approx([0.3] * 2)


def test_more_updates_than_groups_give_one_group_each() -> None:
    assert [len(part) for part in split_updates(batch_of("a", "b"), 4)] == [2, 2]


def test_one_update_is_the_batch_itself() -> None:
    batch = batch_of("a", "b")
    assert split_updates(batch, 1) == [batch.samples]


def test_an_empty_batch_has_no_updates() -> None:
    assert split_updates(batch_of(), 2) == []


@pytest.mark.parametrize(("length", "width"), [(1, 8), (8, 8), (9, 16), (128, 128)])
def test_widths_are_multiples_of_eight(length: int, width: int) -> None:
    assert padded_width(length) == width


def test_micro_batches_fit_the_budget_of_padded_tokens() -> None:
    samples = [make_sample([1] * n, [0] * n, rollout_id=f"r{n}") for n in (3, 20, 8, 9, 16, 5)]
    batches = micro_batches(samples, 32)
    assert [[len(s.token_ids) for s in batch] for batch in batches] == [[3, 5, 8], [9, 16], [20]]


def test_a_sample_beyond_the_budget_gets_its_own_micro_batch_whole() -> None:
    samples = [make_sample([1] * n, [0] * n, rollout_id=f"r{n}") for n in (40, 8, 41)]
    batches = micro_batches(samples, 32)
    assert [[len(s.token_ids) for s in batch] for batch in batches] == [[8], [40], [41]]


def test_micro_batches_do_not_depend_on_the_order_of_samples() -> None:
    samples = [make_sample([1] * 4, [0] * 4, rollout_id=f"r{n}") for n in range(9)]
    orders = [
        [s.rollout_id for b in micro_batches(x, 24) for s in b] for x in (samples, samples[::-1])
    ]
    assert orders[0] == orders[1]


def test_sft_batches_hold_every_index_once_within_the_budget() -> None:
    lengths = [5, 30, 12, 8, 16, 7, 22, 9, 3, 31]
    batches = shuffled_batches(lengths, max_padded_tokens=64, seed=1)
    assert sorted(index for batch in batches for index in batch) == list(range(10))
    for batch in batches:
        assert len(batch) * padded_width(max(lengths[i] for i in batch)) <= 64


def test_sft_batches_differ_by_seed_only() -> None:
    lengths = [8] * 20
    first = shuffled_batches(lengths, max_padded_tokens=32, seed=1)
    assert first == shuffled_batches(lengths, max_padded_tokens=32, seed=1)
    assert first != shuffled_batches(lengths, max_padded_tokens=32, seed=2)
