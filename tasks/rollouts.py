"""Collects the groups of a step: draws problems, samples 2G rollouts each, grades, refills.

Reads the stage's problem set, writes one Parquet part. Draws are pure functions of seed, stage, step
and round, and rollouts of their seed, so a step that is collected again gives the same groups.
Commits nothing: what is not in a manifest did not happen.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.health import ResourceError
from infra.rollout import pool
from infra.rollout.embedded import EngineClosedError
from infra.sandbox.verifier import UNAVAILABLE_REASON
from rstar2.agent_loop import Limits, run_rollout
from rstar2.config import StageConfig
from rstar2.reward import apply_verdict, known_verdict
from rstar2.rollout_files import read_problems, write_rollouts
from rstar2.rounds import groups_of_step
from rstar2.types import ArtifactRef, Group, Problem, Rollout, RolloutStatus
from tasks.resources import Resources


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """The sampled groups of a step, by reference."""

    rollouts: ArtifactRef
    num_rounds: int
    seconds: float


@task(name="collect groups", cache_policy=NO_CACHE)
def collect_groups(
    resources: Resources, *, stage: str, step: int, problem_set: ArtifactRef
) -> Collected:
    """Samples the step's groups, refill rounds included, and stores all of them."""
    started = time.perf_counter()
    settings = resources.config.stages[stage]
    problems = read_problems(resources.ledger.store.local_path(problem_set))
    limits = stage_limits(resources, settings)
    groups, num_rounds = groups_of_step(
        problems,
        settings,
        stage=stage,
        step=step,
        seed=resources.config.seed,
        sample=lambda drawn: sample_groups(
            resources,
            drawn,
            limits=limits,
            num_rollouts=settings.num_rollouts,
            prefix=f"{stage}/{step}",
        ),
    )
    ref = store_groups(resources, groups, resources.ledger.key(stage, f"step-{step:05d}"))
    return Collected(rollouts=ref, num_rounds=num_rounds, seconds=time.perf_counter() - started)


def sample_groups(
    resources: Resources,
    problems: Sequence[Problem],
    *,
    limits: Limits,
    num_rollouts: int,
    prefix: str,
) -> list[Group]:
    """`num_rollouts` graded rollouts of each problem; order and content depend on arguments only.

    Those that the sandbox was away from are sampled once more, to the same tokens. Raises
    `ResourceError` where it, or the pool, stays away.
    """
    jobs = [
        (problem, f"{prefix}/{problem.problem_id}/{index}")
        for problem in problems
        for index in range(num_rollouts)
    ]
    rollouts = _sample(resources, jobs, limits)
    lost = [n for n, rollout in enumerate(rollouts) if was_unavailable(rollout)]
    if lost:
        _check_sandbox_is_back(resources, num_lost=len(lost), num_rollouts=len(jobs))
        again = _sample(resources, [jobs[n] for n in lost], limits)
        for n, rollout in zip(lost, again, strict=True):
            rollouts[n] = rollout
        resources.num_rollouts_redone += len(lost)
    if failed := sum(map(was_unavailable, rollouts)):
        _check_sandbox_is_back(resources, num_lost=failed, num_rollouts=len(jobs))
        resources.num_failed_rollouts += failed
    return [
        Group(
            problem_id=problem.problem_id,
            rollouts=tuple(rollouts[n * num_rollouts : (n + 1) * num_rollouts]),
        )
        for n, problem in enumerate(problems)
    ]


def was_unavailable(rollout: Rollout) -> bool:
    """It has no reward since the sandbox was away, from a call of it or from its answer's check."""
    is_unchecked = rollout.reward is None and rollout.verdict_reason == UNAVAILABLE_REASON
    return rollout.status is RolloutStatus.FAILED or is_unchecked


def stage_limits(resources: Resources, settings: StageConfig) -> Limits:
    rollout = resources.config.rollout
    return Limits(
        max_response_tokens=settings.max_response_tokens,
        max_turns=settings.max_turns,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
    )


def store_groups(resources: Resources, groups: Sequence[Group], key: str) -> ArtifactRef:
    """Writes the groups as one Parquet part under `key`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.parquet"
        write_rollouts(path, groups)
        return resources.ledger.store.put_file(path, f"{key}/rollouts.parquet", kind="rollouts")


def derived_seed(*parts: object) -> int:
    """63 bits that depend on the parts alone."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


Jobs = Sequence[tuple[Problem, str]]
"""A problem and the rollout id of one attempt at it: the rollout is a function of both."""


def _sample(resources: Resources, jobs: Jobs, limits: Limits) -> list[Rollout]:
    try:
        return resources.loop.run_until_complete(_sample_all(resources, jobs, limits))
    except EngineClosedError as error:
        raise ResourceError(f"{pool.NAME}: {error}; {pool.REMEDY}") from error


async def _sample_all(resources: Resources, jobs: Jobs, limits: Limits) -> list[Rollout]:
    tasks = [
        asyncio.create_task(_graded_rollout(resources, problem, limits, rollout_id))
        for problem, rollout_id in jobs
    ]
    try:
        return await asyncio.gather(*tasks)
    finally:  # where one raised, the others would go on
        for task_of_rollout in tasks:
            task_of_rollout.cancel()


def _check_sandbox_is_back(resources: Resources, *, num_lost: int, num_rollouts: int) -> None:
    """Raises `ResourceError` where it is not: nothing of this step is committed."""
    health = resources.loop.run_until_complete(resources.sandbox.check())
    if not health.is_ready:
        raise ResourceError(
            f"{health.name}: lost while {num_rollouts} rollouts ran, {num_lost} of them failed "
            f"and none of them counts: {health.seen}; {health.remedy}"
        )


async def _graded_rollout(
    resources: Resources, problem: Problem, limits: Limits, rollout_id: str
) -> Rollout:
    rollout = await run_rollout(
        problem,
        resources.chat,
        resources.pool.generate,
        resources.execute,
        limits=limits,
        rollout_id=rollout_id,
        seed=derived_seed(resources.config.seed, rollout_id),
    )
    if rollout.status is RolloutStatus.FAILED:
        return rollout
    verdict = known_verdict(rollout)
    if verdict is None:
        (verdict,) = await resources.sandbox.grade([(problem.answer, rollout.answer or "")])
    return apply_verdict(rollout, verdict)
