"""What a resource of a stage says when it is asked whether it works: one value, one protocol.

A check does the resource's real work in small (a call, a token, a look at every weight), never only a
ping. Reads and writes nothing itself; decides nothing: what a stage does with an answer is the
stage's business. Servers, nodes and ranks answer the same question, each for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CHECK_SECONDS = 15.0
"""A resource that has not answered by then is not ready. Far above what a busy machine takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceHealth:
    """One resource's answer."""

    name: str
    """`sandbox`, `rollout pool` or `trainer`."""
    is_ready: bool
    capacity: int
    """What it does at once: calls, rollouts, ranks. 0 where it is not ready."""
    seen: str
    """What it is; where it is not ready, what is wrong with it."""
    remedy: str = ""
    """What a person does about that; empty where it is ready."""


class Resource(Protocol):
    """Whatever a stage cannot do without. `check` never raises for a resource that is lost."""

    async def check(self) -> ResourceHealth: ...


class ResourceError(RuntimeError):
    """A stage lacks a resource. The message names it, what was seen and the remedy."""


def not_ready(name: str, seen: str, remedy: str) -> ResourceHealth:
    return ResourceHealth(name=name, is_ready=False, capacity=0, seen=seen, remedy=remedy)


def require_ready(healths: Sequence[ResourceHealth]) -> None:
    """Raises `ResourceError` where one is not ready."""
    missing = [health for health in healths if not health.is_ready]
    if missing:
        raise ResourceError("; ".join(f"{h.name}: {h.seen}; {h.remedy}" for h in missing))
