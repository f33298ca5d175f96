from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rollout_builders import make_group, make_sample
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from infra.trainer.local import CheckpointError, LocalTrainer, open_trainer, sft_batches
from rstar2.batching import build_samples
from rstar2.config import ConfigError, RecipeConfig
from rstar2.protocols import Trainer
from rstar2.training.weights import build_tiny_model, weights_checksum
from rstar2.types import Batch

CONFIG = RecipeConfig.model_validate(
    {
        "profile": "test",
        "model": {
            "tiny": {
                "hidden_size": 16,
                "num_layers": 2,
                "num_heads": 2,
                "num_kv_heads": 1,
                "head_dim": 8,
                "intermediate_size": 32,
                "vocab_size": 40,
                "init_std": 0.3,
            }
        },
        "trainer": {"num_updates_per_step": 2, "optimizer": {"learning_rate": 1e-2}},
        "sft": {"num_steps": 8, "batch_tokens": 32, "learning_rate": 1e-2},
        "stages": {"rl-1": {}},
        "gates": {"rl-1": {}},
    }
)
BATCH = Batch(
    stage="rl-1",
    step=1,
    policy_version=0,
    samples=build_samples(
        [make_group([1.0, 0.0], problem_id="a"), make_group([0.0, 1.0], problem_id="b")]
    ),
)
CONVERSATIONS = [(np.arange(1, 6 + n, dtype=np.int32), np.arange(5 + n) > 1) for n in range(6)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def trainer() -> LocalTrainer:
    vocabulary = {f"w{n}": n for n in range(40)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="w0")), unk_token="w0"
    )
    return LocalTrainer(build_tiny_model(CONFIG.model.tiny, seed=1), tokenizer, CONFIG)


def checksum(trained: Trainer) -> str:
    return weights_checksum(trained.state_dict())


def test_a_checkpoint_continues_bit_for_bit(tmp_path: Path) -> None:
    first = trainer()
    for _ in range(2):
        first.train_step(BATCH)
    first.save(tmp_path / "checkpoint")
    second = trainer()
    second.load(tmp_path / "checkpoint")
    third = open_trainer(tmp_path / "checkpoint", CONFIG)
    third.load(tmp_path / "checkpoint")
    for trained in (first, second, third):
        for _ in range(2):
            trained.train_step(BATCH)
    assert checksum(first) == checksum(second) == checksum(third)


def test_sft_that_stops_and_goes_on_equals_one_that_runs_through(tmp_path: Path) -> None:
    through = trainer()
    whole = through.sft(CONVERSATIONS, start=0, stop=6)
    first = trainer()
    losses = first.sft(CONVERSATIONS, start=0, stop=2)
    first.save(tmp_path / "checkpoint")
    second = trainer()
    second.load(tmp_path / "checkpoint")
    losses += second.sft(CONVERSATIONS, start=2, stop=6)
    assert losses == whole
    assert checksum(second) == checksum(through)


def test_sft_refuses_to_go_on_from_another_step() -> None:
    with pytest.raises(CheckpointError, match="go on from step 3, but the loaded state has 0"):
        trainer().sft(CONVERSATIONS, start=3, stop=4)


def test_sft_without_a_table_is_refused() -> None:
    config = CONFIG.model_copy(update={"sft": None})
    bare = LocalTrainer(build_tiny_model(config.model.tiny, seed=1), None, config)
    with pytest.raises(ConfigError, match=r"no \[sft\] table"):
        bare.sft(CONVERSATIONS, start=0, stop=1)


def test_the_policy_starts_with_a_fresh_optimizer_after_sft() -> None:
    after_sft, reset = trainer(), trainer()
    for trained in (after_sft, reset):
        trained.sft(CONVERSATIONS, start=0, stop=3)
    reset.reset_optimizer()
    for trained in (after_sft, reset):
        trained.train_step(BATCH)
    assert checksum(after_sft) == checksum(reset)


def test_a_reset_optimizer_changes_the_next_step_but_not_the_weights() -> None:
    kept, reset = trainer(), trainer()
    for trained in (kept, reset):
        trained.train_step(BATCH)
    reset.reset_optimizer()
    assert checksum(kept) == checksum(reset)
    for trained in (kept, reset):
        trained.train_step(BATCH)
    assert checksum(kept) != checksum(reset)


def test_a_stages_learning_rate_overrides_the_configured_one() -> None:
    first, second = trainer(), trainer()
    first.train_step(BATCH)
    second.train_step(BATCH, learning_rate=1e-3)
    assert checksum(first) != checksum(second)


def test_transformers_loads_the_model_of_a_checkpoint(tmp_path: Path) -> None:
    saved = trainer()
    saved.train_step(BATCH)
    saved.save(tmp_path / "checkpoint")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint" / "model")
    assert weights_checksum(model.state_dict()) == checksum(saved)


def test_a_checkpoint_is_two_folders_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    trainer().save(tmp_path / "checkpoint")
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == ["model", "trainer"]


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no model/config.json"):
        trainer().load(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    trainer().save(tmp_path / "checkpoint")
    larger = CONFIG.model.tiny.model_copy(update={"num_layers": 3})
    other = LocalTrainer(build_tiny_model(larger, seed=1), None, CONFIG)
    with pytest.raises(CheckpointError, match=r"weights missing \['model.layers.2"):
        other.load(tmp_path / "checkpoint")


def test_an_empty_batch_is_skipped() -> None:
    trained = trainer()
    before = checksum(trained)
    empty = Batch(stage="rl-1", step=1, policy_version=0, samples=())
    assert trained.train_step(empty).num_tokens == 0
    assert checksum(trained) == before


def test_the_batch_of_an_sft_step_depends_on_step_and_seed_alone() -> None:
    lengths = [8] * 10
    longer = sft_batches(lengths, batch_tokens=32, seed=1, num_steps=9)
    assert longer[:4] == sft_batches(lengths, batch_tokens=32, seed=1, num_steps=4)
    assert longer != sft_batches(lengths, batch_tokens=32, seed=2, num_steps=9)
    assert sorted(i for batch in longer[:3] for i in batch) == list(range(10))


def test_samples_of_one_token_do_not_stop_a_step() -> None:
    batch = Batch(stage="s", step=1, policy_version=0, samples=(make_sample([1], [1]),))
    assert trainer().train_step(batch).num_skipped_updates > 0


async def test_a_trainer_with_finite_weights_is_ready() -> None:
    trained = trainer()
    health = await trained.check()
    assert (health.name, health.is_ready, health.capacity) == ("trainer", True, 1)
    assert trained.weights == checksum(trained)


async def test_a_trainer_with_weights_that_are_not_finite_names_them() -> None:
    trained = trainer()
    trained.state_dict()["model.norm.weight"][0] = float("nan")
    health = await trained.check()
    assert not health.is_ready
    assert health.seen == "1 tensors are not finite: model.norm.weight"
    assert "last committed checkpoint" in health.remedy


@pytest.fixture
def _no_room() -> Iterator[None]:
    """No file of this process may grow over 3,000 bytes: the nearest to a full disk without root."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


@pytest.mark.usefixtures("_no_room")
def test_a_checkpoint_for_which_there_is_no_room_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"checkpoint could not be written.*make room there"):
        trainer().save(tmp_path / "checkpoint")
