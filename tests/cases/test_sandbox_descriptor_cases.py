"""Code that turns on the descriptors it inherits: it may spoil its own output and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from infra.sandbox.client import Sandbox
from rstar2.types import VerdictKind

pytestmark = pytest.mark.asyncio(loop_scope="module")

EACH = """\
import fcntl, os
def each(work, fds=[0, *range(3, 65)]):
    for fd in fds:
        try: work(fd)
        except OSError: pass
"""
ATTACKS = {
    "write": "each(lambda fd: os.write(fd, b'x'))",
    "write text of a result": 'each(lambda fd: os.write(fd, b\'["correct", ""]\\n\' * 20))',
    "write records": "each(lambda fd: os.write(fd, b'\\x00\\x00\\x00\\x01x' * 20))",
    "seek back": "each(lambda fd: os.lseek(fd, 0, 0))",
    "seek on": "each(lambda fd: os.lseek(fd, 1, 1))",
    "seek far away": "each(lambda fd: os.lseek(fd, 1 << 40, 0))",
    "cut": "each(lambda fd: os.ftruncate(fd, 0))",
    "lengthen": "each(lambda fd: os.ftruncate(fd, 1 << 20))",
    "punch holes": "each(lambda fd: os.posix_fallocate(fd, 0, 4096))",
    "duplicate": "each(lambda fd: [os.dup(fd) for _ in range(3)])",
    "replace by output": "each(lambda fd: os.dup2(1, fd))",
    "replace output": "each(lambda fd: os.dup2(fd, 2), range(3, 65))",
    "change flags": "each(lambda fd: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK))",
    "lock": "each(lambda fd: fcntl.flock(fd, fcntl.LOCK_EX))",
    "close": "each(os.close)",
    "close all": "each(os.close, range(65))",
    "close every number": "os.closerange(0, 1 << 20)",
    "through /proc": (
        "each(lambda fd: os.write(os.open(f'/proc/self/fd/{fd}', os.O_RDWR), b'x' * 100))"
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_the_value_stays_what_the_last_expression_is(sandbox: Sandbox, name: str) -> None:
    result = await sandbox.run(f"{EACH}{ATTACKS[name]}\n6 * 7", stdin="in", call_id="fd")
    assert (result.status, result.rc, result.value) == ("ok", 0, "42"), result


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_error_stays_an_error(sandbox: Sandbox, name: str) -> None:
    result = await sandbox.run(f"{EACH}{ATTACKS[name]}\n1 / 0", call_id="fd")
    assert (result.status, result.rc, result.value) == ("error", 1, ""), result


@pytest.mark.parametrize("name", ["write", "seek on", "cut", "duplicate", "close all"])
async def test_no_descriptor_moves_the_limit_on_computing(sandbox: Sandbox, name: str) -> None:
    code = f"{EACH}while True: {ATTACKS[name]}"
    result = await sandbox.run(code, call_id="fd", cpu_seconds=0.3)
    # A program that closes its output and goes on computing must be stopped just so.
    assert result.status in ("timeout_cpu", "output_limit"), result
    assert result.cpu_s < 0.6, result


@pytest.mark.parametrize("name", ["write", "seek on", "duplicate", "through /proc"])
async def test_no_descriptor_moves_the_limit_on_waiting(sandbox: Sandbox, name: str) -> None:
    code = f"import time\n{EACH}while True:\n    {ATTACKS[name]}\n    time.sleep(0.01)"
    running = sandbox.run(code, call_id="fd", wall_seconds=0.5, cpu_seconds=3.0)
    assert (await asyncio.wait_for(running, 10)).status == "timeout_wall"


async def test_a_call_inherits_its_standard_streams_alone(sandbox: Sandbox) -> None:
    code = "import fcntl\nopen_fds = []\nfor fd in range(128):\n    try: fcntl.fcntl(fd, 1)\n"
    code += "    except OSError: continue\n    open_fds.append(fd)\nopen_fds"
    assert (await sandbox.run(code, call_id="fds")).value == "[0, 1, 2]"


async def test_flags_of_standard_input_do_not_reach_the_next_call(sandbox: Sandbox) -> None:
    change = "import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)"
    read = "import fcntl, os\nfcntl.fcntl(0, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_APPEND)"
    await sandbox.run(change, call_id="change")
    assert (await sandbox.run(read, call_id="read")).value == "0"


async def test_memory_files_of_its_own_are_refused(sandbox: Sandbox) -> None:
    """They would count neither as memory nor as disk."""
    result = await sandbox.run("import os\nos.memfd_create('x')", call_id="memfd")
    assert "PermissionError" in result.stderr


async def test_verdicts_that_stream_still_start_the_deadline_anew(sandbox: Sandbox) -> None:
    pairs = [("(x+1)^{60}", f"(x^2+2x+1)^{{30}}+{n}-{n}") for n in range(1, 13)]
    verdicts = await sandbox.grade(pairs)
    assert {verdict.kind for verdict in verdicts} == {VerdictKind.CORRECT}
