"""The sandbox with its real daemon, interpreters and kernel isolation."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infra.sandbox.client import Sandbox, open_sandbox
from infra.sandbox.resident import daemon_status, stop_daemon
from rstar2.config import SandboxConfig
from rstar2.types import ToolCall, ToolStatus, VerdictKind

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG = SandboxConfig(cpu_seconds=1.0, wall_seconds=5.0, memory_mib=256)


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandbox")


@pytest.fixture(scope="module")
async def sandbox(state_dir: Path) -> AsyncIterator[Sandbox]:
    async with open_sandbox(CONFIG, state_dir) as opened:
        yield opened
    stop_daemon(state_dir)


async def test_runs_code_and_shows_the_value_of_the_last_expression(sandbox: Sandbox) -> None:
    result = await sandbox.run("print('a')\nx = 20\nx * 2 + 2", call_id="value")
    assert (result.status, result.stdout, result.value) == ("ok", "a\n", "42")
    assert result.rung == sandbox.rung


async def test_execute_maps_code_and_input_to_a_tool_result(sandbox: Sandbox) -> None:
    call = ToolCall(name="python", arguments={"code": "print(int(input()) + 1)", "input": "41\n"})
    result = await sandbox.execute(call, call_id="execute")
    assert (result.status, result.stdout, result.detail) == (ToolStatus.OK, "42\n", "")


async def test_execute_answers_code_that_is_no_string_as_malformed(sandbox: Sandbox) -> None:
    call = ToolCall(name="python", arguments={"code": ["print(1)"]})
    result = await sandbox.execute(call, call_id="list")
    assert result.status is ToolStatus.MALFORMED
    assert result.detail == "code: expected a string, got list"


async def test_a_killed_daemon_is_restarted_and_the_call_answered(
    sandbox: Sandbox, state_dir: Path
) -> None:
    running = asyncio.create_task(
        sandbox.run("import time\ntime.sleep(0.5)\nprint('done')", call_id="orphan")
    )
    await asyncio.sleep(0.2)
    before = daemon_status(state_dir)
    assert before is not None
    os.kill(int(str(before["pid"])), signal.SIGKILL)
    result = await running
    after = daemon_status(state_dir)
    assert after is not None
    assert (result.status, result.stdout) == ("ok", "done\n")
    assert after["pid"] != before["pid"]


async def test_grades_equal_text_mathematics_and_strangers(sandbox: Sandbox) -> None:
    verdicts = await sandbox.grade([("2", "2"), ("\\frac{1}{2}", "\\frac{2}{4}"), ("3", "4")])
    assert [v.kind for v in verdicts] == [
        VerdictKind.CORRECT,
        VerdictKind.CORRECT,
        VerdictKind.INCORRECT,
    ]
