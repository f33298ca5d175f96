"""Magicoder, recast: a programming problem is answered by a call of our Python tool.

Columns `lang`, `problem`, `solution` of 75K rows of OSS-Instruct:
https://huggingface.co/datasets/ise-uiuc/Magicoder-OSS-Instruct-75K, or `instruction`, `response` of 110K
rows of Evol-Instruct: https://huggingface.co/datasets/ise-uiuc/Magicoder-Evol-Instruct-110K. The report
uses 48K and does not say which. Not run on the real file.

The solution's program becomes the call, what is written around it the reason. There is no tool output:
none is published, and none is made up.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from data_catalog.sft_sources.draft import Draft, Event, Unusable
from rstar2.prompt import PYTHON_TOOL
from rstar2.types import ToolCall

COLUMNS = ("problem", "solution", "lang")
EVOL_COLUMNS = ("instruction", "response")
_FENCE = re.compile(r"^```(?P<language>[\w+#-]*)[^\n]*\n(?P<code>.*?)^```[ \t]*$", re.M | re.S)


def convert(row: Mapping[str, Any]) -> Draft:
    """Python only, and one program only: which of several to run is not said."""
    if "solution" in row:
        if row["lang"] != "python":
            raise Unusable("not Python")
        problem, solution = str(row["problem"]), str(row["solution"])
    else:
        problem, solution = str(row["instruction"]), str(row["response"])
    programs = list(_FENCE.finditer(solution))
    if len(programs) != 1:
        raise Unusable("not exactly one program")
    (program,) = programs
    if program["language"].lower() not in ("python", "python3", "py", ""):
        raise Unusable("not Python")
    code = program["code"].strip("\n")
    _check_compiles(code)
    around = f"{solution[: program.start()].strip()}\n\n{solution[program.end() :].strip()}".strip()
    call = Event(kind="call", calls=(ToolCall(name=PYTHON_TOOL.name, arguments={"code": code}),))
    said = (Event(kind="say", text=around),) if around else ()
    return Draft(events=(Event(kind="user", text=problem), *said, call), tools=(PYTHON_TOOL,))


def _check_compiles(code: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the program, not of ours
            compile(code, "<program>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unusable("the program does not compile") from None
