"""Background processes are found by their pid file, and only ours are ever stopped."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.background import (
    BackgroundProcess,
    BusyError,
    find_background,
    is_running,
    one_at_a_time,
    start_background,
    stop_background,
)
from infra.settings import child_environment

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True);"
    "time.sleep(300)",
]


def test_a_process_that_nobody_could_find_again_is_not_left_running(tmp_path: Path) -> None:
    (tmp_path / "thing.json").mkdir()
    marker = tmp_path / "alive"
    linger = f"import time\nwhile True: open({str(marker)!r}, 'w').close(); time.sleep(0.05)"
    with pytest.raises(OSError, match="thing"):
        start(tmp_path, [sys.executable, "-c", linger])
    marker.unlink(missing_ok=True)
    time.sleep(0.3)
    assert not marker.exists()


def test_a_process_keeps_the_lock_that_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        start_background(
            SLEEP,
            pid_file=tmp_path / "thing.json",
            log_file=tmp_path / "thing.log",
            folder=tmp_path,
            environment=child_environment({}),
            held=[lock.fileno()],
        )
    with path.open("w") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert stop_background(tmp_path / "thing.json", grace_seconds=20)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_who_waits_too_long_for_a_turn_is_told_for_what(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "start.lock"
    with one_at_a_time(path, work="starting it", seconds=60.0):
        with pytest.raises(BusyError, match=r"has been starting it for over 0 s; end it \(`fuser"):
            with one_at_a_time(path, work="starting it", seconds=0.0):
                pass
    with one_at_a_time(path, work="starting it", seconds=0.0):
        pass


def start(folder: Path, command: list[str]) -> BackgroundProcess:
    return start_background(
        command,
        pid_file=folder / "thing.json",
        log_file=folder / "thing.log",
        folder=folder,
        environment=child_environment({}),
        address="here",
    )


def test_a_process_is_found_again_and_stopped(tmp_path: Path) -> None:
    process = start(tmp_path, SLEEP)
    assert find_background(tmp_path / "thing.json") == process
    assert stop_background(tmp_path / "thing.json", grace_seconds=10)
    assert not is_running(process)
    assert find_background(tmp_path / "thing.json") is None


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, STUBBORN)
    while "deaf" not in (tmp_path / "thing.log").read_text():
        time.sleep(0.02)
    assert stop_background(tmp_path / "thing.json", grace_seconds=0.2)
    deadline = time.monotonic() + 20
    while is_running(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(process)


def test_a_recycled_pid_is_not_ours(tmp_path: Path) -> None:
    """The file names a live process that started at another time: it gets no signal."""
    stranger = subprocess.Popen(SLEEP)
    record = {"pid": stranger.pid, "started": "1", "log_file": "", "address": ""}
    (tmp_path / "thing.json").write_text(json.dumps(record))
    assert find_background(tmp_path / "thing.json") is None
    assert not stop_background(tmp_path / "thing.json", grace_seconds=1)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_damaged_pid_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "thing.json").write_text('{"pid": ')
    assert find_background(tmp_path / "thing.json") is None


def test_a_finished_process_is_not_running(tmp_path: Path) -> None:
    process = start(tmp_path, [sys.executable, "-c", "pass"])
    deadline = time.monotonic() + 20
    while is_running(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert find_background(tmp_path / "thing.json") is None
    assert process.pid != os.getpid()
