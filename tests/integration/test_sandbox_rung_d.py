"""The last rung, limits without isolation: refused unless asked for, and then still bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sandbox_daemons import daemon_on_rung, is_left_alone

from infra.sandbox.client import Sandbox, open_sandbox
from rstar2.config import SandboxConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG = SandboxConfig(cpu_seconds=0.5, wall_seconds=5.0, memory_mib=256, min_rung="D")


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rungD")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(state_dir: Path) -> AsyncIterator[Sandbox]:
    with daemon_on_rung(state_dir, "D"):
        async with open_sandbox(CONFIG, state_dir, replace=False) as opened:
            yield opened


async def test_runs_code_and_says_on_which_rung(sandbox: Sandbox) -> None:
    result = await sandbox.run("import numpy\nnumpy.eye(2).sum()", call_id="numpy")
    assert (result.status, result.value, result.rung) == ("ok", "np.float64(2.0)", "D")


async def test_time_network_and_environment_are_bounded(sandbox: Sandbox) -> None:
    loop = await sandbox.run("while True: pass", call_id="loop")
    network = await sandbox.run("import socket\nsocket.socket()", call_id="network")
    environment = await sandbox.run("import os\ndict(os.environ)", call_id="environment")
    assert loop.status == "timeout_cpu"
    assert network.stderr.endswith("PermissionError: [Errno 1] Operation not permitted\n")
    assert environment.value == "{}"


async def test_daemonised_grandchildren_die_with_the_call(
    sandbox: Sandbox, state_dir: Path
) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n"
        "    os._exit(0)\nprint('done')"
    )
    result = await sandbox.run(code, call_id="daemon")
    assert (result.status, result.stdout) == ("ok", "done\n")
    assert is_left_alone(state_dir)
