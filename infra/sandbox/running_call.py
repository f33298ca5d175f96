"""One forked call as the zygote sees it: its files, what it has used, when it must be looked at.

Reads its usage from /proc; kills it when it is over a limit, and remembers why. Does not fork it, does
not wait for it, and never reads what it wrote.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import NamedTuple

from infra.sandbox import limits, memory_files

VERDICT_BYTES = 1 << 20
POLL_SECONDS = 0.05
_SHORTEST_POLL_SECONDS = 0.002


class Call(NamedTuple):
    """What the daemon sends. `handle` is the daemon's number: children never see a call id."""

    handle: int
    slot: int
    payload: str | tuple[tuple[str, str], ...]
    """Source code, or pairs of gold and answer (verify tier)."""
    stdin: str
    seed: int
    limits: tuple[float, float, int, int]


class Running:
    """A forked call and what its limits look like."""

    __slots__ = (
        "base_cpu", "base_wall", "err_fd", "folder", "handle", "is_streamed", "limits", "next_check",
        "num_answered", "out_fd", "pid", "pidfd", "reason", "slot", "started", "value_fd",
    )  # fmt: skip

    def __init__(self, call: Call) -> None:
        self.handle = call.handle
        self.slot = call.slot
        self.limits = limits.CallLimits(*call.limits)
        cap = self.limits.output_bytes * limits.OUTPUT_FACTOR
        self.out_fd = memory_files.memory_file(cap)
        self.err_fd = memory_files.memory_file(cap)
        self.is_streamed = not isinstance(call.payload, str)
        """Our checker runs, no snippet: only then do verdicts move the limits."""
        self.value_fd = memory_files.memory_file(
            VERDICT_BYTES if self.is_streamed else memory_files.VALUE_FILE_BYTES
        )
        self.pid = self.pidfd = -1
        self.folder = ""  # its own on the disk, where it has no tmpfs
        self.reason = ""
        self.started = self.base_wall = time.monotonic()
        self.base_cpu = 0.0
        self.num_answered = 0
        self.next_check = self.started


def check_limits(call: Running, now: float) -> None:
    """Kills a call that is over a limit, and says when to look at it next.

    Where verdicts are streamed, each one that arrives starts the time limits anew.
    """
    used = limits.usage_of(call.pid)
    if call.is_streamed:
        num_answered = os.lseek(call.value_fd, 0, os.SEEK_CUR)
        if num_answered > call.num_answered:
            call.num_answered, call.base_cpu, call.base_wall = num_answered, used.cpu_seconds, now
    cpu_left = call.limits.cpu_seconds - (used.cpu_seconds - call.base_cpu)
    wall_left = _wall_left(call, now)
    if used.memory_bytes > call.limits.memory_bytes:
        kill(call, "oom")
    elif cpu_left <= 0:
        kill(call, "timeout_cpu")
    elif wall_left <= 0:
        kill(call, "timeout_wall")
    else:
        pause = min(POLL_SECONDS, cpu_left, wall_left)
        call.next_check = now + max(_SHORTEST_POLL_SECONDS, pause)


def _wall_left(call: Running, now: float) -> float:
    """Seconds until the wall limit; what a busy machine took from the call does not count."""
    limit, passed = call.limits.wall_seconds, now - call.base_wall
    if limit < passed < limit * limits.STARVED_FACTOR:
        passed -= limits.starved_seconds(call.pid)
    return limit - passed


def kill(call: Running, reason: str) -> None:
    call.reason = reason
    signal.pidfd_send_signal(call.pidfd, signal.SIGKILL)
    call.next_check = time.monotonic() + 3600.0


def close(call: Running) -> None:
    """Frees its descriptors and its folder."""
    for fd in (call.out_fd, call.err_fd, call.value_fd, call.pidfd):
        if fd >= 0:
            os.close(fd)
    if call.folder:
        _remove(call.folder)


def _remove(folder: str) -> None:
    """What cannot be removed (a tree made too deep on purpose) stays: no other call uses it."""
    with suppress(RecursionError):
        for parent, folders, files in os.walk(folder, topdown=False):
            for name in files:
                with suppress(OSError):
                    os.unlink(f"{parent}/{name}")
            for name in folders:
                with suppress(OSError):
                    os.rmdir(f"{parent}/{name}")
    with suppress(OSError):
        os.rmdir(folder)
