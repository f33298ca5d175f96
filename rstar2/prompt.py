"""What stands before the first turn: the system text, the tools, and what is asked of an answer.

The ideas of the report's prompt (P-F3) in our words. Reads and writes nothing; knows no tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SYSTEM_TEXT = (
    "You solve a user's problem step by step. Think inside <reason> and </reason>; you may do so "
    "several times, and use tools in between. Give the final answer once, inside <answer> and "
    "</answer>."
)
TOOLS_TEXT = (
    "\n\n# Tools\n\nYou may call functions. Their signatures, one JSON object on each line:\n"
    "<tools>\n{tools}\n</tools>\n\nTo call one, write a JSON object with its name and arguments "
    'inside call tags:\n<tool_call>\n{{"name": "...", "arguments": {{...}}}}\n</tool_call>\n'
    "The result comes back inside <tool_response> tags."
)
INSTRUCTION_TEXT = (
    "Solve the problem below. Put the final answer in \\boxed{} inside <answer> and </answer>, as "
    "in <answer>\\boxed{...}</answer>: it is read from there automatically.\n\n"
)

SPELLED_TAG = re.compile(
    r"</?(?:tool_call|tool_response|answer|reason|think|tools)>|<\|im_(?:start|end)\|>"
)
"""In the text of others: a message that holds one is not written into the template."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSchema:
    """A tool as the policy is shown it."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments object."""


PYTHON_TOOL = ToolSchema(
    name="python",
    description="Runs Python code in a fresh interpreter and returns what it printed, or the value "
    "of its last expression. numpy and sympy are installed.",
    parameters={
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "The program."},
            "input": {"type": "string", "description": "Its standard input, if it reads any."},
        },
        "required": ["code"],
    },
)


def system_text(tools: Sequence[ToolSchema]) -> str:
    """How to solve, and the signatures of the tools where there are any."""
    if not tools:
        return SYSTEM_TEXT
    return SYSTEM_TEXT + TOOLS_TEXT.format(tools="\n".join(map(_signature, tools)))


def _signature(tool: ToolSchema) -> str:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)
