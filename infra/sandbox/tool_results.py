"""A sandbox result as the policy sees it: a status, what the code showed, a fixed sentence.

Reads and writes nothing. What a stopped program had printed is left out: how far it came depends on
the machine, and the same call must always read the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.sandbox.protocol import SandboxResult, SandboxStatus
from rstar2.types import ToolResult, ToolStatus

if TYPE_CHECKING:
    from rstar2.config import SandboxConfig

_TOOL_STATUS = {
    SandboxStatus.OK: ToolStatus.OK,
    SandboxStatus.ERROR: ToolStatus.ERROR,
    SandboxStatus.SIGNAL: ToolStatus.ERROR,
    SandboxStatus.OOM: ToolStatus.ERROR,
    SandboxStatus.OUTPUT_LIMIT: ToolStatus.ERROR,
    SandboxStatus.TIMEOUT_CPU: ToolStatus.TIMEOUT,
    SandboxStatus.TIMEOUT_WALL: ToolStatus.TIMEOUT,
    SandboxStatus.QUEUE_TIMEOUT: ToolStatus.UNAVAILABLE,
    SandboxStatus.INFRA_ERROR: ToolStatus.UNAVAILABLE,
}


def to_tool_result(result: SandboxResult, config: SandboxConfig, seconds: float) -> ToolResult:
    """The policy's view of one call that took `seconds` from issue to result."""
    status = _TOOL_STATUS[result.status]
    is_timeout = status is ToolStatus.TIMEOUT
    is_stopped = is_timeout or result.status in (SandboxStatus.OUTPUT_LIMIT, SandboxStatus.OOM)
    return ToolResult(
        status=status,
        stdout="" if is_timeout or result.status is SandboxStatus.OOM else result.stdout,
        stderr="" if is_stopped else result.stderr,
        value="" if is_stopped else result.value,
        detail=_detail(result, config),
        seconds=seconds,
        is_truncated=result.truncated,
    )


def _detail(result: SandboxResult, config: SandboxConfig) -> str:
    """One fixed sentence per status: for both timeouts, since a busy machine may swap them."""
    stopped_late = f"Stopped: it did not end within {config.cpu_seconds:g} s of computing."
    sentences = {
        SandboxStatus.TIMEOUT_CPU: stopped_late,
        SandboxStatus.TIMEOUT_WALL: stopped_late,
        SandboxStatus.OOM: f"Stopped: it used more than {config.memory_mib} MiB of memory.",
        SandboxStatus.OUTPUT_LIMIT: "Stopped: it printed too much.",
        SandboxStatus.SIGNAL: f"The interpreter crashed (signal {-result.rc}).",
        SandboxStatus.INFRA_ERROR: f"The sandbox could not run it: {result.stderr}",
        SandboxStatus.QUEUE_TIMEOUT: "The sandbox could not run it: it waited too long.",
    }
    return sentences.get(result.status, "")
