"""Runs one snippet inside the forked child, as a notebook cell would: the code of pid 1 of a call.

Reads standard input, writes descriptors 1 and 2 and the value's memory; ends the process and never
returns. The exit status and these are the whole result: nothing that the snippet prints or writes
to a descriptor can forge one. Everything needed is bound at import, in the zygote, because the
snippet may replace `builtins`, `sys.stdout` or `traceback`. Nothing is executed twice: the source
is parsed once, and the last expression is evaluated where it stands.
"""

from __future__ import annotations

import ast
import atexit
import linecache
import os
import random
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any, NoReturn

from infra.sandbox import memory_files

FILENAME = "<snippet>"
GRACE_SECONDS = 0.1
"""How long children that the snippet left running may finish before they are killed."""
LINE_CHARACTERS = 2_000
"""Longest line of a traceback."""
NOTEBOOK_HINT = (
    "Notebook commands (lines that begin with % or !) are not available here: "
    "write plain Python; packages cannot be installed.\n"
)

_FUTURE_FLAGS = 0x1FF0000
"""Every CO_FUTURE_* flag: `from __future__` in the body holds for the last expression too."""
_COROUTINE = 0x80
_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_exit = os._exit
_write_value = memory_files.write_value
_getpid = os.getpid
_waitpid = os.waitpid
_sleep = time.sleep
_clock = time.monotonic
_repr, _len, _str, _int, _type, _isinstance, _any = repr, len, str, int, type, isinstance, any
_compile, _exec, _eval = compile, exec, eval
_format_exception = traceback.format_exception
_join_threads = threading._shutdown  # type: ignore[attr-defined]
_run_exit_functions = atexit._run_exitfuncs
_stdout, _stderr = sys.stdout, sys.stderr
_BaseException, _SystemExit, _SyntaxError = BaseException, SystemExit, SyntaxError
_OSError, _ValueError, _ChildProcessError = OSError, ValueError, ChildProcessError


def run_snippet(code: str, memory: memoryview, seed: int) -> NoReturn:
    """Runs `code` and ends the process: 0, the status it exits with, or 1 after a traceback."""
    main_pid = _getpid()
    try:
        status = _finish(_run(code, memory, seed))
    except _BaseException:
        status = 1
    if _getpid() == main_pid:
        _await_children()
    _exit(status)


def _run(code: str, memory: memoryview, seed: int) -> int:
    main_pid = _getpid()
    _seed(seed)
    namespace = _new_main()
    code = code.removeprefix("\ufeff")
    lines = [line + "\n" for line in code.split("\n")]
    linecache.cache[FILENAME] = (_len(code), None, lines, FILENAME)
    try:
        value = _evaluate(code, namespace)
        if value is not None and _getpid() == main_pid:
            _write_value(memory, _repr(value).encode("utf-8", "backslashreplace"))
    except _SystemExit as stop:
        return _exit_status(stop)
    except _BaseException as error:
        _report(error, lines)
        return 1
    return 0


def _seed(seed: int) -> None:
    """Seeds what draws random numbers, and sees to forks that the snippet makes itself."""
    random.seed(seed)
    os.register_at_fork(after_in_child=threading._after_fork)  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=lambda: random.seed(seed + _getpid()))
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed & 0xFFFFFFFF)
        # `default_rng()` without a seed asks this function for entropy.
        entropy = sys.modules["numpy.random.bit_generator"].__dict__
        entropy["randbits"] = random.Random(seed).getrandbits


def _new_main() -> dict[str, object]:
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    return module.__dict__


def _evaluate(code: str, namespace: dict[str, object]) -> object:
    """The value of the last expression, or None: also where the source ends with a semicolon."""
    tree = ast.parse(code, FILENAME)
    last = tree.body.pop() if tree.body and _isinstance(tree.body[-1], ast.Expr) else None
    body = _compile(tree, FILENAME, "exec", _AWAIT, dont_inherit=True)
    flags = body.co_flags & _FUTURE_FLAGS | _AWAIT
    tail = None
    if last is not None:
        expression = ast.Expression(last.value)  # type: ignore[attr-defined]
        tail = _compile(expression, FILENAME, "eval", flags, dont_inherit=True)
    if (body.co_flags | (tail.co_flags if tail else 0)) & _COROUTINE:
        value = _evaluate_awaiting(body, tail, namespace)
    else:
        _exec(body, namespace)
        value = _eval(tail, namespace) if tail is not None else None
    is_quiet = code.rstrip().endswith(";")
    return None if is_quiet else value


def _evaluate_awaiting(
    body: types.CodeType, tail: types.CodeType | None, namespace: dict[str, object]
) -> object:
    import asyncio

    async def run() -> object:
        value = None
        for part in (body, tail):
            if part is not None:
                value = _eval(part, namespace)
                if part.co_flags & _COROUTINE:
                    value = await value
        return value if tail is not None else None

    return asyncio.run(run())


def _exit_status(stop: SystemExit) -> int:
    code: Any = stop.code
    if code is None:
        return 0
    if _isinstance(code, _int):
        return _int(code) & 0xFF
    _stderr.write(_str(code) + "\n")
    return 1


def _report(error: BaseException, lines: list[str]) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != FILENAME:
        trace = trace.tb_next
    try:
        text = _shorten("".join(_without_harness(_format_exception(_type(error), error, trace))))
    except _BaseException:
        text = _type(error).__name__ + "\n"
    if _isinstance(error, _SyntaxError) and _any(
        li.lstrip()[:1] in "%!" for li in lines if li.strip()
    ):
        text += NOTEBOOK_HINT
    _stderr.write(text)


def _shorten(text: str) -> str:
    """Cuts long lines: a traceback repeats the source, of which one line may be all."""
    if _len(text) <= LINE_CHARACTERS:
        return text
    lines = text.split("\n")
    return "\n".join(
        li[:LINE_CHARACTERS] + " ..." if _len(li) > LINE_CHARACTERS else li for li in lines
    )


def _without_harness(parts: list[str]) -> Iterator[str]:
    """Drops the frames of this file that a chained exception brings along."""
    own = f'File "{__file__}"'
    return (part for part in parts if own not in part)


def _finish(status: int) -> int:
    """What the interpreter does at its end: threads, exit functions, buffers."""
    _join_threads()
    _run_exit_functions()
    for stream in (_stdout, _stderr, sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (_OSError, _ValueError):  # closed or full: what was written counts
            continue
    return status


def _await_children() -> None:
    deadline = _clock() + GRACE_SECONDS
    while _clock() < deadline:
        try:
            pid, _ = _waitpid(-1, os.WNOHANG)
        except _ChildProcessError:
            return
        if pid == 0:
            _sleep(0.002)


def warm_up() -> None:
    """Runs, in the zygote, what every call runs, so that no child pays for first use."""
    namespace: dict[str, object] = {"__builtins__": __builtins__}
    _evaluate("import math\nx = [i * 2 for i in range(3)]\nf'{math.sqrt(x[1]):.2f}'", namespace)
    lines = ["1/0\n"]
    linecache.cache[FILENAME] = (4, None, lines, FILENAME)
    for source in ("1/0", "x ="):
        try:
            _evaluate(source, namespace)
        except (ZeroDivisionError, SyntaxError) as error:
            "".join(_format_exception(_type(error), error, error.__traceback__))
    random.seed(0)
    _new_main()
