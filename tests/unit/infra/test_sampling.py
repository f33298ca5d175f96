"""Sampling from logits: frequencies, logprobs, nucleus, and independence of the batch."""

from __future__ import annotations

import numpy as np
import torch

from infra.rollout.sampling import SamplingRows, sample, uniform


def rows(
    size: int, *, temperature: float = 1.0, top_p: float = 1.0, seed: int = 1, position: int = 0
) -> SamplingRows:
    return SamplingRows(
        seeds=np.full(size, seed, dtype=np.uint64),
        positions=np.arange(position, position + size),
        temperatures=np.full(size, temperature, dtype=np.float32),
        top_ps=np.full(size, top_p, dtype=np.float32),
    )


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    drawn = uniform(np.zeros(100_000, dtype=np.uint64), np.arange(100_000))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert abs(counts - 5000).max() < 350  # 5 standard deviations


def test_uniform_numbers_of_neighbouring_seeds_are_unrelated() -> None:
    first = uniform(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, dtype=np.int64))
    second = uniform(np.arange(1, 20_001, dtype=np.uint64), np.zeros(20_000, dtype=np.int64))
    shifted = uniform(np.arange(20_000, dtype=np.uint64), np.ones(20_000, dtype=np.int64))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first, shifted)[0, 1]) < 0.03


def test_frequencies_are_the_tempered_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(40_000, -1)
    token_ids, _ = sample(logits, rows(40_000, temperature=2.0))
    expected = torch.softmax(torch.tensor([0.0, 0.5, 1.0, -0.5]), dim=0).numpy()
    assert abs(np.bincount(token_ids, minlength=4) / 40_000 - expected).max() < 0.012


def test_logprobs_are_those_of_the_tempered_distribution() -> None:
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    token_ids, logprobs = sample(logits, rows(50, temperature=0.7))
    expected = torch.log_softmax(logits.double() / 0.7, dim=-1)[torch.arange(50), token_ids]
    assert abs(logprobs - expected.numpy()).max() < 1e-5


def test_zero_temperature_takes_the_likeliest_token() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 1.0, 2.0]])
    token_ids, logprobs = sample(logits, rows(2, temperature=0.0))
    assert token_ids.tolist() == [1, 0]
    assert abs(logprobs[0] - torch.log_softmax(logits[0], dim=0)[1].item()) < 1e-6


def test_top_p_draws_from_the_nucleus_only_and_keeps_the_whole_logprob() -> None:
    probabilities = torch.tensor([0.1, 0.5, 0.3, 0.1])
    logits = probabilities.log().expand(5000, -1)
    token_ids, logprobs = sample(logits, rows(5000, top_p=0.7))
    assert set(token_ids.tolist()) == {1, 2}
    assert abs((token_ids == 1).mean() - 0.5 / 0.8) < 0.035
    assert abs(logprobs[token_ids == 1][0] - np.log(0.5)) < 1e-6


def test_top_p_keeps_the_likeliest_token_however_small_it_is() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5]])
    assert sample(logits, rows(1, top_p=1e-6))[0].tolist() == [1]


def test_a_row_is_drawn_alike_alone_and_among_rows_with_other_settings() -> None:
    logits = torch.randn(33, 40, generator=torch.Generator().manual_seed(1))
    mixed = rows(33)
    mixed.temperatures[::3] = 0.0
    mixed.temperatures[1::3] = 0.5
    mixed.top_ps[::2] = 0.8
    together = sample(logits, mixed)
    for index in range(33):
        part = slice(index, index + 1)
        alone = sample(
            logits[part].clone(),
            SamplingRows(
                seeds=mixed.seeds[part],
                positions=mixed.positions[part],
                temperatures=mixed.temperatures[part],
                top_ps=mixed.top_ps[part],
            ),
        )
        assert alone[0][0] == together[0][index]
        assert alone[1][0] == together[1][index]


def test_logits_that_are_not_finite_give_no_finite_logprob() -> None:
    logits = torch.tensor([[0.0, float("nan"), 1.0]])
    assert not np.isfinite(sample(logits, rows(1))[1][0])
