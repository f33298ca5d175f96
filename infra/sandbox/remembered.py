"""Answers a call again from what it gave before, where its result depends on its source alone.

Many rollouts of a group write the same program. A snippet of plain arithmetic (`is_pure`) gives the
same result under any `call_id`, so one run in the sandbox serves all of them, also those that ask
while it runs. Everything else is run each time: whatever names time, randomness, files, input, an
import besides `math`, or a private attribute. Only `ok` and `error` are remembered: a limit that
fired or a sandbox that was away says nothing of the next try.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
from dataclasses import dataclass
from functools import lru_cache

from rstar2.protocols import Execute
from rstar2.types import ToolCall, ToolResult, ToolStatus

MAX_SOURCE = 2_000
"""Characters; parsing longer source could cost as much as it saves."""
MAX_REMEMBERED = 50_000
"""Results held; the oldest goes first."""
_PURE_BUILTINS = (
    "abs all any bin bool chr dict divmod enumerate filter float hex int isinstance len list map max "
    "min oct ord pow print range repr reversed round set sorted str sum tuple zip ArithmeticError "
    "AssertionError Exception IndexError KeyError NameError OverflowError TypeError ValueError "
    "ZeroDivisionError False None True"
)
IMPURE_NAMES = frozenset(dir(builtins)) - frozenset(_PURE_BUILTINS.split())
PURE_MODULES = frozenset({"math"})
PURE_STATUSES = frozenset({ToolStatus.OK, ToolStatus.ERROR})
IMPURE_NODES = (
    *(ast.AsyncFor, ast.AsyncFunctionDef, ast.AsyncWith, ast.Await, ast.ClassDef, ast.Delete),
    *(ast.Global, ast.Nonlocal, ast.With, ast.Yield, ast.YieldFrom, ast.Try, ast.TryStar),
)
"""Not impure as such; left out so that what is judged stays small enough to be sure of."""


@dataclass(slots=True)
class Counts:
    """Calls answered since the start, by how."""

    num_run: int = 0
    num_remembered: int = 0


class RememberingExecute:
    """An `Execute` over another one. Belongs to one event loop."""

    def __init__(self, execute: Execute) -> None:
        self.counts = Counts()
        self._execute = execute
        self._results: dict[str, asyncio.Future[ToolResult]] = {}

    async def __call__(self, call: ToolCall, /, *, call_id: str) -> ToolResult:
        code = call.arguments.get("code")
        if not isinstance(code, str) or not is_pure(code):
            return await self._run(call, call_id)
        known = self._results.get(code)
        if known is not None:
            result = await asyncio.shield(known)
            if result.status in PURE_STATUSES:
                self.counts.num_remembered += 1
                return result
            return await self._run(call, call_id)
        return await self._run_first(call, call_id, code)

    async def _run(self, call: ToolCall, call_id: str) -> ToolResult:
        self.counts.num_run += 1
        return await self._execute(call, call_id=call_id)

    async def _run_first(self, call: ToolCall, call_id: str, code: str) -> ToolResult:
        """Runs the call while others with the same source wait for it."""
        future = asyncio.get_running_loop().create_future()
        self._results[code] = future
        # What those who wait see where this call ends without a result, by a cancel say: they run
        # their own.
        result = ToolResult(status=ToolStatus.UNAVAILABLE)
        try:
            result = await self._run(call, call_id)
        finally:
            future.set_result(result)
            if result.status not in PURE_STATUSES:
                del self._results[code]
        if len(self._results) > MAX_REMEMBERED:
            del self._results[next(iter(self._results))]
        return result


@lru_cache(maxsize=MAX_REMEMBERED)
def is_pure(code: str) -> bool:
    """Whether the result is a function of the source alone. False where that is not certain."""
    if len(code) > MAX_SOURCE:
        return False
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return True  # it will not parse in the sandbox either, with the same message
    except (RecursionError, MemoryError):
        return False
    return all(_is_pure_node(node) for node in ast.walk(tree))


def _is_pure_node(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return all(alias.name in PURE_MODULES for alias in names)
        case ast.ImportFrom(module=module, level=level):
            return level == 0 and module in PURE_MODULES
        case ast.Attribute(attr=attr):
            return not attr.startswith("_") and attr not in ("format", "format_map")
        case ast.Name(id=name):
            return name not in IMPURE_NAMES and not name.startswith("__")
    return not isinstance(node, IMPURE_NODES)
