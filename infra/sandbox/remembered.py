"""Answers a call again from what it gave before, where its result depends on its source alone.

Many rollouts of a group write the same program. A snippet of plain arithmetic (`is_pure`) gives the
same result under any `call_id`, so one run in the sandbox serves all of them, also those that ask
while it runs. Everything else is run each time: what is pure is listed here, syntax, names and
attributes alike, and what is not listed is not. A result is remembered where the program came to its
end, by itself or by an exception of its own: a limit that fired, a crash or a sandbox that was away
says nothing of the next try.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import json
import math
from collections.abc import Iterator
from functools import lru_cache

from rstar2.protocols import Execute
from rstar2.types import ToolCall, ToolResult, ToolStatus

MAX_SOURCE = 2_000
"""Characters; parsing longer source could cost as much as it saves."""
MAX_REMEMBERED = 50_000
"""Results held; the oldest goes first."""
PURE_MODULE = "math"
MODULE_NAMES = frozenset(name for name in dir(math) if not name.startswith("_"))
_PURE_BUILTINS = (
    "abs all any bin bool chr dict divmod enumerate filter float hex int isinstance len list map max "
    "min oct ord pow print range repr reversed round set sorted str sum tuple zip ArithmeticError "
    "AssertionError Exception IndexError KeyError NameError OverflowError TypeError ValueError "
    "ZeroDivisionError"
)
PURE_BUILTINS = frozenset(_PURE_BUILTINS.split())
PURE_ATTRIBUTES = MODULE_NAMES | {
    name
    for kind in (str, int, float, list, dict, set, tuple, range)
    for name in dir(kind)
    if not name.startswith("_") and name not in ("format", "format_map")  # they read attributes
}
PURE_NODES = (
    *(ast.Module, ast.Expr, ast.Pass, ast.Break, ast.Continue, ast.Return, ast.Assert, ast.Raise),
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.While, ast.If),
    *(ast.FunctionDef, ast.Lambda, ast.arguments, ast.arg, ast.Call, ast.keyword, ast.Starred),
    *(ast.Import, ast.ImportFrom, ast.alias, ast.Name, ast.Constant, ast.Attribute, ast.IfExp),
    *(ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Subscript, ast.Slice, ast.JoinedStr),
    *(ast.FormattedValue, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.expr_context),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
"""Syntax that is judged; comprehensions have a rule of their own besides."""
_CallKey = tuple[str, str]


class RememberingExecute:
    """An `Execute` over another one with limits that stay. Belongs to one event loop."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._results: dict[_CallKey, asyncio.Future[ToolResult]] = {}

    async def __call__(self, call: ToolCall, /, *, call_id: str) -> ToolResult:
        code = call.arguments.get("code")
        if not isinstance(code, str) or not is_pure(code):
            return await self._execute(call, call_id=call_id)
        key = (call.name, json.dumps(dict(call.arguments), sort_keys=True))
        known = self._results.get(key)
        if known is None:
            return await self._run_first(call, call_id, key)
        result = await asyncio.shield(known)
        return result if _is_lasting(result) else await self._execute(call, call_id=call_id)

    async def _run_first(self, call: ToolCall, call_id: str, key: _CallKey) -> ToolResult:
        """Runs the call while others like it wait for its result."""
        future = asyncio.get_running_loop().create_future()
        self._results[key] = future
        # What those who wait see where this call ends without a result, by a cancel say: they run
        # their own.
        result = ToolResult(status=ToolStatus.UNAVAILABLE)
        try:
            result = await self._execute(call, call_id=call_id)
        finally:
            future.set_result(result)
            if not _is_lasting(result):
                self._results.pop(key, None)
        if len(self._results) > MAX_REMEMBERED:
            del self._results[next(iter(self._results))]
        return result


def _is_lasting(result: ToolResult) -> bool:
    """Whether the program ended by itself: `detail` says what stopped it, if something did.

    A `MemoryError` may be the machine's.
    """
    is_judged = result.status in (ToolStatus.OK, ToolStatus.ERROR)
    return is_judged and not result.detail and "MemoryError" not in result.stderr


@lru_cache(maxsize=MAX_REMEMBERED)
def is_pure(code: str) -> bool:
    """Whether the result is a function of the source alone. False where that is not certain."""
    if len(code) > MAX_SOURCE or not code.isascii():  # a byte order mark hides what will run
        return False
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return True  # it will not parse in the sandbox either, with the same message
    except (RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    own = {name for node in nodes for name in _names_bound_by(node)}
    if any(name.startswith("__") for name in own):
        return False
    names = PURE_BUILTINS | (own - set(dir(builtins)))
    return all(_is_pure_node(node, names) for node in nodes)


def _names_bound_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
            yield name
        case ast.alias(name="*"):
            yield from MODULE_NAMES
        case ast.alias(name=name, asname=other):
            yield other or name


def _is_pure_node(node: ast.AST, names: frozenset[str]) -> bool:
    match node:
        case ast.Import(names=aliases):
            return all(alias.name == PURE_MODULE for alias in aliases)
        case ast.ImportFrom(module=module, level=level, names=aliases):
            known = {"*"} | MODULE_NAMES
            return level == 0 and module == PURE_MODULE and all(a.name in known for a in aliases)
        case ast.Attribute(attr=attr):
            return attr in PURE_ATTRIBUTES
        case ast.Name(id=name):
            return name in names
        case ast.comprehension(is_async=is_async):
            return not is_async
    return isinstance(node, PURE_NODES)
