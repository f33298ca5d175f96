"""Starts a sandbox daemon on a chosen rung, for tests; looks for what a call left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.sandbox.limits import children_of
from infra.sandbox.resident import daemon_status, sandbox_folder, stop_daemon


@contextmanager
def daemon_on_rung(state_dir: Path, rung: str) -> Iterator[None]:
    """A daemon of `state_dir` that tries no stronger rung than `rung`, and none weaker."""
    command = [sys.executable, "-m", "infra.sandbox.daemon", "--max-rung", rung]
    command += ["--min-rung", rung, "--state-dir", str(sandbox_folder(state_dir))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert b"ready" in line, line
        yield
    finally:
        stop_daemon(state_dir)
        process.wait(timeout=30)


def is_left_alone(state_dir: Path, seconds: float = 2.0) -> bool:
    """Whether, within `seconds`, no interpreter of the daemon has a child any more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        health = daemon_status(state_dir)
        assert health is not None
        tiers = health["tiers"]
        assert isinstance(tiers, dict)
        if not any(children_of(tier["pid"]) for tier in tiers.values()):
            return True
        time.sleep(0.05)
    return False


def rungs_here() -> list[str]:
    """The rungs that this user can reach on this machine's kernel."""
    return ["A", "B"] if os.geteuid() == 0 else ["B"]
