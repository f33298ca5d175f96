"""A remembered result is the result that running the call again would give."""

from __future__ import annotations

import asyncio

import pytest

from infra.sandbox import remembered
from infra.sandbox.remembered import RememberingExecute, is_pure
from rstar2.types import ToolCall, ToolResult, ToolStatus


def python(code: str) -> ToolCall:
    return ToolCall(name="python", arguments={"code": code})


class Recorder:
    """Runs nothing: answers as told or with the call's id, and keeps the ids it was asked under."""

    def __init__(self, answer: ToolResult | None = None) -> None:
        self.answer = answer
        self.call_ids: list[str] = []

    async def __call__(self, call: ToolCall, /, *, call_id: str) -> ToolResult:
        self.call_ids.append(call_id)
        await asyncio.sleep(0)
        return self.answer or ToolResult(status=ToolStatus.OK, stdout=call_id)


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
        "print(3",
        "'abc'.upper()",
        "x = {1: [2]}\nx[1].append(3)\nx.get(1)",
        "def f(*a, key=None, **b):\n    g = lambda q: q\n    return [g(z) for z in a]\nf(1, key=2)",
        "from math import *\nprint(sqrt(2), pi)",
        "import math as m\nm.factorial(5)",
        "for i, (a, b) in enumerate([(1, 2)]):\n    while (n := a) > 3: break\n    else: continue",
        "f'{2 / 3:.2f} {[1][0]!r}'",
        "assert sum(range(5)) == 10, 'no'\nraise ValueError('x')",
        "x = 1\nx += 2; y: int = -x if not x else ~x\nx, *z = y, *[3]",
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
        "prnt(3)",
        "\ufeffprint(3)",
        "\ufeff\ufeffimport time; time.time()",
        "\ufeff\ufeff\ufeffprint(3",
        "print('é'",
        "(x for x in [1]).gi_frame.f_back.f_globals",
        "(lambda: 1).gi_code",
        "def f(): pass\nf.__globals__",
        "def f(): pass\nf.func_globals",
        "int.mro()",
        "int.mro",
        "match 3:\n    case int(real=x): print(x)",
        "match object:\n    case str(): pass",
        "match 3:\n    case 3: pass",
        "type(3)",
        "help()",
        "exit()",
        "print(_)",
        "__name__",
        "import math\nmath.__loader__",
        "import math\nmath.__spec__",
        "from math import __loader__",
        "from math import __spec__ as s\ns",
        "import math.x",
        "def f(__builtins__): return __builtins__",
        "__builtins__ = 3",
        "try:\n    1/0\nexcept Exception as e:\n    e.with_traceback",
        "with x: pass",
        "@print\nclass A: pass",
        "async def f(): pass",
        "await f()",
        "[x async for x in y]",
        "x = 1\ndel x",
        "def f():\n    global x",
        "'%s'.format_map({})",
        "f = '{0.gi_frame}'.format",
        "def f():\n    yield 1",
        "f'{(x for x in [1]).gi_frame}'",
        "f'{open(1)}'",
        "def f(x=open): return x",
        "def f(x: open): return x",
        "lambda: id",
        "import random as math\nmath.random()",
        "from time import time as sqrt\nsqrt()",
        "vars()",
        "locals()",
        "dir()",
        "memoryview(b'')",
        "sys.exit()",
        "x.y.z",
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


@pytest.mark.parametrize(
    "other",
    [
        ToolCall(name="bash", arguments={"code": "print(2)"}),
        ToolCall(name="python", arguments={"code": "print(2)", "input": "3"}),
        ToolCall(name="python", arguments={"code": "print(2)", "input": 3}),
        ToolCall(name="python", arguments={"code": "print(2) "}),
    ],
)
async def test_another_tool_or_argument_is_another_call(other: ToolCall) -> None:
    recorder = Recorder()
    execute = RememberingExecute(recorder)
    await execute(python("print(2)"), call_id="a")
    assert (await execute(other, call_id="b")).stdout == "b"
    assert recorder.call_ids == ["a", "b"]


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


STOPPED = {
    "timeout": ToolResult(status=ToolStatus.TIMEOUT, detail="Stopped: it did not end."),
    "sandbox away": ToolResult(status=ToolStatus.UNAVAILABLE, detail="The sandbox is gone."),
    "memory": ToolResult(status=ToolStatus.ERROR, detail="Stopped: it used more than 1 MiB."),
    "output": ToolResult(status=ToolStatus.ERROR, detail="Stopped: it printed too much."),
    "signal": ToolResult(status=ToolStatus.ERROR, detail="The interpreter crashed (signal 11)."),
    "no memory for an object": ToolResult(status=ToolStatus.ERROR, stderr="MemoryError\n"),
    "malformed": ToolResult(status=ToolStatus.MALFORMED, detail="input: expected a string"),
}


@pytest.mark.parametrize("name", STOPPED)
async def test_what_stopped_a_call_is_not_remembered(name: str) -> None:
    recorder = Recorder(STOPPED[name])
    execute = RememberingExecute(recorder)
    await asyncio.gather(*(execute(python("9**9**9"), call_id=call_id) for call_id in "abc"))
    await execute(python("9**9**9"), call_id="d")
    assert sorted(recorder.call_ids) == ["a", "b", "c", "d"]


async def test_an_error_of_the_program_is_remembered() -> None:
    recorder = Recorder(ToolResult(status=ToolStatus.ERROR, stderr="ZeroDivisionError: x\n"))
    execute = RememberingExecute(recorder)
    for call_id in "ab":
        await execute(python("1/0"), call_id=call_id)
    assert recorder.call_ids == ["a"]


async def test_more_calls_than_are_held_all_get_their_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remembered, "MAX_REMEMBERED", 1)
    recorder = Recorder(STOPPED["timeout"])
    execute = RememberingExecute(recorder)
    await asyncio.gather(*(execute(python(f"{n}"), call_id=str(n)) for n in range(5)))
    recorder.answer = None
    await asyncio.gather(*(execute(python(f"{n}"), call_id=str(n)) for n in range(5)))
    assert recorder.call_ids == [*"01234", *"01234"]


async def test_whoever_waits_for_a_cancelled_call_runs_its_own() -> None:
    recorder = Recorder()
    execute = RememberingExecute(recorder)
    first = asyncio.create_task(execute(python("1+1"), call_id="a"))
    second = asyncio.create_task(execute(python("1+1"), call_id="b"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).stdout == "b"
