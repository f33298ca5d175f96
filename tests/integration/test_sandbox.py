"""The sandbox with its real daemon, interpreters and kernel isolation."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from infra.sandbox import protocol
from infra.sandbox.client import Sandbox, open_sandbox
from infra.sandbox.protocol import SandboxStatus
from infra.sandbox.resident import (
    SandboxError,
    daemon_status,
    open_socket,
    sandbox_folder,
    stop_daemon,
)
from rstar2.config import SandboxConfig
from rstar2.types import ToolCall, ToolStatus, VerdictKind

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG = SandboxConfig(cpu_seconds=1.0, wall_seconds=5.0, memory_mib=256)


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandbox")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(state_dir: Path) -> AsyncIterator[Sandbox]:
    async with open_sandbox(CONFIG, state_dir) as opened:
        yield opened
    stop_daemon(state_dir)


def _health(state_dir: Path) -> dict[str, object]:
    health = daemon_status(state_dir)
    assert health is not None
    return health


def _zygote_pid(state_dir: Path, tier: str) -> int:
    tiers = _health(state_dir)["tiers"]
    assert isinstance(tiers, dict)
    return int(tiers[tier]["pid"])


async def _await_running(state_dir: Path, num_running: int) -> None:
    deadline = time.monotonic() + 60
    while _health(state_dir)["num_running"] != num_running:
        assert time.monotonic() < deadline, _health(state_dir)
        await asyncio.sleep(0.02)


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


async def test_execute_answers_an_unknown_tool(sandbox: Sandbox) -> None:
    result = await sandbox.execute(ToolCall(name="bash", arguments={"code": "ls"}), call_id="bash")
    assert result.status is ToolStatus.UNKNOWN_TOOL


async def test_a_stopped_program_reads_the_same_wherever_it_was_stopped(sandbox: Sandbox) -> None:
    code = "import sys\nprint('so far', flush=True)\nwhile True: pass"
    call = ToolCall(name="python", arguments={"code": code})
    result = await sandbox.execute(call, call_id="loop")
    assert (result.status, result.stdout) == (ToolStatus.TIMEOUT, "")
    assert result.detail == "Stopped: it did not end within 1 s of computing."


async def test_numpy_and_sympy_are_routed_to_warm_interpreters(sandbox: Sandbox) -> None:
    numpy = await sandbox.run("import numpy as np\nnp.arange(3).sum()", call_id="numpy")
    sympy = await sandbox.run("from sympy import *\nfactor(Symbol('x')**2 - 1)", call_id="sympy")
    assert (numpy.value, sympy.value) == ("np.int64(3)", "(x - 1)*(x + 1)")
    tiers = (await sandbox.health())["tiers"]
    assert isinstance(tiers, dict)
    assert {"tiny", "numpy", "sympy"} <= set(tiers)


async def test_the_same_call_id_draws_the_same_numbers_and_another_draws_others(
    sandbox: Sandbox,
) -> None:
    code = (
        "import random, numpy as np\n"
        "(random.random(), np.random.rand(), np.random.default_rng().random())"
    )
    first = await sandbox.run(code, call_id="r1/0/0")
    again = await sandbox.run(code, call_id="r1/0/0")
    other = await sandbox.run(code, call_id="r1/1/0")
    assert first.value == again.value
    assert set(first.value.strip("()").split(", ")).isdisjoint(other.value.strip("()").split(", "))


async def test_hash_order_and_addresses_do_not_change_between_calls(sandbox: Sandbox) -> None:
    code = "class A: pass\nprint(A(), hash('a'), {str(i) for i in range(20)})\nprint"
    results = [await sandbox.run(code, call_id=f"hash/{i}") for i in range(2)]
    assert results[0].stdout == results[1].stdout
    assert "object at 0x...>" in results[0].stdout


async def test_hex_numbers_are_not_taken_for_addresses(sandbox: Sandbox) -> None:
    result = await sandbox.run("print(hex(2**40), hex(255))", call_id="hex")
    assert result.stdout == "0x10000000000 0xff\n"


async def test_a_killed_interpreter_gives_its_call_one_result(
    sandbox: Sandbox, state_dir: Path
) -> None:
    running = asyncio.create_task(
        sandbox.run("import time\ntime.sleep(0.5)\nprint('done')", call_id="zygote")
    )
    await _await_running(state_dir, 1)
    os.kill(_zygote_pid(state_dir, "tiny"), signal.SIGKILL)
    result = await running
    assert (result.status, result.stdout) == ("ok", "done\n")
    assert _health(state_dir)["num_restarts"] == 1


async def test_a_killed_daemon_is_restarted_and_the_call_answered(
    sandbox: Sandbox, state_dir: Path
) -> None:
    running = asyncio.create_task(
        sandbox.run("import time\ntime.sleep(0.5)\nprint('done')", call_id="orphan")
    )
    await _await_running(state_dir, 1)
    before = _health(state_dir)
    os.kill(int(str(before["pid"])), signal.SIGKILL)
    result = await running
    assert (result.status, result.stdout) == ("ok", "done\n")
    assert _health(state_dir)["pid"] != before["pid"]


async def test_a_batch_outlives_its_daemon_and_no_call_is_lost(
    sandbox: Sandbox, state_dir: Path
) -> None:
    tasks = [
        asyncio.create_task(sandbox.run(f"print({i} + 1)", call_id=f"batch/{i}")) for i in range(60)
    ]
    await asyncio.sleep(0.1)
    os.kill(int(str(_health(state_dir)["pid"])), signal.SIGKILL)
    results = await asyncio.gather(*tasks)
    assert [r.stdout for r in results] == [f"{i + 1}\n" for i in range(60)]
    assert [r.call_id for r in results] == [f"batch/{i}" for i in range(60)]


SLEEP = "import time\ntime.sleep(600)"
PATIENT = CONFIG.model_copy(update={"wall_seconds": 600.0})
"""No limit ends a call of these within a test: only what the test does."""


async def test_a_client_that_leaves_takes_its_calls_along(
    sandbox: Sandbox, state_dir: Path
) -> None:
    async with open_sandbox(PATIENT, state_dir, replace=False) as other:
        sleeping = asyncio.create_task(other.run(SLEEP, call_id="left"))
        await _await_running(state_dir, 1)
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    await _await_running(state_dir, 0)


async def test_a_cancelled_call_is_ended(sandbox: Sandbox, state_dir: Path) -> None:
    task = asyncio.create_task(sandbox.run(SLEEP, call_id="cancelled", wall_seconds=600.0))
    await _await_running(state_dir, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _await_running(state_dir, 0)


async def test_the_largest_output_comes_through(sandbox: Sandbox, state_dir: Path) -> None:
    most = 4 << 20
    wide = CONFIG.model_copy(update={"output_bytes": most})
    code = f"import sys\nprint(chr(0) * {most}, end='')\nprint('e' * {most}, file=sys.stderr)"
    async with open_sandbox(wide, state_dir, replace=False) as other:
        result = await other.run(code, call_id="wide")
        endless = await other.run("while True: print('x' * 9999)", call_id="endless")
    assert (result.status, result.truncated) == ("ok", True)
    assert (result.stdout, result.stderr) == ("\0" * most, "e" * most)
    assert endless.status == "output_limit"


async def test_a_call_id_used_again_after_a_cancel_gets_its_own_result(
    sandbox: Sandbox, state_dir: Path
) -> None:
    task = asyncio.create_task(sandbox.run(SLEEP, call_id="again", wall_seconds=600.0))
    await _await_running(state_dir, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    result = await sandbox.run("import time\ntime.sleep(0.2)\n'mine'", call_id="again")
    assert (result.status, result.value) == ("ok", "'mine'")


async def test_another_client_is_not_starved_by_a_long_queue(
    sandbox: Sandbox, state_dir: Path
) -> None:
    async with open_sandbox(CONFIG, state_dir) as other:
        bulk = [
            asyncio.create_task(sandbox.run("import time\ntime.sleep(0.1)", call_id=f"bulk/{i}"))
            for i in range(30)
        ]
        await _await_running(state_dir, 2)
        result = await other.run("print(1)", call_id="interactive")
    assert result.stdout == "1\n"
    assert sum(task.done() for task in bulk) < 25
    await asyncio.gather(*bulk)


async def test_a_call_id_in_flight_names_one_call(sandbox: Sandbox) -> None:
    first = asyncio.create_task(sandbox.run("import time\ntime.sleep(0.2)\n1", call_id="twice"))
    await asyncio.sleep(0.05)
    with pytest.raises(ValueError, match="already running"):
        await sandbox.run("2", call_id="twice")
    assert (await first).value == "1"


async def test_raw_frames_that_are_wrong_get_a_typed_error_and_the_daemon_lives(
    sandbox: Sandbox, state_dir: Path
) -> None:
    limits = {"cpu_s": 1.0, "wall_s": 5.0, "mem_mb": 256, "output_bytes": 1000}
    with open_socket(sandbox_folder(state_dir)) as path:
        reader, writer = await asyncio.open_unix_connection(path)
    for call_id, change in (
        ("code", {"code": 7}),
        ("long", {"code": "#" * 10_000_000}),
        ("limit", {"code": "1", "cpu_s": "much"}),
        ("kind", {"kind": "ruby", "code": "1"}),
    ):
        writer.write(protocol.encode({"call_id": call_id, **limits, **change}))
        reply = await protocol.read_message(reader)
        assert reply is not None
        assert (reply["call_id"], reply["status"]) == (call_id, "error")
    writer.write(b"\xff\xff\xff\xff")
    assert await protocol.read_message(reader) is None
    writer.close()
    assert (await sandbox.run("1", call_id="after")).value == "1"


async def test_grades_equal_text_mathematics_and_strangers(sandbox: Sandbox) -> None:
    verdicts = await sandbox.grade([("2", "2"), ("\\frac{1}{2}", "\\frac{2}{4}"), ("3", "4")])
    assert [v.kind for v in verdicts] == [
        VerdictKind.CORRECT,
        VerdictKind.CORRECT,
        VerdictKind.INCORRECT,
    ]


async def test_an_address_that_is_no_folder_of_a_daemon_is_refused(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"address": "http://localhost:8088"})
    with pytest.raises(SandboxError, match="expected auto, or unix://"):
        async with open_sandbox(config, tmp_path):
            pass


async def test_a_crash_is_a_signal_with_its_number(sandbox: Sandbox) -> None:
    result = await sandbox.run("import ctypes\nctypes.string_at(0)", call_id="segfault")
    assert (result.status, result.rc) == (SandboxStatus.SIGNAL, -signal.SIGSEGV)


async def test_a_check_over_its_deadline_is_undecided_never_wrong(state_dir: Path) -> None:
    config = CONFIG.model_copy(update={"verify_seconds": 0.002})
    slow = ("(x+1)^{400}", "(x^2+2x+1)^{200}")
    async with open_sandbox(config, state_dir, replace=False) as hasty:
        verdicts = await hasty.grade([slow, ("5", "5"), (slow[0], slow[1] + "+1")])
    assert [v.kind for v in verdicts] == [
        VerdictKind.UNDECIDED,
        VerdictKind.CORRECT,
        VerdictKind.UNDECIDED,
    ]
    assert verdicts[0].reason == "the check took longer than its deadline"


async def test_a_killed_checker_changes_no_verdict(sandbox: Sandbox, state_dir: Path) -> None:
    await sandbox.grade([("x+1", "x+2")])
    pairs = [("(x+1)^{400}", f"(x^2+2x+1)^{{200}}+{i}-{i}") for i in range(1, 4)]
    grading = asyncio.create_task(sandbox.grade(pairs))
    await asyncio.sleep(0.1)
    os.kill(_zygote_pid(state_dir, "verify"), signal.SIGKILL)
    assert [v.kind for v in await grading] == [VerdictKind.CORRECT] * 3
