"""Code that broke other sandboxes (rows S of the cases, and the rest of their kinds).

Every snippet runs on every rung that can be reached here. After each, a benign call works and no
process of the snippet is left.
"""

from __future__ import annotations

import pytest

from infra.sandbox.client import Sandbox
from infra.sandbox.protocol import SandboxResult

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def run(sandbox: Sandbox, code: str, stdin: str = "") -> SandboxResult:
    return await sandbox.run(code, stdin=stdin, call_id="case")


VALUES = {
    "S1 last expression": ("x=1; x+1", "2"),
    "string as repr": ("'a\\'b'", '"a\'b"'),
    "a function": ("print", "<built-in function print>"),
    "statement has no value": ("x = 5", ""),
    "none": ("None", ""),
    "semicolon hides it": ("5;", ""),
    "future import holds in the last line": (
        "from __future__ import annotations\ndef f(a: Undefined): pass\nf.__annotations__",
        "{'a': 'Undefined'}",
    ),
    "byte order mark": ("\ufeff1 + 1", "2"),
    "carriage returns": ("x = 1\r\nx + 1\r\n", "2"),
    "coding line": ("# -*- coding: latin-1 -*-\n'é'", "'é'"),
    "unicode": ("'Ω≈√2 你好 🎉'", "'Ω≈√2 你好 🎉'"),
    "comment after it": ("3 + 4  # seven", "7"),
    "S9 top-level await": ("import asyncio\nasync def f(): return 5\nawait f()", "5"),
    "main": ("__name__", "'__main__'"),
    "dataclass and pickle": (
        "import pickle\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass P:\n    x: int\npickle.loads(pickle.dumps(P(3)))",
        "P(x=3)",
    ),
}


@pytest.mark.parametrize("name", VALUES)
async def test_value_as_a_notebook_shows_it(sandbox: Sandbox, name: str) -> None:
    code, value = VALUES[name]
    result = await run(sandbox, code)
    assert (result.status, result.value, result.stderr) == ("ok", value, "")


OUTPUTS = {
    "S3 marker of another protocol": ("print('a@@Eb')", "a@@Eb\n"),
    "forged result": (
        'import os\nos.write(1, b\'{"status": "ok", "value": "42"}\')',
        '{"status": "ok", "value": "42"}',
    ),
    "S5 fork": ("import os\nos.fork()\nprint('hi')", "hi\nhi\n"),
    "invalid utf-8": ("import os\nos.write(1, b'a\\xff\\xfeb\\x00')", "a\ufffd\ufffdb\x00"),
    "lone surrogate": ("print('a\\ud800b')", "a\\ud800b\n"),
    "thread that prints last": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
        "late\n",
    ),
    "exit function": ("import atexit\natexit.register(print, 'bye')\nx = 1", "bye\n"),
    "os._exit keeps what was flushed": (
        "import os\nprint('a', flush=True)\nos._exit(0)",
        "a\n",
    ),
    "printed once": ("print('once')", "once\n"),
}


@pytest.mark.parametrize("name", OUTPUTS)
async def test_output_is_text_as_written(sandbox: Sandbox, name: str) -> None:
    code, stdout = OUTPUTS[name]
    result = await run(sandbox, code)
    assert (result.status, result.stdout) == ("ok", stdout)


async def test_value_is_not_forged_by_a_fork(sandbox: Sandbox) -> None:
    result = await run(sandbox, "import os\nis_child = os.fork() == 0\nis_child")
    assert (result.status, result.value) == ("ok", "False")


async def test_standard_input_is_delivered_and_its_end_is_an_eof_error(sandbox: Sandbox) -> None:
    long = "x" * 1_000_000
    assert (await run(sandbox, "len(input())", stdin=long + "\n")).value == "1000000"
    result = await run(sandbox, "input()")
    assert result.stderr.endswith("EOFError: EOF when reading a line\n")


STOPPED = {
    "S6 endless loop": ("while True: pass", "timeout_cpu"),
    "huge power": ("9**9**9", "timeout_cpu"),
    "regex backtracking": ("import re\nre.match('(a+)+$', 'a' * 40 + 'b')", "timeout_cpu"),
    "ignores every signal": (
        "import signal\nfor s in range(1, 65):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True:\n    try: 1/0\n    except BaseException: pass",
        "timeout_cpu",
    ),
    "spins in a grandchild": (
        "import os\nif os.fork() == 0:\n    while True: pass\nos.wait()",
        "timeout_cpu",
    ),
    "spins in threads": (
        "import threading\ndef spin():\n    while True: pass\n"
        "for _ in range(4): threading.Thread(target=spin).start()",
        "timeout_cpu",
    ),
    "stops itself": ("import os, signal\nos.kill(0, signal.SIGSTOP)\ninput()", "error"),
    "infinite output": ("while True: print('x' * 100)", "output_limit"),
    "infinite output, errors caught": (
        "while True:\n    try: print('x' * 100)\n    except OSError: pass",
        "output_limit",
    ),
    "exit status": ("import sys\nprint('kept')\nsys.exit(3)", "error"),
    "keyboard interrupt": ("raise KeyboardInterrupt", "error"),
    "recursion": ("def f(): f()\nf()", "error"),
    "huge list": ("x = [0] * 10**10", "error"),
    "huge int as text": ("print(10**5000)", "error"),
    "nested parentheses": ("(" * 100_000 + ")" * 100_000, "error"),
    "NUL in source": ("x = 1\0", "error"),
}


@pytest.mark.parametrize("name", STOPPED)
async def test_ends_with_a_typed_status(sandbox: Sandbox, name: str) -> None:
    code, status = STOPPED[name]
    result = await run(sandbox, code)
    assert result.status == status, result


async def test_s6_a_sleeper_meets_the_wall_limit(sandbox: Sandbox) -> None:
    code = "import time\ntime.sleep(30)"
    result = await sandbox.run(code, call_id="sleep", wall_seconds=0.5)
    assert result.status == "timeout_wall"


async def test_s7_long_output_is_cut_and_said_to_be(sandbox: Sandbox) -> None:
    result = await run(sandbox, "print('x' * 5_000_000)")
    assert result.truncated
    assert result.stdout == "x" * 10_000


async def test_output_over_the_limit_but_ended_is_ok_and_truncated(sandbox: Sandbox) -> None:
    result = await run(sandbox, "print('y' * 20_000)")
    assert (result.status, result.truncated, len(result.stdout)) == ("ok", True, 10_000)


@pytest.mark.parametrize("code", ["%matplotlib inline", "!pip install numpy"])
async def test_s9_notebook_commands_get_a_clear_message(sandbox: Sandbox, code: str) -> None:
    result = await run(sandbox, code)
    assert result.status == "error"
    assert "Notebook commands (lines that begin with % or !) are not available" in result.stderr


TRACEBACKS = {
    "x = 1\ny = x / 0\n": [
        "Traceback (most recent call last):",
        '  File "<snippet>", line 2, in <module>',
        "    y = x / 0",
        "ZeroDivisionError: division by zero",
    ],
    "def f():\n    return missing\n\nf()": [
        "Traceback (most recent call last):",
        '  File "<snippet>", line 4, in <module>',
        "    f()",
        '  File "<snippet>", line 2, in f',
        "    return missing",
        "NameError: name 'missing' is not defined",
    ],
    "x = 1\nif x\n  y": [
        '  File "<snippet>", line 2',
        "    if x",
        "SyntaxError: expected ':'",
    ],
    "def f():\nreturn 1": [
        '  File "<snippet>", line 2',
        "    return 1",
        "IndentationError: expected an indented block after function definition on line 1",
    ],
}


@pytest.mark.parametrize("code", TRACEBACKS)
async def test_traceback_has_the_snippets_own_lines(sandbox: Sandbox, code: str) -> None:
    result = await run(sandbox, code)
    lines = [line for line in result.stderr.splitlines() if line.strip(" ~^")]
    assert lines == TRACEBACKS[code]


async def test_output_before_an_error_is_kept_and_printed_once(sandbox: Sandbox) -> None:
    result = await run(sandbox, "print('before')\n1/0\nprint('after')")
    assert (result.status, result.stdout) == ("error", "before\n")


WORKS = {
    "temporary files": (
        "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f:\n"
        "    f.write('hi'); f.seek(0); print(f.read())",
        "hi\n",
    ),
    "subprocess": (
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'print(3)'], capture_output=True).stdout)",
        "b'3\\n'\n",
    ),
    "shell": ("import os\nos.system('echo hi')", "hi\n"),
    "multiprocessing": (
        "import multiprocessing\ndef f(x): return x * x\n"
        "with multiprocessing.Pool(2) as pool: print(pool.map(f, range(4)))",
        "[0, 1, 4, 9]\n",
    ),
    "asyncio": (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    print('hi')\nasyncio.run(f())",
        "hi\n",
    ),
    "tampered builtins": (
        "import builtins, sys\nprint('a')\nbuiltins.repr = builtins.len = None\n"
        "sys.excepthook = None",
        "a\n",
    ),
}


@pytest.mark.parametrize("name", WORKS)
async def test_ordinary_means_work(sandbox: Sandbox, name: str) -> None:
    code, stdout = WORKS[name]
    result = await run(sandbox, code)
    assert (result.status, result.stdout) == ("ok", stdout), result


async def test_closed_descriptors_are_no_error(sandbox: Sandbox) -> None:
    result = await run(
        sandbox, "import os\nfor fd in range(64):\n    try: os.close(fd)\n    except OSError: pass"
    )
    assert (result.status, result.stdout) == ("ok", "")


async def test_tampered_output_and_traceback_leave_a_typed_error(sandbox: Sandbox) -> None:
    code = "import sys, traceback\ntraceback.format_exception = None\nsys.stdout = None\n1/0"
    result = await run(sandbox, code)
    assert result.status == "error"
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


async def test_the_next_call_finds_a_clean_interpreter(sandbox: Sandbox) -> None:
    await run(sandbox, "import builtins, sys, math\nbuiltins.left = math.pi = 3\nsys.path.clear()")
    result = await run(sandbox, "import math, sys\nmath.pi, hasattr(__builtins__, 'left')")
    assert result.value == "(3.141592653589793, False)"


async def test_ten_megabytes_of_source_are_refused(sandbox: Sandbox) -> None:
    result = await run(sandbox, "#" * 10_000_000)
    assert result.status == "error"
    assert result.stderr == "code: 10000000 bytes, at most 1048576 are accepted"


async def test_code_that_is_no_text_is_refused(sandbox: Sandbox) -> None:
    number = await sandbox.run(7, call_id="number")  # type: ignore[arg-type]
    surrogate = await sandbox.run("'\ud800'", call_id="surrogate")
    assert number.stderr == "code: expected a string, got int"
    assert surrogate.stderr.startswith("code: not valid Unicode")


TAMPERED = "import builtins, sys\nfor name in {names}: setattr(builtins, name, None)\n"
HELD = ["len", "any", "int", "isinstance", "min", "range", "repr", "str", "type", "OSError"]
HELD += ["ChildProcessError", "SyntaxError", "SystemExit", "ValueError", "BaseException"]


@pytest.mark.parametrize("name", HELD)
async def test_a_builtin_taken_away_spoils_no_result(sandbox: Sandbox, name: str) -> None:
    tampered = TAMPERED.format(names=[name])
    value = await run(sandbox, tampered + "40 + 2")
    stop = await run(sandbox, tampered + "sys.exit(3)")
    assert (value.status, value.value, stop.rc) == ("ok", "42", 3)


@pytest.mark.parametrize("name", HELD)
async def test_a_builtin_taken_away_leaves_the_name_of_an_error(
    sandbox: Sandbox, name: str
) -> None:
    result = await run(sandbox, TAMPERED.format(names=[name]) + "1 / 0")
    assert (result.status, result.rc) == ("error", 1)
    assert "ZeroDivisionError" in result.stderr
