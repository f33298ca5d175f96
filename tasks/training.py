"""One optimizer step, the weight sync after it, and the checkpoint that resume starts from.

Reads a batch part, writes a checkpoint part. A checkpoint folder holds `model/` (loadable by
`transformers`) and `trainer/` (optimizer and counters); a step after the last checkpoint is trained
again from its stored batch, to the same weights.
"""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from rstar2.protocols import TrainMetrics
from rstar2.rollout_files import read_batch
from rstar2.types import ArtifactRef, StageResult
from tasks.resources import Resources

log = logging.getLogger(__name__)

NUM_KEPT_CHECKPOINTS = 2
"""Of a running stage; stage ends are kept for good."""


@task(name="train step", cache_policy=NO_CACHE)
def train_step(resources: Resources, *, stage: str, batch: ArtifactRef) -> TrainMetrics:
    """One step on a stored batch."""
    path = resources.ledger.store.local_path(batch)
    return resources.trainer.train_step(
        read_batch(path), learning_rate=resources.config.stages[stage].learning_rate
    )


@task(name="sync weights", cache_policy=NO_CACHE)
def sync_weights(resources: Resources, *, version: int) -> float:
    """The trained weights are live in the pool under `version`. Returns seconds."""
    started = time.perf_counter()
    resources.pool.update_weights(resources.trainer.state_dict(), version)
    return time.perf_counter() - started


@task(name="save checkpoint", cache_policy=NO_CACHE)
def save_checkpoint(resources: Resources, *, stage: str, step: int) -> ArtifactRef:
    """Stores model, optimizer and counters of a step; true once a manifest names it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        resources.trainer.save(path)
        key = checkpoint_key(resources, stage, step)
        return resources.ledger.store.put_folder(path, key, kind="checkpoint")


def drop_old_checkpoints(
    resources: Resources, *, stage: str, last_step: int, kind: str = "step"
) -> None:
    """Deletes the checkpoint that the newest ones made needless. Called after a commit."""
    saved = [m.step or 0 for m in resources.ledger.steps(stage, kind) if "checkpoint" in m.parts]
    for step in [s for s in saved if s <= last_step][
        -NUM_KEPT_CHECKPOINTS - 1 : -NUM_KEPT_CHECKPOINTS
    ]:
        resources.ledger.store.delete(checkpoint_key(resources, stage, step))


def enter_stage(resources: Resources, *, stage: str, start: StageResult) -> None:
    """Trainer and pool at the stage's last committed step, or at the checkpoint of `start`.

    The optimizer goes on from RL stage to RL stage unless the profile resets it (report §4.3:
    RL-3); after SFT it is always a fresh one.
    """
    stages = resources.config.stages
    if start.stage in stages and not stages[stage].reset_optimizer:
        resources.trainer.load(resources.ledger.store.local_path(start.checkpoint))
    if last := restore(resources, stage=stage):
        sync_weights.fn(resources, version=last)


def restore(resources: Resources, *, stage: str, kind: str = "step") -> int:
    """Brings the trainer to the stage's last committed step; returns that step (0: none).

    Loads the last checkpoint, then trains the steps after it again from their stored batches.
    """
    steps = resources.ledger.steps(stage, kind)
    saved = [m for m in steps if "checkpoint" in m.parts]
    last_saved = 0
    if saved:
        last_saved = saved[-1].step or 0
        resources.trainer.load(resources.ledger.store.local_path(saved[-1].parts["checkpoint"]))
    for manifest in steps:
        if (manifest.step or 0) > last_saved and "batch" in manifest.parts:
            log.info("%s step %s is trained again from its batch", stage, manifest.step)
            train_step.fn(resources, stage=stage, batch=manifest.parts["batch"])
    return steps[-1].step or 0 if steps else 0


def checkpoint_key(resources: Resources, stage: str, step: int) -> str:
    return resources.ledger.key(stage, f"step-{step:05d}", "checkpoint")
