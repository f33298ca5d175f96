from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rollout_builders import make_group, make_rollout, make_sample, make_turn

from rstar2.batching import build_samples
from rstar2.config import OptimizerConfig, SftConfig, TinyModel, TrainerConfig
from rstar2.protocols import TrainMetrics
from rstar2.training.engine import (
    TrainingEngine,
    TrainingStoppedError,
    make_block,
    sft_learning_rate,
)
from rstar2.training.logprobs import token_logprobs
from rstar2.training.weights import build_tiny_model, weights_checksum
from rstar2.types import Batch, Group, Sample

TINY = TinyModel(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=32,
    vocab_size=40,
    init_std=0.3,
)
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, warmup_steps=0, weight_decay=0.1)
CONFIG = TrainerConfig(optimizer=OPTIMIZER)
SFT = SftConfig(num_steps=10, warmup_steps=0, learning_rate=1e-2)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def engine() -> TrainingEngine:
    return TrainingEngine(build_tiny_model(TINY, seed=1), OPTIMIZER)


def samples() -> tuple[Sample, ...]:
    """Two groups of two, lengths 6 to 21."""
    groups = []
    for p, problem_id in enumerate(("a", "b")):
        rollouts = [
            make_rollout(
                f"{problem_id}{n}",
                problem_id=problem_id,
                reward=float(n),
                turns=[
                    make_turn(
                        range(5, 8 + 7 * n + p),
                        logprobs=[-3.0] * (3 + 7 * n + p),
                        statuses=["ok"],
                        observation=[30],
                    ),
                    make_turn([9, 8 + p], logprobs=[-2.0, -2.5]),
                ],
            )
            for n in range(2)
        ]
        groups.append(Group(problem_id=problem_id, rollouts=tuple(rollouts)))
    return build_samples(groups)


def batch_of(items: tuple[Sample, ...]) -> Batch:
    return Batch(stage="rl-1", step=1, policy_version=0, samples=items)


def step(
    trained: TrainingEngine, items: tuple[Sample, ...], config: TrainerConfig = CONFIG
) -> TrainMetrics:
    return trained.train_step(batch_of(items), config=config, learning_rate=1e-2, temperature=1.0)


def checksum(trained: TrainingEngine) -> str:
    return weights_checksum(trained.model.state_dict())


def test_a_step_raises_the_probability_of_the_better_rollout() -> None:
    trained = engine()
    block = make_block(samples(), torch.device("cpu"))

    def mean_logprob() -> torch.Tensor:
        with torch.no_grad():
            values = token_logprobs(
                trained.model, block.token_ids, block.loss_mask, temperature=1.0
            )
        return (values.sum(1) * block.advantages).sum()

    before = mean_logprob()
    for _ in range(3):
        step(trained, samples())
    assert float(mean_logprob()) > float(before)


def test_the_split_into_micro_batches_does_not_change_loss_or_gradient() -> None:
    seen = [
        step(engine(), samples(), CONFIG.model_copy(update={"micro_batch_tokens": tokens}))
        for tokens in (8, 48, 10_000)
    ]
    for metrics in seen[1:]:
        assert metrics.loss == pytest.approx(seen[0].loss, abs=1e-6)
        assert metrics.grad_norm == pytest.approx(seen[0].grad_norm, rel=1e-5)
        assert metrics.num_tokens == seen[0].num_tokens == 36


def test_the_order_of_samples_does_not_change_a_bit() -> None:
    first, second = engine(), engine()
    step(first, samples())
    step(second, samples()[::-1])
    assert checksum(first) == checksum(second)


def test_two_runs_give_equal_bits() -> None:
    first, second = engine(), engine()
    for trained in (first, second):
        for _ in range(2):
            step(trained, samples())
    assert checksum(first) == checksum(second)


def test_behaviour_logprobs_of_the_same_policy_give_ratio_one_at_step_zero() -> None:
    """With the temperature of the sampling; another one does not fit."""
    trained = engine()
    items = samples()
    block = make_block(items, torch.device("cpu"))
    with torch.no_grad():
        sampled = token_logprobs(trained.model, block.token_ids, block.loss_mask, temperature=0.6)
    own = tuple(
        make_sample(
            item.token_ids.tolist(),
            item.loss_mask.tolist(),
            logprobs=sampled[row, : len(item.token_ids)].tolist(),
            advantage=item.advantage,
            loss_weight=item.loss_weight,
            rollout_id=item.rollout_id,
            problem_id=item.problem_id,
        )
        for row, item in enumerate(items)
    )
    matching, other = (
        engine().train_step(batch_of(own), config=CONFIG, learning_rate=0.01, temperature=t)
        for t in (0.6, 1.0)
    )
    assert matching.clip_fraction == 0.0
    assert abs(matching.behaviour_kl) < 1e-6
    assert other.clip_fraction > 0.0


def test_updates_per_step_are_applied_in_turn() -> None:
    trained = engine()
    metrics = step(trained, samples(), CONFIG.model_copy(update={"num_updates_per_step": 2}))
    assert trained.counters.num_updates == 2
    assert trained.counters.num_steps == 1
    assert metrics.num_tokens == 36


def test_warm_up_counts_steps_and_scales_the_rate() -> None:
    warm = CONFIG.model_copy(update={"optimizer": OPTIMIZER.model_copy(update={"warmup_steps": 4})})
    trained = engine()
    rates = []
    for _ in range(5):
        step(trained, samples(), warm)
        rates.append(trained.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01])


def test_the_gradient_is_clipped_to_its_norm() -> None:
    trained = engine()
    trained.optimizer = torch.optim.SGD(trained.model.parameters(), lr=1.0)
    before = {name: p.detach().clone() for name, p in trained.model.named_parameters()}
    clipped = CONFIG.model_copy(
        update={"optimizer": OPTIMIZER.model_copy(update={"max_grad_norm": 1e-3})}
    )
    metrics = trained.train_step(
        batch_of(samples()), config=clipped, learning_rate=1.0, temperature=1.0
    )
    moved = [(p.detach() - before[name]).norm() for name, p in trained.model.named_parameters()]
    assert metrics.grad_norm > 1e-3
    assert float(torch.stack(moved).norm()) == pytest.approx(1e-3, rel=1e-2)


def spoiled() -> tuple[Sample, ...]:
    """A ratio that overflows with a negative advantage: loss and gradient are infinite."""
    good = make_sample([1, 2], [0, 1], rollout_id="x", problem_id="x")
    bad = make_sample(
        [1, 2], [0, 1], logprobs=[0, -500], advantage=-1.0, rollout_id="y", problem_id="x"
    )
    return good, bad


def test_a_gradient_that_is_not_finite_is_skipped_and_counted() -> None:
    trained = engine()
    step(trained, samples())
    before = checksum(trained)
    metrics = step(trained, spoiled())
    assert metrics.num_skipped_updates == 1
    assert checksum(trained) == before
    assert (trained.counters.num_skipped, trained.counters.num_updates) == (1, 1)


def test_a_skipped_step_leaves_the_moments_alone() -> None:
    first, second = engine(), engine()
    step(first, samples())
    step(second, samples())
    step(first, spoiled())
    for trained in (first, second):
        step(trained, samples())
    assert checksum(first) == checksum(second)


def test_too_many_gradients_that_are_not_finite_stop_the_run() -> None:
    trained = engine()
    config = CONFIG.model_copy(update={"max_skipped_steps": 3})
    for _ in range(2):
        step(trained, spoiled(), config)
    with pytest.raises(TrainingStoppedError, match="not finite 3 times in a row"):
        step(trained, spoiled(), config)


def test_a_finite_gradient_starts_the_count_anew() -> None:
    trained = engine()
    config = CONFIG.model_copy(update={"max_skipped_steps": 2})
    for items in (spoiled(), samples(), spoiled()):
        step(trained, items, config)
    assert trained.counters.num_not_finite_in_a_row == 1


@pytest.mark.parametrize("items", [(), (make_sample([1, 2, 3], [0, 0, 0]),)])
def test_a_batch_without_a_token_to_train_on_is_skipped_with_loss_zero(
    items: tuple[Sample, ...],
) -> None:
    trained = engine()
    before = checksum(trained)
    metrics = step(trained, items)
    assert trained.counters.num_updates == 0
    assert (metrics.loss, metrics.grad_norm, metrics.num_tokens) == (0.0, 0.0, 0)
    assert metrics.behaviour_kl == metrics.entropy == metrics.clip_fraction == 0.0
    assert checksum(trained) == before


def test_a_sample_longer_than_the_budget_is_trained_whole() -> None:
    config = CONFIG.model_copy(update={"micro_batch_tokens": 8})
    item = make_sample([1] * 30, [0] + [1] * 29)
    assert step(engine(), (item,), config).num_tokens == 29


def test_the_optimizer_comes_back_bit_for_bit(tmp_path: Path) -> None:
    first = engine()
    for _ in range(3):
        step(first, samples())
    first.save_optimizer(tmp_path)
    second = engine()
    second.model.load_state_dict(first.model.state_dict())
    second.load_optimizer(tmp_path)
    assert second.counters == first.counters
    for trained in (first, second):
        for _ in range(2):
            step(trained, samples())
    assert checksum(first) == checksum(second)


def test_a_fresh_optimizer_is_saved_and_loaded(tmp_path: Path) -> None:
    engine().save_optimizer(tmp_path)
    loaded = engine()
    step(loaded, samples())
    loaded.load_optimizer(tmp_path)
    assert not loaded.optimizer.state
    assert loaded.counters.num_steps == 0


def test_optimizer_files_are_safetensors_and_json(tmp_path: Path) -> None:
    trained = engine()
    step(trained, samples())
    trained.save_optimizer(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["optimizer.json", "optimizer.safetensors"]
    assert json.loads((tmp_path / "optimizer.json").read_text())["num_updates"] == 1


def test_a_reset_optimizer_forgets_moments_and_counters() -> None:
    trained = engine()
    step(trained, samples())
    trained.reset_optimizer(OPTIMIZER)
    assert not trained.optimizer.state
    assert trained.counters.num_steps == 0


def conversations() -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (np.array([1, 2, 3, 4, 5], np.int32), np.array([0, 0, 1, 1, 1], np.bool_)),
        (np.array([6, 7, 8], np.int32), np.array([0, 1, 1], np.bool_)),
    ]


def test_sft_lowers_the_loss_on_what_it_sees() -> None:
    trained = TrainingEngine(build_tiny_model(TINY, seed=1), SFT)
    losses = [
        trained.sft_step(conversations(), config=SFT, micro_batch_tokens=10_000) for _ in range(10)
    ]
    assert losses[-1] < losses[0] / 2
    assert trained.counters.num_steps == 10


def test_sft_loss_does_not_depend_on_micro_batches() -> None:
    losses = [
        TrainingEngine(build_tiny_model(TINY, seed=1), SFT).sft_step(
            conversations(), config=SFT, micro_batch_tokens=tokens
        )
        for tokens in (8, 10_000)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_linear_tail_is_constant_then_falls_over_the_last_forty_percent() -> None:
    config = SftConfig(num_steps=100, warmup_steps=0, learning_rate=1.0, schedule="linear_tail")
    rates = [sft_learning_rate(config, step) for step in (0, 60, 80, 99)]
    assert rates == pytest.approx([1.0, 1.0, 0.5, 0.025])


def test_cosine_falls_to_zero_and_warm_up_comes_first() -> None:
    config = SftConfig(num_steps=100, warmup_steps=10, learning_rate=1.0, schedule="cosine")
    assert sft_learning_rate(config, 0) == pytest.approx(0.1)
    assert sft_learning_rate(config, 50) == pytest.approx(0.5)
    assert sft_learning_rate(config, 100) == pytest.approx(0.0)


def test_advantages_of_an_equal_group_train_nothing() -> None:
    trained = engine()
    metrics = step(trained, build_samples([make_group([1.0, 1.0])]))
    assert metrics.grad_norm == 0.0
    assert math.isfinite(metrics.loss)
