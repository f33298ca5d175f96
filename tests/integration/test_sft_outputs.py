"""What SFT conversations show as tool output is what the sandbox gives for the same snippet."""

import pytest

from infra.sandbox.client import open_sandbox
from rstar2.config import SandboxConfig
from rstar2.observation import format_observation
from rstar2.sft_data import run_snippet
from rstar2.types import ToolCall

SNIPPETS = [
    "print(12+34)",
    "import math\nprint(math.gcd(12,34))",
    "print(math.gcd(12,34))",
    "prnt(12+34)",
    "print(12+34",
    "print(12multiply 34)",
    "print(take the digit sum of 12)",
    "print(pow(x,2))",
    "print(sum(map(int,str(-12))))",
]


@pytest.mark.slow
async def test_sft_shows_what_the_sandbox_gives(tmp_path):
    async with open_sandbox(SandboxConfig(min_rung="D"), tmp_path) as sandbox:
        for index, code in enumerate(SNIPPETS):
            call = ToolCall(name="python", arguments={"code": code})
            result = await sandbox.execute(call, call_id=f"{index}/0/0")
            expected = format_observation(result, style="bare")
            assert format_observation(run_snippet(code), style="bare") == expected
