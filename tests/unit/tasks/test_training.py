"""Resuming a stage: from the newest checkpoint that is whole, what follows it from stored batches."""

from __future__ import annotations

import logging
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from rollout_builders import make_group, make_step

from infra.object_store import open_store
from infra.trainer.base_model import make_base_model
from infra.trainer.local import open_trainer
from rstar2.batching import build_samples
from rstar2.profiles import load_config
from rstar2.rollout_files import write_batch
from rstar2.training.weights import weights_checksum
from rstar2.types import Batch
from tasks.ledger import Ledger
from tasks.resources import Resources
from tasks.sft import Conversations, train_sft
from tasks.training import (
    drop_old_checkpoints,
    load_newest_checkpoint,
    restore,
    save_checkpoint,
    train_step,
)

CONFIG = load_config("smoke")
CONVERSATIONS = Conversations(
    [(np.arange(1, 6 + n, dtype=np.int32), np.arange(5 + n) > 1) for n in range(6)]
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    make_base_model(folder, CONFIG)
    return folder


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(storage: Path, base: Path) -> Resources:
    """What a fresh process has: the committed run, and a trainer at the stage's start."""
    return Resources(
        config=CONFIG,
        ledger=Ledger(open_store(str(storage)), "demo"),
        chat=None,
        sandbox=None,
        execute=None,
        pool=None,
        trainer=open_trainer(base, CONFIG),
        loop=None,
    )


def train(resources: Resources, steps: range, *, every: int = 1) -> None:
    """Trains and commits RL-1 steps with a checkpoint at every `every`th; the best is step 2."""
    ledger = resources.ledger
    for step in steps:
        groups = [make_group([1.0, 0.0], problem_id=f"a{step}"), make_group([0.0, 1.0])]
        batch = Batch(
            stage="rl-1", step=step, policy_version=step - 1, samples=build_samples(groups)
        )
        path = Path(ledger.store.uri) / "batch"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_batch(path, batch)
        parts = {"batch": ledger.store.put_file(path, ledger.key("rl-1", f"step-{step}", "batch"))}
        path.unlink()
        train_step.fn(resources, stage="rl-1", batch=parts["batch"])
        if step % every == 0:
            parts["checkpoint"] = save_checkpoint.fn(resources, stage="rl-1", step=step)
        values = {"metrics": asdict(make_step(step, reward=0.9 if step == 2 else 0.1))}
        ledger.commit("step", stage="rl-1", step=step, parts=parts, values=values)
        drop_old_checkpoints(resources, stage="rl-1", last_step=step)


def weights(resources: Resources) -> str:
    return weights_checksum(resources.trainer.state_dict())


def checkpoints(storage: Path, stage: str = "rl-1") -> list[int]:
    found = storage.glob(f"demo/{stage}/step-*/checkpoint")
    return sorted(int(folder.parent.name.split("-")[1]) for folder in found)


def folder_of(storage: Path, step: int, stage: str = "rl-1") -> Path:
    return storage / "demo" / stage / f"step-{step:05d}" / "checkpoint"


def damage(folder: Path, how: str) -> None:
    weights = folder / "model" / "model.safetensors"
    if how == "other bytes":
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
    elif how == "half-written":
        (folder / "artefact.json").unlink()
    else:
        shutil.rmtree(folder)


@pytest.mark.parametrize("how", ["other bytes", "half-written", "missing"])
def test_a_damaged_checkpoint_is_passed_over_and_written_again(
    storage: Path, base: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened(storage, base)
    train(first, range(1, 5))
    damage(folder_of(storage, 4), how)

    second = opened(storage, base)
    with caplog.at_level(logging.INFO):
        assert restore(second, stage="rl-1") == 4
    assert weights(second) == weights(first)
    assert "the checkpoint of rl-1 step 4 is passed over" in caplog.text
    assert "rl-1 step 4 is trained again from its batch" in caplog.text
    assert "step 3 is trained again" not in caplog.text
    assert load_newest_checkpoint(opened(storage, base), stage="rl-1") == 4


def test_without_any_whole_checkpoint_all_steps_are_trained_again(
    storage: Path, base: Path
) -> None:
    first = opened(storage, base)
    train(first, range(1, 5))
    for step in checkpoints(storage):
        damage(folder_of(storage, step), "missing")
    second = opened(storage, base)
    assert restore(second, stage="rl-1") == 4
    assert weights(second) == weights(first)
    assert checkpoints(storage) == [2, 3, 4]


def test_steps_after_the_last_checkpoint_are_trained_again(storage: Path, base: Path) -> None:
    first = opened(storage, base)
    train(first, range(1, 6), every=2)
    second = opened(storage, base)
    assert restore(second, stage="rl-1") == 5
    assert weights(second) == weights(first)
    assert checkpoints(storage) == [2, 4]


def test_a_stage_without_a_step_starts_as_it_was_opened(storage: Path, base: Path) -> None:
    resources = opened(storage, base)
    before = weights(resources)
    assert restore(resources, stage="rl-1") == 0
    assert weights(resources) == before


def test_checkpoints_that_a_crash_left_are_swept(storage: Path, base: Path) -> None:
    """Half of one, and one not deleted after a commit."""
    first = opened(storage, base)
    train(first, range(1, 6))
    for step in (1, 3):
        save_checkpoint.fn(first, stage="rl-1", step=step)
    damage(folder_of(storage, 1), "half-written")
    assert checkpoints(storage) == [1, 2, 3, 4, 5]
    restore(opened(storage, base), stage="rl-1")
    assert checkpoints(storage) == [2, 4, 5]


def test_what_a_crash_left_of_the_step_that_is_due_is_not_written_twice(
    storage: Path, base: Path
) -> None:
    first = opened(storage, base)
    train(first, range(1, 4))
    save_checkpoint.fn(first, stage="rl-1", step=4)
    written = {p: p.stat().st_ino for p in folder_of(storage, 4).rglob("*") if p.is_file()}
    second = opened(storage, base)
    assert restore(second, stage="rl-1") == 3
    second.trainer.load(folder_of(storage, 4))
    save_checkpoint.fn(second, stage="rl-1", step=4)
    assert {p: p.stat().st_ino for p in folder_of(storage, 4).rglob("*") if p.is_file()} == written


def test_another_stage_s_checkpoints_are_not_swept(storage: Path, base: Path) -> None:
    first = opened(storage, base)
    train(first, range(1, 3))
    save_checkpoint.fn(first, stage="rl-10", step=1)
    restore(opened(storage, base), stage="rl-2")
    assert checkpoints(storage) == [1, 2]
    assert checkpoints(storage, "rl-10") == [1]


def sft(resources: Resources) -> int:
    """Trains SFT to its end as the flow does; returns the step it went on from."""
    start = step = load_newest_checkpoint(resources, stage="sft", kind="checkpoint")
    while step < CONFIG.sft.num_steps:
        step, _, _ = train_sft.fn(resources, conversations=CONVERSATIONS, start=step)
    return start


@pytest.mark.parametrize(("lost", "start"), [([4], 2), ([2, 4], 0), ([], 4)])
def test_sft_goes_on_from_its_newest_whole_checkpoint(
    storage: Path, base: Path, lost: list[int], start: int
) -> None:
    first = opened(storage, base)
    assert sft(first) == 0
    for step in lost:
        damage(folder_of(storage, step, "sft"), "other bytes")
    second = opened(storage, base)
    assert sft(second) == start
    assert weights(second) == weights(first)
    assert sft(opened(storage, base)) == 4
