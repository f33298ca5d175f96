"""The sandbox's daemon is killed, stopped, or cannot come back, while calls are in flight."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from infra.sandbox.client import LOST_SECONDS, Sandbox, open_sandbox
from infra.sandbox.resident import (
    SandboxError,
    daemon_status,
    ensure_daemon,
    sandbox_folder,
    stop_daemon,
)
from infra.sandbox.trial import daemon_health
from rstar2.config import SandboxConfig
from rstar2.types import ToolCall, ToolStatus, VerdictKind

CONFIG = SandboxConfig(cpu_seconds=1.0, wall_seconds=20.0, memory_mib=256, min_rung="C")
NUM_CALLS = 40


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop_daemon(tmp_path)


@asynccontextmanager
async def calls_in_flight(sandbox: Sandbox) -> AsyncIterator[list[str]]:
    """Yields after some of the calls were answered; fills the list with the output of all."""
    code = "import random, time\ntime.sleep(0.05)\nprint(random.random())"
    tasks = [
        asyncio.create_task(sandbox.run(code, call_id=f"step/{index}"))
        for index in range(NUM_CALLS)
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    outputs: list[str] = []
    yield outputs
    outputs += [result.stdout for result in await asyncio.gather(*tasks)]


async def undisturbed(sandbox: Sandbox) -> list[str]:
    async with calls_in_flight(sandbox) as outputs:
        pass
    return outputs


def pid_of(state_dir: Path) -> int:
    health = daemon_status(state_dir)
    assert health is not None
    return int(str(health["pid"]))


def zygote_pid(state_dir: Path) -> int:
    health = daemon_status(state_dir)
    assert health is not None
    assert isinstance(health["tiers"], dict)
    return int(health["tiers"]["tiny"]["pid"])


async def test_calls_of_a_killed_daemon_are_redone_with_the_same_results(state_dir: Path) -> None:
    async with open_sandbox(CONFIG, state_dir) as sandbox:
        expected = await undisturbed(sandbox)
        async with calls_in_flight(sandbox) as outputs:
            os.kill(pid_of(state_dir), signal.SIGKILL)
        assert outputs == expected
        assert sandbox.num_restarts == 1
        assert 0 < sandbox.num_calls_redone < NUM_CALLS


@pytest.mark.slow
async def test_calls_of_a_stopped_daemon_are_redone_by_a_new_one(state_dir: Path) -> None:
    async with open_sandbox(CONFIG, state_dir) as sandbox:
        expected = await undisturbed(sandbox)
        stopped = pid_of(state_dir)
        async with calls_in_flight(sandbox) as outputs:
            os.kill(stopped, signal.SIGSTOP)
        assert outputs == expected
        assert pid_of(state_dir) != stopped
        assert (sandbox.num_restarts, sandbox.num_calls_redone > 0) == (1, True)


async def test_calls_of_a_killed_interpreter_are_redone_and_counted(state_dir: Path) -> None:
    async with open_sandbox(CONFIG, state_dir) as sandbox:
        expected = await undisturbed(sandbox)
        async with calls_in_flight(sandbox) as outputs:
            os.kill(zygote_pid(state_dir), signal.SIGKILL)
        assert outputs == expected
        assert sandbox.num_restarts == 0
        assert 0 < sandbox.num_calls_redone <= CONFIG.num_slots


@pytest.mark.slow
async def test_a_daemon_at_work_for_long_is_not_taken_for_a_hung_one(state_dir: Path) -> None:
    async with open_sandbox(CONFIG, state_dir) as sandbox:
        result = await sandbox.run("import time\ntime.sleep(13)\nprint('done')", call_id="long")
        assert (result.stdout, sandbox.num_restarts) == ("done\n", 0)


@pytest.mark.slow
async def test_a_busy_event_loop_does_not_take_its_daemon_for_a_hung_one(state_dir: Path) -> None:
    async with open_sandbox(CONFIG, state_dir) as sandbox:
        call = asyncio.create_task(sandbox.run("print(1)", call_id="meanwhile"))
        await asyncio.sleep(0)
        time.sleep(12)
        assert ((await call).stdout, sandbox.num_restarts) == ("1\n", 0)


@pytest.mark.slow
async def test_a_daemon_that_cannot_come_back_is_given_up_within_bounds(state_dir: Path) -> None:
    async with open_sandbox(CONFIG, state_dir) as sandbox:
        running = asyncio.create_task(
            sandbox.execute(
                ToolCall(name="python", arguments={"code": "import time\ntime.sleep(9)"}),
                call_id="r0/0/0",
            )
        )
        await asyncio.sleep(0.3)
        lose_for_good(state_dir)
        started = time.monotonic()
        result = await running
        assert result.status is ToolStatus.UNAVAILABLE
        assert "the sandbox daemon cannot live in" in result.detail
        assert time.monotonic() - started < 2 * LOST_SECONDS

        (verdict,) = await sandbox.grade([("x + 1", "1 + x")])
        assert verdict.kind is VerdictKind.UNDECIDED
        health = await sandbox.check()
        assert (health.name, health.is_ready, health.capacity) == ("sandbox", False, 0)
        assert "then start the same run again" in health.remedy

        sandbox_folder(state_dir).unlink()
        assert (await sandbox.check()).is_ready
        assert (await sandbox.run("print(1)", call_id="after")).stdout == "1\n"


def lose_for_good(state_dir: Path) -> None:
    """Ends the daemon and puts a file where its folder was."""
    folder = sandbox_folder(state_dir)
    pid = pid_of(state_dir)
    folder.rename(folder.with_name("away"))
    folder.write_text("")
    os.kill(pid, signal.SIGKILL)


async def test_a_healthy_sandbox_says_what_it_can_do(state_dir: Path) -> None:
    async with open_sandbox(CONFIG, state_dir) as sandbox:
        health = await sandbox.check()
    assert (health.is_ready, health.capacity, health.remedy) == (True, 2, "")
    assert health.seen == f"rung {sandbox.rung}, 2 calls at once, a trial call ended ok"


async def test_no_folder_for_the_daemon_is_a_sandbox_error_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match=r"cannot live in .*set RSTAR2_STATE_FOLDER"):
        async with open_sandbox(CONFIG, tmp_path / "file"):
            pass


async def test_a_named_address_without_a_daemon_starts_none(tmp_path: Path) -> None:
    folder = sandbox_folder(tmp_path / "nobody")
    config = CONFIG.model_copy(update={"address": f"unix://{folder}"})
    with pytest.raises(SandboxError, match=r"no sandbox daemon runs at unix://.*sandbox serve"):
        async with open_sandbox(config, tmp_path):
            pass
    assert not folder.exists()


async def test_a_named_address_is_used_and_waited_for(state_dir: Path) -> None:
    ensure_daemon(state_dir, CONFIG, replace=False)
    config = CONFIG.model_copy(update={"address": f"unix://{sandbox_folder(state_dir)}"})
    async with open_sandbox(config, state_dir / "elsewhere") as sandbox:
        os.kill(pid_of(state_dir), signal.SIGKILL)
        call = asyncio.create_task(sandbox.run("print(1)", call_id="waits"))
        await asyncio.sleep(1.0)
        assert not call.done()
        await asyncio.to_thread(ensure_daemon, state_dir, CONFIG, replace=False)
        assert (await call).stdout == "1\n"


def test_a_trial_call_tells_a_daemon_that_works_from_none_and_from_one_that_is_stopped(
    state_dir: Path,
) -> None:
    nobody = daemon_health(state_dir)
    assert (nobody.seen, nobody.remedy) == ("no daemon runs", "start it: rstar2 up")
    ensure_daemon(state_dir, CONFIG, replace=False)
    ready = daemon_health(state_dir)
    assert (ready.is_ready, ready.capacity) == (True, 2)

    pid = pid_of(state_dir)
    os.kill(pid, signal.SIGSTOP)
    stopped = daemon_health(state_dir)
    os.kill(pid, signal.SIGCONT)
    assert not stopped.is_ready
    assert "the sandbox daemon does not answer" in stopped.seen
    assert stopped.remedy == "end it and start it: rstar2 down && rstar2 up"
    assert pid_of(state_dir) == pid
