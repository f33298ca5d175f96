"""Builds the batch of a step: drops groups without signal, keeps G by RoC, flattens to samples.

Reads the step's rollouts, writes one Parquet part. Every dropped group is named with its reason.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from rstar2.batching import build_samples
from rstar2.config import StageConfig
from rstar2.roc import resample_on_correct
from rstar2.rollout_files import read_rollouts, write_batch
from rstar2.statistics import RolloutStatistics, rollout_statistics
from rstar2.types import ArtifactRef, Batch, Group
from tasks.resources import Resources
from tasks.rollouts import derived_seed


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltBatch:
    """A step's batch by reference, and what became of each group and rollout."""

    batch: ArtifactRef
    num_groups: int
    kept_rollout_ids: tuple[str, ...]
    dropped: dict[str, str]
    """Reason by problem id."""
    statistics: RolloutStatistics
    """Of all sampled rollouts, taken here since here they are read."""
    seconds: float


@task(name="build batch", cache_policy=NO_CACHE)
def build_batch(
    resources: Resources, *, stage: str, step: int, rollouts: ArtifactRef, policy_version: int
) -> BuiltBatch:
    """The G kept rollouts of every group with signal, as samples with their weights."""
    started = time.perf_counter()
    settings = resources.config.stages[stage]
    store = resources.ledger.store
    groups = read_rollouts(store.local_path(rollouts))
    dropped = {g.problem_id: reason for g in groups if (reason := _why_dropped(g, settings))}
    kept = [
        _keep(group, settings, derived_seed(resources.config.seed, stage, step, group.problem_id))
        for group in groups
        if group.problem_id not in dropped
    ]
    batch = Batch(
        stage=stage, step=step, policy_version=policy_version, samples=build_samples(kept)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batch.parquet"
        write_batch(path, batch)
        key = resources.ledger.key(stage, f"step-{step:05d}", "batch.parquet")
        ref = store.put_file(path, key, kind="batch")
    return BuiltBatch(
        batch=ref,
        num_groups=len(kept),
        kept_rollout_ids=tuple(r.rollout_id for group in kept for r in group.rollouts),
        dropped=dropped,
        statistics=rollout_statistics(groups, group_size=settings.group_size),
        seconds=time.perf_counter() - started,
    )


def _why_dropped(group: Group, settings: StageConfig) -> str:
    if len(group.decided) < settings.group_size:
        return f"only {len(group.decided)} of {len(group.rollouts)} rollouts were decided"
    if not group.has_signal:
        solved = group.decided[0].reward == 1.0
        return "every rollout was correct" if solved else "no rollout was correct"
    return ""


def _keep(group: Group, settings: StageConfig, seed: int) -> Group:
    kept = resample_on_correct(group, group_size=settings.group_size, rule=settings.roc, seed=seed)
    assert kept is not None, "groups with fewer than G decided rollouts were dropped before"
    return kept
