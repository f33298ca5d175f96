"""The faults of the crash matrix: how each is made while a run stands still, and how it is mended.

A fault gets the run stopped (SIGSTOP) where a phase begins, and lets go of it. One that ends the run is
mended after the end, before the resume; one that must be harmless is mended while the run goes on.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import boto3
from crash_bench import Bench, Deployed, Start, process_state, wait_for
from s3_servers import BUCKET, faulty_proxy, moto_server, s3_variables

from infra import services
from infra.prefect_api import post_json
from infra.settings import Settings

TERM_BIT = 1 << (signal.SIGTERM - 1)
FLAKY_SECONDS = 4.0
SERVER_AWAY_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    strike: Callable[[Bench, Start, int], None]
    """Makes the fault on the stopped process, and lets it go on where it lives."""
    mend: Callable[[Bench], None] = lambda _: None
    ends_run: bool = True
    is_deployed: bool = False


def killed(_: Bench, __: Start, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def terminated(_: Bench, __: Start, pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGCONT)


def cancelled(_: Bench, start: Start, pid: int) -> None:
    """In Prefect, as by the Cancel button; the process goes on when the signal waits for it."""
    assert isinstance(start, Deployed)
    state = {"type": "CANCELLING", "name": "Cancelling"}
    post_json(f"{start.url}/set_state", {"state": state})
    wait_for("the runner sends SIGTERM", lambda: _is_term_pending(pid))
    os.kill(pid, signal.SIGCONT)


def _is_term_pending(pid: int) -> bool:
    if not process_state(pid):
        return True
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask & TERM_BIT for mask in masks)


def server_killed(bench: Bench, _: Start, pid: int) -> None:
    _kill_server(bench.settings)
    os.kill(pid, signal.SIGCONT)


def server_restarted(bench: Bench, _: Start, pid: int) -> None:
    """Dead for seconds while the run goes on, then started again on the same database."""
    server_killed(bench, _, pid)
    time.sleep(SERVER_AWAY_SECONDS)
    services.ensure_server(bench.settings)


def _kill_server(settings: Settings) -> None:
    server = services.server_health(settings).pid
    if server is not None:
        os.killpg(server, signal.SIGKILL)
        wait_for("the server is dead", lambda: process_state(server) in ("Z", ""))


def disk_filled(bench: Bench, _: Start, pid: int) -> None:
    """Every free byte of the storage's own small disk."""
    with (Path(bench.storage).parent / "filler").open("wb", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while filler.write(b"\0" * size):
                    pass
            except OSError:  # full: fill the rest with smaller pieces
                continue
    os.kill(pid, signal.SIGCONT)


def disk_freed(bench: Bench) -> None:
    (Path(bench.storage).parent / "filler").unlink()


def file_size_limited(_: Bench, __: Start, pid: int) -> None:
    """What every user can do to a process: it writes no further byte to any file."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    os.kill(pid, signal.SIGCONT)


def storage_away(bench: Bench, _: Start, pid: int) -> None:
    """As a disk that is not mounted any more; what is written then goes to the empty place."""
    Path(bench.storage).rename(_aside(bench))
    os.kill(pid, signal.SIGCONT)


def storage_back(bench: Bench) -> None:
    shutil.rmtree(bench.storage, ignore_errors=True)
    _aside(bench).rename(bench.storage)


def _aside(bench: Bench) -> Path:
    return Path(bench.storage).with_name("aside")


@dataclass(slots=True)
class S3Faults:
    """What the proxy before the S3 server does to each request, and which uploads it saw."""

    refuses: bool = False
    is_flaky: bool = False
    uploads: list[str] = field(default_factory=list)
    _num_requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: BaseHTTPRequestHandler) -> str | None:
        with self._lock:
            self._num_requests += 1
            turn = self._num_requests
            if request.command == "PUT":
                self.uploads.append(request.path.partition("?")[0])
        if self.refuses:
            return "AccessDenied"
        if not self.is_flaky:
            return None
        if turn % 8 == 3:
            time.sleep(1.0)
        return {0: "drop", 1: "SlowDown", 2: "InternalError"}.get(turn % 8)

    def num_uploads(self, bench: Bench, key: str) -> int:
        """How often the object was written."""
        return self.uploads.count(f"/{bench.storage.removeprefix('s3://')}/{key}")

    def refuse(self, _: Bench, __: Start, pid: int) -> None:
        """Every request is denied, as after rotated keys."""
        self.refuses = True
        os.kill(pid, signal.SIGCONT)

    def heal(self, _: Bench) -> None:
        self.refuses = False

    def be_flaky(self, _: Bench, __: Start, pid: int) -> None:
        """Of eight requests: one reply lost after it was carried out, one 503, one 500, one slow.

        Not more of them: boto3 gives up at once where a process has retried too much of late.
        """
        self.is_flaky = True
        os.kill(pid, signal.SIGCONT)
        time.sleep(FLAKY_SECONDS)
        self.is_flaky = False


@contextmanager
def s3_server(settings: Settings, faults: S3Faults) -> Iterator[dict[str, str]]:
    """Variables for a real S3 server behind a proxy with these faults; copies lie in the bench."""
    with moto_server() as server, faulty_proxy(server, faults) as endpoint:
        variables = {**s3_variables(endpoint), "HOME": str(settings.state_folder)}
        os.environ.update(variables)
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield variables


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mounts 512 MB of memory at `folder`; False where this user may not."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512m", "rstar2-bench", str(folder)]
    is_mounted = not subprocess.run(command, capture_output=True, check=False).returncode
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], check=False)
