"""From kept groups to what a forward pass reads: samples, updates, micro-batches.

Pure. The normaliser of the report's E6 is divided into each sample here, so that the trainer sums
weighted tokens and knows nothing of groups; every later split leaves the sum as it is. Never cuts
a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rstar2.advantage import group_advantages
from rstar2.types import Batch, Group, Rollout, Sample, read_only

WIDTH_MULTIPLE = 8


def padded_width(num_tokens: int) -> int:
    """The width a sequence is padded to: the one place that says so."""
    return -(-num_tokens // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


def rollout_to_sample(rollout: Rollout, *, advantage: float, loss_weight: float) -> Sample:
    """The rollout as four arrays of one length, aligned and checked here and nowhere else.

    The mask is true exactly on sampled tokens, except that a behaviour logprob which is not finite
    clears its own; the logprob is 0.0 where the mask is false.
    """
    _check_turns(rollout)
    mask = rollout.loss_mask.copy()
    logprobs = np.zeros(len(mask), dtype=np.float32)
    if rollout.turns:
        logprobs[mask] = np.concatenate([turn.completion.logprobs for turn in rollout.turns])
    mask &= np.isfinite(logprobs)
    logprobs[~mask] = 0.0
    return Sample(
        rollout_id=rollout.rollout_id,
        problem_id=rollout.problem_id,
        token_ids=read_only(rollout.token_ids, np.int32),
        loss_mask=read_only(mask, np.bool_),
        behaviour_logprobs=read_only(logprobs, np.float32),
        advantage=advantage,
        loss_weight=loss_weight,
    )


def build_samples(kept: Sequence[Group]) -> tuple[Sample, ...]:
    """All rollouts of the kept groups, with advantage (E7) and weight (E6).

    The weight is 1 / (sampled tokens of the group's kept rollouts x number of groups).
    """
    samples: list[Sample] = []
    for group in kept:
        rewards = [_reward(rollout) for rollout in group.rollouts]
        num_tokens = sum(rollout.num_sampled_tokens for rollout in group.rollouts)
        weight = 1.0 / (max(1, num_tokens) * len(kept))
        samples += [
            rollout_to_sample(rollout, advantage=advantage, loss_weight=weight)
            for rollout, advantage in zip(group.rollouts, group_advantages(rewards), strict=True)
        ]
    return tuple(samples)


def split_updates(batch: Batch, num_updates: int) -> list[tuple[Sample, ...]]:
    """The batch in at most `num_updates` parts of whole groups, each weighted as its own batch.

    Group i goes to part i modulo the number of parts, so that a batch whose draws are ordered by
    kind gives each part the same mixture. Parts differ by at most one group; none is empty.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in batch.samples:
        groups.setdefault(sample.problem_id, []).append(sample)
    ordered = list(groups.values())
    num_parts = min(num_updates, len(ordered))
    return [
        _reweighted(ordered[part::num_parts], len(ordered), num_parts) for part in range(num_parts)
    ]


def micro_batches(samples: Sequence[Sample], max_padded_tokens: int) -> list[list[Sample]]:
    """The samples by length, in runs of at most `max_padded_tokens` (rows x padded width).

    A sample longer than that gets a micro-batch of its own and is never cut: the budget is about
    memory, the loss is about all tokens. The result does not depend on the order of `samples`.
    """
    ordered = sorted(samples, key=lambda s: (len(s.token_ids), s.rollout_id))
    runs = _runs([len(sample.token_ids) for sample in ordered], max_padded_tokens)
    return [ordered[start:stop] for start, stop in runs]


def shuffled_batches(
    lengths: Sequence[int], *, max_padded_tokens: int, seed: int
) -> list[list[int]]:
    """One epoch of index batches for SFT: alike in length, in random order, each index once.

    The indices are shuffled, sorted by padded width (so equal widths stay shuffled), cut into runs
    that fit the budget, and the runs are shuffled.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(lengths)).tolist()
    order.sort(key=lambda index: padded_width(lengths[index]))
    runs = _runs([lengths[index] for index in order], max_padded_tokens)
    return [order[slice(*runs[position])] for position in generator.permutation(len(runs))]


def _check_turns(rollout: Rollout) -> None:
    """Turn by turn: two turns whose errors cancel out would shift every logprob between them."""
    for number, turn in enumerate(rollout.turns):
        num_tokens, num_logprobs = len(turn.completion.token_ids), len(turn.completion.logprobs)
        if num_tokens != num_logprobs:
            raise ValueError(
                f"rollout {rollout.rollout_id!r}, turn {number}: {num_logprobs} behaviour logprobs "
                f"for {num_tokens} sampled tokens; expected one for each from the engine"
            )


def _reward(rollout: Rollout) -> float:
    if rollout.reward is None:
        raise ValueError(
            f"rollout {rollout.rollout_id!r} has no reward ({rollout.status}): RoC keeps decided "
            "rollouts only; call resample_on_correct first"
        )
    return rollout.reward


def _reweighted(
    part: Sequence[Sequence[Sample]], num_groups: int, num_parts: int
) -> tuple[Sample, ...]:
    samples = [sample for group in part for sample in group]
    if num_parts == 1:
        return tuple(samples)
    factor = num_groups / len(part)
    return tuple(replace(sample, loss_weight=sample.loss_weight * factor) for sample in samples)


def _runs(lengths: Sequence[int], max_padded_tokens: int) -> list[tuple[int, int]]:
    """`[start, stop)` runs over ascending lengths; a run's width is that of its last."""
    runs: list[tuple[int, int]] = []
    start = 0
    for index, length in enumerate(lengths):
        rows = index + 1 - start
        if rows > 1 and rows * padded_width(length) > max_padded_tokens:
            runs.append((start, index))
            start = index
    if lengths:
        runs.append((start, len(lengths)))
    return runs
