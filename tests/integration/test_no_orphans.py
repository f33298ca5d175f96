"""What a run owns dies with it: the sandbox calls of a client that is gone end within a second."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_daemons import is_left_alone

from infra.sandbox.resident import daemon_status, stop_daemon

CLIENT = """
import asyncio, sys
from pathlib import Path
from infra.sandbox.client import open_sandbox
from rstar2.config import SandboxConfig

async def call_for_ever():
    config = SandboxConfig(cpu_seconds=200, wall_seconds=200, min_rung="D")
    async with open_sandbox(config, Path(sys.argv[1])) as sandbox:
        print("open", flush=True)
        sleep = "import os, time\\nos.fork()\\ntime.sleep(200)"
        await asyncio.gather(*(sandbox.run(sleep, call_id=f"orphan/{n}") for n in range(2)))

asyncio.run(call_for_ever())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_calls_of_a_client_that_is_gone_end_within_a_second(
    tmp_path: Path, how: signal.Signals
) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == b"open\n"
        wait_until_busy(tmp_path)
        client.send_signal(how)
        client.wait(timeout=10)
        assert is_left_alone(tmp_path, seconds=1.0)
        assert daemon_status(tmp_path) is not None, "the daemon is meant to outlive its clients"
    finally:
        client.kill()
        client.communicate()
        stop_daemon(tmp_path)


def wait_until_busy(state_dir: Path) -> None:
    deadline = time.monotonic() + 30
    while is_left_alone(state_dir, seconds=0.05):
        assert time.monotonic() < deadline, "no call began"
