"""Sampling: one token and its logprob for each row of logits.

A row's token is a function of its own logits, settings, seed and position: the one random number
it needs is a hash of (seed, position), so neither the batch nor the order of events enters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SamplingRows:
    """Settings by row; arrays of one length n."""

    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]
    """Of the token that is drawn, counted from the conversation's first."""
    temperatures: NDArray[np.float32]
    """0 is greedy; its logprobs are those of temperature 1."""
    top_ps: NDArray[np.float32]


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """Numbers in [0, 1) with 24 bits: the counter-based SplitMix64 generator at (seed, position)."""
    state = _mix(seeds) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return (_mix(state) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


def sample(
    logits: torch.Tensor, rows: SamplingRows
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Token ids and logprobs, [n] each, of logits [n, V].

    The logprob is the token's under the whole tempered distribution, also where `top_p` < 1 drew
    from its nucleus only: it is what a trainer's forward pass computes. NaN where logits were.
    """
    is_greedy = rows.temperatures == 0
    if (rows.temperatures != 1).any():
        divisors = np.where(is_greedy, np.float32(1), rows.temperatures)
        logits = logits / torch.from_numpy(divisors)[:, None]
    probabilities = torch.softmax(logits, dim=-1)
    drawn = torch.from_numpy(uniform(rows.seeds, rows.positions))
    token_ids = _draw(probabilities, drawn)
    if (rows.top_ps < 1).any():
        narrow = _draw(_nucleus(probabilities, torch.from_numpy(rows.top_ps)), drawn)
        token_ids = torch.where(torch.from_numpy(rows.top_ps < 1), narrow, token_ids)
    if is_greedy.any():
        token_ids = torch.where(torch.from_numpy(is_greedy), logits.argmax(dim=-1), token_ids)
    chosen = probabilities.gather(1, token_ids[:, None])[:, 0].numpy()
    # numpy in float64: torch's logarithm gives the last few elements of an array other bits.
    return token_ids.numpy(), np.log(chosen.astype(np.float64)).astype(np.float32)


def _draw(weights: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:  # [n]
    """Inverse of the cumulated weights: the first token whose sum exceeds drawn x total."""
    cumulated = weights.cumsum(dim=-1)
    targets = drawn[:, None] * cumulated[:, -1:]
    chosen = torch.searchsorted(cumulated, targets, right=True)[:, 0]
    return chosen.clamp_(max=weights.shape[-1] - 1)


def _nucleus(probabilities: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:  # [n, V]
    """Zero outside the smallest set of likeliest tokens that holds `top_p`; ties by token id."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = torch.where(before < top_ps[:, None], ordered, torch.zeros(()))
    return torch.zeros_like(probabilities).scatter_(1, order, kept)
