"""A sandbox daemon for each rung that can be reached here, for the sandbox's cases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sandbox_daemons import daemon_on_rung, is_left_alone, rungs_here

from infra.sandbox.client import Sandbox, open_sandbox
from rstar2.config import SandboxConfig

CONFIG = SandboxConfig(
    cpu_seconds=0.5, wall_seconds=8.0, memory_mib=256, output_bytes=10_000, num_slots=2
)


@pytest.fixture(scope="module", params=rungs_here())
def rung(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory, rung: str) -> Path:
    return tmp_path_factory.mktemp(f"rung{rung}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(state_dir: Path, rung: str) -> AsyncIterator[Sandbox]:
    with daemon_on_rung(state_dir, rung):
        async with open_sandbox(CONFIG, state_dir, replace=False) as sandbox:
            yield sandbox


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(opened: Sandbox, state_dir: Path, rung: str) -> AsyncIterator[Sandbox]:
    yield opened
    benign = await opened.run("print(6 * 7)", call_id="benign")
    assert (benign.status, benign.stdout, benign.rung) == ("ok", "42\n", rung)
    assert is_left_alone(state_dir)
