"""One trial call to a daemon that is there, without a stage: what `status` and `doctor` show.

The same check as a stage's, so that all three say the same. Starts, replaces and ends no daemon.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from infra.health import ResourceHealth, not_ready
from infra.sandbox.client import NAME, open_sandbox
from infra.sandbox.resident import SandboxError, has_daemon, sandbox_folder
from rstar2.config import SandboxConfig


def daemon_health(state_dir: Path) -> ResourceHealth:
    """The health of the daemon of `state_dir`, on whatever rung it is."""
    config = SandboxConfig(address=f"unix://{sandbox_folder(state_dir)}", min_rung="D")
    try:
        return asyncio.run(_check(state_dir, config))
    except SandboxError as error:
        if not has_daemon(state_dir):
            return not_ready(NAME, "no daemon runs", "start it: rstar2 up")
        return not_ready(NAME, str(error), "end it and start it: rstar2 down && rstar2 up")


async def _check(state_dir: Path, config: SandboxConfig) -> ResourceHealth:
    async with open_sandbox(config, state_dir) as sandbox:
        return await sandbox.check()
