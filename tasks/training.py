"""One optimizer step, the weight sync after it, and the checkpoint that resume starts from.

Reads a batch part, writes a checkpoint part. A checkpoint folder holds `model/` (loadable by
`transformers`) and `trainer/` (optimizer and counters); a step after the last checkpoint is trained
again from its stored batch, to the same weights, and so is one whose checkpoint is damaged.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection
from typing import Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from data_catalog.records import Manifest
from infra.object_store import StoreError
from infra.trainer.local import CheckpointError
from rstar2.protocols import TrainMetrics
from rstar2.retention import best_step, kept_steps
from rstar2.rollout_files import read_batch
from rstar2.types import ArtifactRef, StageResult
from tasks.resources import Resources

log = logging.getLogger(__name__)

CheckpointKind = Literal["step", "checkpoint"]
"""Manifests that name checkpoints: of RL steps, and of SFT."""


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
    store = resources.ledger.store
    with store.staging() as folder:
        resources.trainer.save(folder)
        key = checkpoint_key(resources, stage, step)
        return store.put_folder(folder, key, kind="checkpoint")


def drop_old_checkpoints(
    resources: Resources, *, stage: str, last_step: int, kind: CheckpointKind = "step"
) -> None:
    """Deletes what the commit of `last_step` made needless: neither among the newest nor the best.

    The end of a stage is never deleted.
    """
    kept_before = _kept(resources, stage, last_step - 1, kind)
    for step in sorted(kept_before - _kept(resources, stage, last_step, kind)):
        resources.ledger.store.delete(checkpoint_key(resources, stage, step))


def _kept_now(resources: Resources, stage: str, kind: CheckpointKind) -> set[int]:
    """The steps whose checkpoints the committed steps need."""
    steps = resources.ledger.steps(stage, kind)
    return _kept(resources, stage, steps[-1].step or 0, kind) if steps else set()


def _kept(resources: Resources, stage: str, last_step: int, kind: CheckpointKind) -> set[int]:
    series = [m for m in resources.ledger.series(stage) if m.step <= last_step]
    saved = [s for s in _saved_steps(resources, stage, kind) if s <= last_step]
    return kept_steps(series, saved, window=_window(resources, stage))


def _saved_steps(resources: Resources, stage: str, kind: CheckpointKind = "step") -> list[int]:
    found = resources.ledger.steps(stage, kind)
    return [m.step or 0 for m in found if "checkpoint" in m.parts]


def _window(resources: Resources, stage: str) -> int:
    """Of the stage's gate; SFT has none and no rewards either."""
    gate = resources.config.gates.get(stage)
    return gate.window if gate else 1


def return_to_best(resources: Resources, *, stage: str) -> tuple[int, ArtifactRef] | None:
    """Step and checkpoint of the best window so far, live in trainer and pool; None: there is none."""
    ledger = resources.ledger
    saved = _saved_steps(resources, stage)
    step = best_step(ledger.series(stage), saved, window=_window(resources, stage))
    manifest = ledger.find("step", stage=stage, step=step) if step is not None else None
    if step is None or manifest is None or not _load(resources, manifest):
        return None
    sync_weights.fn(resources, version=step)
    return step, manifest.parts["checkpoint"]


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


def restore(resources: Resources, *, stage: str) -> int:
    """Brings the trainer to the stage's last committed step; returns that step (0: none).

    Loads the newest checkpoint that is whole, then trains the steps after it again from their
    stored batches, and writes the damaged ones on its way again.
    """
    loaded = load_newest_checkpoint(resources, stage=stage)
    steps = resources.ledger.steps(stage)
    kept = _kept_now(resources, stage, "step")
    for manifest in steps:
        step = manifest.step or 0
        if step <= loaded:
            continue
        log.info("%s step %s is trained again from its batch", stage, step)
        train_step.fn(resources, stage=stage, batch=manifest.parts["batch"])
        if step in kept:
            checkpoint_of(resources, manifest)
    return steps[-1].step or 0 if steps else 0


def load_newest_checkpoint(
    resources: Resources, *, stage: str, kind: CheckpointKind = "step"
) -> int:
    """Loads the stage's newest checkpoint that is whole; returns its step.

    0: there is none, and the trainer is left as it was opened. First sweeps what a crash left.
    """
    kept = _kept_now(resources, stage, kind)
    steps = resources.ledger.steps(stage, kind)
    _sweep(resources, stage, kept, last=steps[-1].step or 0 if steps else 0)
    for manifest in reversed(steps):
        if manifest.step in kept and _load(resources, manifest):
            return manifest.step or 0
    return 0


def checkpoint_of(resources: Resources, manifest: Manifest) -> ArtifactRef:
    """What the manifest names where it is whole; else the live weights, which are of its step."""
    known = manifest.parts.get("checkpoint")
    if known is not None and _is_whole(resources, known):
        return known
    step = manifest.step or 0
    resources.ledger.store.delete(checkpoint_key(resources, manifest.stage, step))
    stored = save_checkpoint.fn(resources, stage=manifest.stage, step=step)
    if known is not None and stored != known:
        log.warning(
            "%s has other weights than before: the machine or its number of threads changed",
            stored.uri,
        )
    return stored


def _load(resources: Resources, manifest: Manifest) -> bool:
    """Whether the trainer holds the checkpoint of the manifest now; says why not."""
    try:
        folder = resources.ledger.store.local_path(manifest.parts["checkpoint"])
        resources.trainer.load(folder)
    except (StoreError, CheckpointError) as error:
        log.warning(
            "the checkpoint of %s step %s is passed over: %s", manifest.stage, manifest.step, error
        )
        return False
    return True


def _is_whole(resources: Resources, checkpoint: ArtifactRef) -> bool:
    try:
        resources.ledger.store.local_path(checkpoint)
    except StoreError:
        return False
    return True


def _sweep(resources: Resources, stage: str, kept: Collection[int], *, last: int) -> None:
    """Deletes what a process that died left of steps up to the `last` committed one.

    A later one is written again by the step that is due, and only what is missing of it is sent.
    """
    store, place = resources.ledger.store, resources.ledger.key(stage)
    pattern = re.compile(re.escape(place) + r"/step-(\d+)/checkpoint/")
    keys = (*store.list(place), *store.unfinished(place))
    found = {int(match[1]) for key in keys if (match := pattern.match(key))}
    for step in sorted(step for step in found.difference(kept) if step <= last):
        log.info("the checkpoint of %s step %s is deleted: no manifest needs it", stage, step)
        store.delete(checkpoint_key(resources, stage, step))


def checkpoint_key(resources: Resources, stage: str, step: int) -> str:
    return resources.ledger.key(stage, f"step-{step:05d}", "checkpoint")
