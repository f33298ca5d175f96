"""Whether what a stage works with works: asked before the stage, after a loss, and at its end.

Asks sandbox, pool and trainer at once, each for real work in small, and whether the pool serves the
weights that the trainer holds. Writes nothing; the answers go into the stage's manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.health import Resource, ResourceHealth, require_ready
from tasks.resources import Resources

SHOWN_DIGITS = 12
"""Of a checksum, in a message."""


@task(name="check resources", task_run_name="check resources {when}", cache_policy=NO_CACHE)
def check_resources(
    resources: Resources, *, when: Literal["before", "after"]
) -> tuple[ResourceHealth, ...]:
    """The health of each resource. Raises `ResourceError` where a stage would begin without one.

    After a stage the answers are only told: its work is done.
    """
    healths = ask_resources(resources)
    if when == "before":
        require_ready(healths)
    return healths


def ask_resources(resources: Resources) -> tuple[ResourceHealth, ...]:
    """The health of sandbox, pool, and trainer where the stage has one."""
    parts: list[Resource] = [resources.sandbox, resources.pool]
    if resources.trains:
        parts.append(resources.trainer)
    sandbox, pool, *trainer = resources.loop.run_until_complete(_ask(parts))
    return sandbox, _with_same_weights(resources, pool), *trainer


async def _ask(parts: Sequence[Resource]) -> list[ResourceHealth]:
    return await asyncio.gather(*(part.check() for part in parts))


def _with_same_weights(resources: Resources, health: ResourceHealth) -> ResourceHealth:
    """The pool's health; not ready where it samples with other weights than those trained."""
    if not resources.trains or not health.is_ready:
        return health
    ours, theirs = resources.pool.weights, resources.trainer.weights
    if ours == theirs:
        return health
    return replace(
        health,
        is_ready=False,
        capacity=0,
        seen=f"it serves weights {ours[:SHOWN_DIGITS]} (policy version "
        f"{resources.pool.policy_version}), the trainer holds {theirs[:SHOWN_DIGITS]}",
        remedy="start the same run again: both are opened at its last committed step",
    )
