"""A background process of ours: started once, found again by its pid file, stopped by it.

Reads and writes one JSON pid file per process and appends the process's output to a log file. A
pid file holds the kernel's start time too, so a recycled pid is never taken for ours and never
gets a signal. Does not restart what died, and does not know what the process is for.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO


class BusyError(RuntimeError):
    """Another process holds a lock for longer than its work can take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackgroundProcess:
    pid: int
    started: str
    """The kernel's start time of the pid; opaque, only compared."""
    log_file: str
    address: str = ""
    """Where it answers, for a server."""


def start_background(
    command: Sequence[str],
    *,
    pid_file: Path,
    log_file: Path,
    folder: Path,
    environment: Mapping[str, str],
    address: str = "",
    held: Sequence[int] = (),
) -> BackgroundProcess:
    """Starts `command` in its own session: it outlives this process and its terminal.

    It inherits the descriptors `held` and keeps them for life: so it holds a lock.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        popen = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=held,
        )
    process = BackgroundProcess(
        pid=popen.pid, started=start_time(popen.pid), log_file=str(log_file), address=address
    )
    try:
        _write(pid_file, process)
    except OSError:  # nobody would find it again
        popen.kill()
        popen.wait()
        raise
    popen.returncode = 0  # it is meant to outlive us: nobody waits for it, and that is no warning
    return process


def _write(pid_file: Path, process: BackgroundProcess) -> None:
    temporary = pid_file.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(process)))
    temporary.replace(pid_file)


def find_background(pid_file: Path) -> BackgroundProcess | None:
    """The process that the file names if it still runs, else None."""
    try:
        process = BackgroundProcess(**json.loads(pid_file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return process if is_running(process) else None


def is_running(process: BackgroundProcess) -> bool:
    return bool(process.started) and start_time(process.pid) == process.started


def stop_background(pid_file: Path, *, grace_seconds: float) -> bool:
    """SIGTERM, then SIGKILL for its whole session; True if something was stopped."""
    process = find_background(pid_file)
    if process is not None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while is_running(process) and time.monotonic() < deadline:
            time.sleep(0.05)
        with suppress(ProcessLookupError):  # also what it started and left behind
            os.killpg(process.pid, signal.SIGKILL)
    pid_file.unlink(missing_ok=True)
    return process is not None


def last_lines(log_file: Path, count: int = 12) -> str:
    """The end of a log, indented, for an error message."""
    try:
        lines = log_file.read_text(errors="replace").splitlines()
    except OSError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in lines[-count:]) or "  (empty log)"


@contextmanager
def one_at_a_time(lock_file: Path, *, work: str, seconds: float) -> Iterator[None]:
    """Two starters on one machine take turns: the second finds what the first started.

    Raises `BusyError` for who waited `seconds` for the other's `work`.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("w") as lock:
        if not is_locked_within(lock, seconds):
            raise BusyError(
                f"another process has been {work} for over {seconds:g} s; end it "
                f"(`fuser {lock_file}` names it), then try again"
            )
        yield


def is_locked_within(file: IO[str], seconds: float) -> bool:
    """Whether this process got the lock of the open file in that time."""
    deadline = time.monotonic() + seconds
    while not _is_locked_now(file):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _is_locked_now(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def start_time(pid: int) -> str:
    """Opaque start time of a live process; empty for none and for a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        return _start_time_from_ps(pid)
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _start_time_from_ps(pid: int) -> str:
    """Where there is no /proc (macOS)."""
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return "" if not answer or answer.startswith("Z") else " ".join(answer.split()[1:])
