"""The text that answers one tool call.

Reads a `ToolResult`, returns a string; does not tokenise or cut (that is `chat`). The text depends
on nothing that time decides: of a call that met a limit only the sentence is shown, since how much
it had printed by then differs from run to run.
"""

from __future__ import annotations

from typing import Literal

from rstar2.types import ToolResult, ToolStatus

NO_OUTPUT = "(no output)"
SENTENCES = {
    ToolStatus.TIMEOUT: "Time limit exceeded.",
    ToolStatus.MALFORMED: "Malformed tool call.",
    ToolStatus.UNKNOWN_TOOL: "Unknown tool.",
    ToolStatus.UNAVAILABLE: "The tool is unavailable.",
}
"""One fixed sentence for each status that is not the outcome of the code itself."""


def format_observation(result: ToolResult, *, style: Literal["full", "bare"] = "full") -> str:
    """What the policy reads of a result.

    `ok`: standard output, then the value of a last expression. `error`: standard output, then the
    message and traceback. Else the status's sentence and its detail. `bare` shows the traceback's
    last line alone and no detail. Standard error of code that ended well is not shown.
    """
    if result.status is ToolStatus.OK:
        return _lines(result.stdout, result.value) or NO_OUTPUT
    if result.status is ToolStatus.ERROR:
        message = result.stderr.rstrip() or result.detail or "Error."
        return _lines(result.stdout, message.rpartition("\n")[2] if style == "bare" else message)
    sentence = SENTENCES[result.status]
    return sentence if style == "bare" or not result.detail else f"{sentence} {result.detail}"


def _lines(*parts: str) -> str:
    kept = [part.rstrip("\n") for part in parts]
    return "\n".join(part for part in kept if part)
