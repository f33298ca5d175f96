"""A remembered result is the result that running the call again would give."""

from __future__ import annotations

import asyncio

import pytest

from infra.sandbox.remembered import RememberingExecute, is_pure
from rstar2.types import ToolCall, ToolResult, ToolStatus


def python(code: str) -> ToolCall:
    return ToolCall(name="python", arguments={"code": code})


class Recorder:
    """Runs nothing: answers with the call's id, and keeps the ids it was asked under."""

    def __init__(self, status: ToolStatus = ToolStatus.OK) -> None:
        self.status = status
        self.call_ids: list[str] = []

    async def __call__(self, call: ToolCall, /, *, call_id: str) -> ToolResult:
        self.call_ids.append(call_id)
        await asyncio.sleep(0)
        return ToolResult(status=self.status, stdout=call_id)


@pytest.mark.parametrize(
    "code",
    [
        "print(34*27)",
        "import math\nmath.gcd(12, 18)",
        "from math import gcd\nprint(gcd(12, 18))",
        "print(sum(map(int, str(342))))",
        "x = [n for n in range(9) if n % 2]\nx[-1]",
        "def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nf(5)",
        "print(1/0)",
        "prnt(3)",
        "print(3",
        "'abc'.upper()",
    ],
)
def test_plain_arithmetic_is_pure(code: str) -> None:
    assert is_pure(code)


@pytest.mark.parametrize(
    "code",
    [
        "import random\nrandom.random()",
        "import time\ntime.time()",
        "from os import getpid\ngetpid()",
        "import math, os\nos.getpid()",
        "input()",
        "open('x')",
        "id(3)",
        "hash('x')",
        "eval('1')",
        "__import__('time').time()",
        "().__class__",
        "getattr(3, 'real')",
        "'{0.__class__}'.format(3)",
        "globals()",
        "object()",
        "class A: pass",
        "import numpy\nnumpy.random.rand()",
        "from .x import y",
        "print(1)" + " " * 3000,
    ],
)
def test_anything_that_could_differ_is_run_each_time(code: str) -> None:
    assert not is_pure(code)


async def test_a_pure_call_is_run_once() -> None:
    recorder = Recorder()
    execute = RememberingExecute(recorder)
    first = await execute(python("print(2)"), call_id="a")
    assert await execute(python("print(2)"), call_id="b") == first
    assert recorder.call_ids == ["a"]
    assert (execute.counts.num_run, execute.counts.num_remembered) == (1, 1)


async def test_calls_at_the_same_time_share_one_run() -> None:
    recorder = Recorder()
    execute = RememberingExecute(recorder)
    results = await asyncio.gather(*(execute(python("1+1"), call_id=str(n)) for n in range(5)))
    assert recorder.call_ids == ["0"]
    assert {result.stdout for result in results} == {"0"}


async def test_other_calls_are_run_under_their_own_id() -> None:
    recorder = Recorder()
    execute = RememberingExecute(recorder)
    for call_id in ("a", "b"):
        await execute(python("import random; random.random()"), call_id=call_id)
    assert recorder.call_ids == ["a", "b"]


@pytest.mark.parametrize("status", [ToolStatus.TIMEOUT, ToolStatus.UNAVAILABLE])
async def test_a_limit_or_an_absent_sandbox_is_not_remembered(status: ToolStatus) -> None:
    recorder = Recorder(status)
    execute = RememberingExecute(recorder)
    for call_id in ("a", "b"):
        await execute(python("9**9**9"), call_id=call_id)
    assert recorder.call_ids == ["a", "b"]


async def test_whoever_waits_for_a_cancelled_call_runs_its_own() -> None:
    recorder = Recorder()
    execute = RememberingExecute(recorder)
    first = asyncio.create_task(execute(python("1+1"), call_id="a"))
    second = asyncio.create_task(execute(python("1+1"), call_id="b"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).stdout == "b"
