"""A zygote seen from the daemon: started on a rung, spoken to over a socket, ended.

Reads and writes that socket; its log goes to the daemon's. A started zygote is the daemon's own
child (its starter exits and the daemon adopts it), so its process id cannot be reused before the
daemon has waited for it. Knows nothing of calls, queues or slots.
"""

from __future__ import annotations

import asyncio
import json
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from infra.sandbox.isolation import Entry, Rung, project_folder
from infra.sandbox.limits import NUM_PROCESSES

START_SECONDS = 120.0
"""For a tier to import and warm up, on a busy machine."""
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from infra.sandbox import isolation; "
    "isolation.main()"
)


class ZygoteError(Exception):
    """A zygote could not be started. The message says at which step."""


class Warm(NamedTuple):
    """How zygotes of this daemon are started."""

    rung: Rung
    with_proc: bool
    mount_point: str
    project: str
    num_processes: int
    first_user_id: int
    node: str


def warmth(state_dir: Path, rung: Rung, *, with_proc: bool, num_slots: int) -> Warm:
    """How zygotes are started on `rung`; makes the folder that their root is mounted on."""
    mount_point = state_dir / "root"
    mount_point.mkdir(exist_ok=True)
    return Warm(
        rung=rung,
        with_proc=with_proc,
        mount_point=str(mount_point),
        project=str(project_folder()),
        num_processes={"A": NUM_PROCESSES, "B": NUM_PROCESSES * num_slots}.get(rung, 0),
        # Apart for each daemon: RLIMIT_NPROC counts by user id.
        first_user_id=1_000_000_000 + (os.getpid() % 1_000_000) * 1_000,
        node=f"{socket.gethostname()}/{os.getpid()}",
    )


@dataclass(slots=True, eq=False)
class ZygoteProcess:
    """A started zygote; the owner sets the two callbacks before anything can arrive."""

    tier: str
    pid: int
    packages: list[str]
    writer: asyncio.StreamWriter
    on_message: Callable[[tuple], object] = field(default=lambda _: None)
    on_death: Callable[[ZygoteProcess], object] = field(default=lambda _: None)
    listening: asyncio.Task[None] | None = None

    def send(self, message: tuple) -> None:
        body = marshal.dumps(message)
        self.writer.write(len(body).to_bytes(4, "big") + body)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


async def start_zygote(warm: Warm, tier: str) -> ZygoteProcess:
    """A zygote that has warmed up and waits for calls. Raises `ZygoteError`."""
    ours, theirs = socket.socketpair()
    entry = Entry(
        rung=warm.rung,
        tier=tier,
        control_fd=theirs.fileno(),
        mount_point=warm.mount_point,
        project=warm.project,
        with_proc=warm.with_proc,
        num_processes=warm.num_processes,
        first_user_id=warm.first_user_id,
    )
    try:
        pid = await asyncio.to_thread(_spawn, entry)
    finally:
        theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        ready = await asyncio.wait_for(_receive(reader), START_SECONDS)
    except TimeoutError:
        ready = None
    if ready is None:
        writer.close()
        await asyncio.to_thread(_end, pid)
        raise ZygoteError(f"the {tier} interpreter did not start on rung {warm.rung}; see the log")
    zygote = ZygoteProcess(tier, pid, ready[1], writer)
    zygote.listening = asyncio.create_task(_listen(zygote, reader))
    return zygote


def _spawn(entry: Entry) -> int:
    """Starts it and returns the process id of what will be the zygote."""
    command = [sys.executable, "-s", "-P", "-B", "-c", _START, entry.project, json.dumps([*entry])]
    with open("/dev/null", "rb") as null:
        starter = subprocess.Popen(
            command,
            stdin=null,
            stdout=subprocess.PIPE,
            pass_fds=[entry.control_fd],
            cwd="/",
            env={},
        )
    assert starter.stdout is not None
    line = starter.stdout.readline()
    starter.stdout.close()
    if not line.strip():
        raise ZygoteError(f"rung {entry.rung} refused by the system (exit {starter.wait()})")
    pid = int(line)
    if pid != starter.pid:
        starter.wait()
    else:
        starter.returncode = 0  # the zygote itself: waited for at its end
    return pid


async def _listen(zygote: ZygoteProcess, reader: asyncio.StreamReader) -> None:
    while (message := await _receive(reader)) is not None:
        zygote.on_message(message)
    zygote.writer.close()
    await asyncio.to_thread(_end, zygote.pid)
    zygote.on_death(zygote)


async def _receive(reader: asyncio.StreamReader) -> tuple | None:
    try:
        head = await reader.readexactly(4)
        body = await reader.readexactly(int.from_bytes(head, "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    message: tuple = marshal.loads(body)
    return message


def _end(pid: int) -> None:
    """Kills it, and with it its namespace and every call; returns when all are gone."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
