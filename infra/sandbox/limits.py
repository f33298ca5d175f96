"""What one call may use, and how much a running call has used so far.

Reads /proc of the zygote's namespace; writes resource limits of this process. CPU time is THE
limit and is enforced by the parent, which reads it here: RLIMIT_CPU counts whole seconds of one
process only, and stays as a backstop. Memory of a whole process tree is watched the same way.
"""

from __future__ import annotations

import math
import os
import resource
import time
from typing import NamedTuple

MIB = 1 << 20
FILE_BYTES = 16 * MIB
"""Largest file that a call may write."""
TMPFS_BYTES = 32 * MIB
TMPFS_INODES = 4096
NUM_PROCESSES = 64
"""Processes and threads of one call; on rung B, which has one user, of all slots together."""
NUM_FILES = 128
OUTPUT_FACTOR = 4
"""A stream that reaches this multiple of its limit ends the program: far under what a program
that prints for ever reaches within its CPU limit, so that such a program always ends the same."""
_PAGE = resource.getpagesize()
_TICK = os.sysconf("SC_CLK_TCK")
_CLOCK_OF_PROCESS = 2


STARVED_FACTOR = 4.0
"""Over the wall limit: how long a call that gets no processor may take at the most."""


class CallLimits(NamedTuple):
    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int
    output_bytes: int
    """Of stdout and of stderr, each."""


class Usage(NamedTuple):
    cpu_seconds: float
    memory_bytes: int


def limit_zygote() -> None:
    """Limits that are the same for every call, inherited from the zygote."""
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (value, value))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # four descriptors a running call
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def limit_call(
    limits: CallLimits, *, zygote_bytes: int, num_items: int, num_processes: int
) -> None:
    """Limits of one call, set in the child. Address space is counted on top of the zygote's.

    The time limits hold for each of `num_items`, one after another in one process.
    """
    memory = zygote_bytes + limits.memory_bytes
    cpu = math.ceil(limits.cpu_seconds * num_items) + 1
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    if num_processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (num_processes, num_processes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (NUM_FILES, NUM_FILES))


def address_space_bytes() -> int:
    """Virtual memory of this process; a generous constant where /proc is hidden."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * _PAGE
    except FileNotFoundError:
        return 512 * MIB


def num_threads() -> int:
    """Threads of this process: a zygote must have one, or its children inherit held locks."""
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:
        return 1


def usage_of(pid: int) -> Usage:
    """CPU time and memory of process `pid` and everything it started.

    Where /proc is hidden only the CPU time of the process itself is known.
    """
    try:
        cpu = time.clock_gettime((~pid << 3) | _CLOCK_OF_PROCESS)
    except OSError:
        return Usage(0.0, 0)
    memory = 0
    for process in _tree(pid):
        own, waited, resident = _read_process(process)
        cpu += waited if process == pid else own + waited
        memory += resident
    return Usage(cpu, memory)


def starved_seconds(pid: int) -> float:
    """How long the process, or what it started, was ready to run and got no processor.

    The longest of any of its threads; 0.0 where the kernel does not say.
    """
    longest = 0
    for process in _tree(pid):
        for thread in _threads_of(process):
            try:
                with open(f"/proc/{process}/task/{thread}/schedstat") as file:
                    longest = max(longest, int(file.read().split()[1]))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return longest / 1e9


def children_of(pid: int) -> list[int]:
    """Process ids of the children of every thread of `pid`."""
    found: list[int] = []
    for thread in _threads_of(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(int(child) for child in file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _threads_of(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _tree(pid: int) -> list[int]:
    found = [pid]
    for process in found:
        found.extend(children_of(process))
    return found


def _read_process(pid: int) -> tuple[float, float, int]:
    """CPU seconds of its own, CPU seconds of children it waited for, resident bytes not shared."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        with open(f"/proc/{pid}/statm") as file:
            statm = file.read().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0, 0
    own = (int(fields[11]) + int(fields[12])) / _TICK
    waited = (int(fields[13]) + int(fields[14])) / _TICK
    return own, waited, int(statm[1]) * _PAGE
