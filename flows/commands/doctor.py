"""`rstar2 doctor`: what this machine offers for a profile, each fault with its remedy.

Looks at Python, cores, memory, accelerators, the sandbox's isolation, the storage (with a write
test) and the server's port. Starts only a sandbox of its own for the question, and stops it;
loads neither prefect nor torch.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from rstar2.config import RecipeConfig

NEEDED_MEMORY_GIB = 4
NEEDED_DISK_GIB = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    name: str
    state: Literal["ok", "note", "bad"]
    """`note`: the recipe runs, with less. `bad`: it does not."""
    seen: str
    remedy: str = ""


def doctor(
    profile: str = "laptop",
    /,
    *,
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """What this machine offers for a profile. Exit code 1 where something stops the recipe.

    Example: rstar2 doctor laptop --json

    Parameters
    ----------
    profile
        A shipped profile, or the path of a TOML file.
    set
        Overrides one setting, as in `storage=s3://bucket/runs`; may be repeated.
    as_json
        One JSON object per finding, one a line.
    """
    from rstar2.profiles import load_config

    config = load_config(profile, set or [])
    is_well = True
    for finding in _findings(config):
        is_well = is_well and finding.state != "bad"
        print(json.dumps(asdict(finding)) if as_json else _line(finding), flush=True)
    return 0 if is_well else 1


def _findings(config: RecipeConfig) -> Iterator[Finding]:
    yield _system()
    yield _python()
    yield _cores(config)
    yield _memory()
    yield _accelerators()
    yield _sandbox(config)
    yield _disk(config)
    yield _storage(config)
    yield _server()


def _line(finding: Finding) -> str:
    remedy = f"\n{'':18}-> {finding.remedy}" if finding.remedy else ""
    return f"{finding.name:12} {finding.state:4} {finding.seen}{remedy}"


def _system() -> Finding:
    seen = " ".join(platform.uname()[i] for i in (0, 2, 4))
    if sys.platform == "linux":
        return Finding(name="system", state="ok", seen=seen)
    return Finding(
        name="system", state="bad", seen=seen, remedy="the sandbox needs Linux: use a container"
    )


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    seen = f"{version} at {sys.executable}"
    if (3, 11) <= sys.version_info < (3, 14):
        return Finding(name="python", state="ok", seen=seen)
    return Finding(
        name="python", state="bad", seen=seen, remedy="use 3.11, 3.12 or 3.13: make clean setup"
    )


def _cores(config: RecipeConfig) -> Finding:
    from infra.machine import num_cores

    cores = num_cores()
    if cores >= config.num_threads:
        return Finding(name="cores", state="ok", seen=str(cores))
    return Finding(
        name="cores",
        state="note",
        seen=f"{cores}, the profile pins num_threads = {config.num_threads}",
        remedy=f"it runs, slower; or --set num_threads={cores} from the start of a run",
    )


def _memory() -> Finding:
    from infra.machine import GIB, memory_bytes

    total, available = memory_bytes()
    seen = f"{total / GIB:.1f} GiB, {available / GIB:.1f} available"
    if available >= NEEDED_MEMORY_GIB * GIB:
        return Finding(name="memory", state="ok", seen=seen)
    return Finding(
        name="memory",
        state="note",
        seen=seen,
        remedy=f"about {NEEDED_MEMORY_GIB} GiB are wanted: close other programs",
    )


def _accelerators() -> Finding:
    from infra.machine import accelerators

    found = accelerators()
    if found.names:
        seen = f"{len(found.names)} {found.vendor}: {', '.join(sorted({*found.names}))}"
        return Finding(name="gpus", state="ok", seen=seen)
    if found.problem:
        return Finding(
            name="gpus", state="note", seen=found.problem, remedy="check the driver; CPUs are used"
        )
    return Finding(name="gpus", state="ok", seen="none; laptop and smoke need none")


def _sandbox(config: RecipeConfig) -> Finding:
    """The strongest isolation on which a call really runs; a daemon is started aside and stopped."""
    from infra.sandbox.resident import SandboxError, ensure_daemon, stop_daemon
    from infra.sandbox.trial import daemon_health

    weakest = config.sandbox.model_copy(update={"min_rung": "D", "num_slots": 1})
    with tempfile.TemporaryDirectory(prefix="rstar2-doctor-") as folder:
        try:
            rung = str(ensure_daemon(Path(folder), weakest, replace=False)["rung"])
            health = daemon_health(Path(folder))
        except SandboxError as error:
            return Finding(name="sandbox", state="bad", seen=str(error))
        finally:
            stop_daemon(Path(folder))
    if not health.is_ready:
        return Finding(name="sandbox", state="bad", seen=health.seen, remedy=health.remedy)
    if rung <= config.sandbox.min_rung:
        return Finding(name="sandbox", state="ok", seen=health.seen)
    return Finding(
        name="sandbox",
        state="bad",
        seen=f"only rung {rung}, sandbox.min_rung = {config.sandbox.min_rung}",
        remedy="allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), or accept "
        f"less: --set sandbox.min_rung={rung}",
    )


def _disk(config: RecipeConfig) -> Finding:
    from infra.machine import GIB, free_disk_bytes
    from infra.settings import load_settings

    state_folder = load_settings().state_folder
    folder = state_folder if "://" in config.storage else Path(config.storage)
    free = free_disk_bytes(folder)
    seen = f"{free / GIB:.1f} GiB free for {folder}"
    if free >= NEEDED_DISK_GIB * GIB:
        return Finding(name="disk", state="ok", seen=seen)
    return Finding(
        name="disk",
        state="bad",
        seen=seen,
        remedy=f"about {NEEDED_DISK_GIB} GiB are needed: free some, or --set storage=FOLDER",
    )


def _storage(config: RecipeConfig) -> Finding:
    from infra.object_store import StoreError, open_store

    try:
        store = open_store(config.storage)
        store.probe()
        unfinished = store.unfinished()
    except StoreError as error:
        return Finding(name="storage", state="bad", seen=str(error))
    if unfinished:
        return Finding(
            name="storage",
            state="note",
            seen=f"{config.storage}: reads and writes; unfinished uploads: {', '.join(unfinished)}",
            remedy="nothing: the run that sent them goes on with them, and after a week they go",
        )
    return Finding(name="storage", state="ok", seen=f"{config.storage}: reads and writes")


def _server() -> Finding:
    from infra.services import is_port_free, server_health
    from infra.settings import load_settings

    settings = load_settings()
    health = server_health(settings)
    if health.state == "healthy":
        return Finding(name="server", state="ok", seen=f"answers at {health.address}")
    if health.state == "unhealthy":
        return Finding(
            name="server", state="bad", seen=health.detail, remedy="rstar2 down && rstar2 up"
        )
    if is_port_free(settings.api_url):
        return Finding(name="server", state="ok", seen=f"not running; {settings.api_url} is free")
    return Finding(
        name="server",
        state="note",
        seen=f"the port of {settings.api_url} is held by another program",
        remedy="rstar2 will use the next free port; or choose one: export "
        "PREFECT_API_URL=http://127.0.0.1:5269/api",
    )
