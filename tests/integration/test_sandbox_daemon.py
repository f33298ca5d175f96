"""The sandbox's daemon: one for a folder, of the settings asked for, refused where it is too weak."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from infra.sandbox.client import open_sandbox
from infra.sandbox.resident import daemon_status, stop_daemon
from rstar2.config import SandboxConfig

CONFIG = SandboxConfig(cpu_seconds=1.0, wall_seconds=5.0, memory_mib=256)


def _health(state_dir: Path) -> dict[str, object]:
    health = daemon_status(state_dir)
    assert health is not None
    return health


async def test_a_daemon_of_other_settings_is_replaced(tmp_path: Path) -> None:
    try:
        async with open_sandbox(CONFIG, tmp_path):
            before = _health(tmp_path)
        other = CONFIG.model_copy(update={"num_slots": 1})
        async with open_sandbox(other, tmp_path, replace=False):
            assert _health(tmp_path)["pid"] == before["pid"]
        async with open_sandbox(other, tmp_path):
            assert _health(tmp_path)["num_slots"] == 1
    finally:
        assert stop_daemon(tmp_path)
    assert daemon_status(tmp_path) is None
    assert not stop_daemon(tmp_path)


async def test_two_clients_that_start_at_once_share_one_daemon(tmp_path: Path) -> None:
    async def pid() -> object:
        async with open_sandbox(CONFIG, tmp_path) as sandbox:
            return (await sandbox.health())["pid"]

    try:
        pids = await asyncio.gather(*(pid() for _ in range(3)))
    finally:
        stop_daemon(tmp_path)
    assert len(set(pids)) == 1


async def test_a_rung_that_cannot_be_reached_refuses_with_the_remedy(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infra.sandbox.daemon", "--state-dir", str(tmp_path)]
    command += ["--max-rung", "D", "--min-rung", "B"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "no isolation rung at or above 'B'" in done.stdout
    assert 'sandbox.min_rung = \\"D\\"' in done.stdout


async def test_client_and_daemon_load_neither_torch_nor_prefect() -> None:
    code = (
        "import sys, infra.sandbox.client, infra.sandbox.daemon, infra.sandbox.resident\n"
        "print([m for m in ('torch', 'prefect', 'transformers', 'duckdb') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


async def test_a_socket_path_too_long_for_the_kernel_works(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    try:
        async with open_sandbox(CONFIG, folder) as sandbox:
            assert (await sandbox.run("1", call_id="long")).value == "1"
    finally:
        stop_daemon(folder)
