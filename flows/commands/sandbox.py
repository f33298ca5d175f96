"""`rstar2 sandbox`: run one snippet, a node in the foreground, a load test, health.

Loads neither prefect nor torch. `exec` and `status` use the checkout's daemon (`exec` starts it
where none runs, and leaves a running one as it is); `bench` starts a node of its own and stops it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter, validators

from flows.commands.options import read_text

if TYPE_CHECKING:
    from infra.sandbox.client import Sandbox

Rung = Literal["A", "B", "C", "D"]
Several = Annotated[int, Parameter(validator=validators.Number(gte=1))]
BENCH_CODE = "print(1+1)"

app = App(
    name="sandbox",
    help="Runs code that nobody trusts.\n\nExample: echo 'print(1+1)' | rstar2 sandbox exec",
)


@app.command(name="exec")
def execute(
    file: Path | None = None,
    /,
    *,
    stdin_file: Path | None = None,
    call_id: str = "exec",
    cpu_seconds: float = 4.0,
    wall_seconds: float = 20.0,
    memory_mib: int = 1024,
) -> None:
    """Run one snippet and print its result as one line of JSON.

    The keys are the protocol's: status, rc, stdout, stderr, value, truncated, cpu_s, wall_s,
    queue_s, max_rss, rung, node. Exits 0 when the snippet could be run, whatever it did, and 1
    when the sandbox could not run it.

    Example: echo 'x = 1; x + 1' | rstar2 sandbox exec

    Parameters
    ----------
    file
        The snippet; standard input without it.
    stdin_file
        What the snippet reads as its standard input.
    call_id
        `random` and numpy are seeded from it: the same id gives the same numbers.
    cpu_seconds
        The limit: CPU time of the snippet and all it starts.
    wall_seconds
        Against a snippet that sleeps.
    memory_mib
        Memory of the snippet and all it starts.
    """
    import asyncio
    import json
    from dataclasses import asdict

    from infra.sandbox.client import open_sandbox
    from infra.sandbox.protocol import RETRYABLE, SandboxResult
    from infra.settings import load_settings
    from rstar2.config import ConfigError, SandboxConfig

    if not call_id:
        raise ConfigError("--call-id is empty: expected a text, as in --call-id a")
    with _explained():
        config = SandboxConfig(
            cpu_seconds=cpu_seconds, wall_seconds=wall_seconds, memory_mib=memory_mib
        )
    code = read_text(file)
    stdin = read_text(stdin_file) if stdin_file else ""

    async def run() -> SandboxResult:
        folder = load_settings().state_folder
        async with open_sandbox(config, folder, replace=False) as sandbox:
            return await sandbox.run(code, stdin=stdin, call_id=call_id)

    result = asyncio.run(run())
    print(json.dumps(asdict(result), ensure_ascii=False))
    if result.status in RETRYABLE:
        sys.exit(1)


@app.command
def serve(*, num_slots: int = 2, min_rung: Rung = "B", state_folder: Path | None = None) -> None:
    """Be the checkout's sandbox node, in the foreground, until Ctrl-C.

    Example: rstar2 sandbox serve --num-slots 8

    Parameters
    ----------
    num_slots
        Calls that run at once.
    min_rung
        The weakest isolation accepted; where none is reached the node refuses to start.
    state_folder
        Where its socket and lock are; the checkout's own without it.
    """
    from infra.sandbox import daemon, resident
    from infra.settings import load_settings
    from rstar2.config import SandboxConfig

    folder = resident.sandbox_folder(state_folder or load_settings().state_folder)
    with _explained():
        version = resident.version_of(SandboxConfig(num_slots=num_slots, min_rung=min_rung))
    arguments = ["--state-dir", str(folder), "--num-slots", str(num_slots)]
    sys.exit(daemon.main([*arguments, "--min-rung", min_rung, "--version", version]))


@app.command
def bench(
    *, calls: Several = 1000, in_flight: Several = 64, num_slots: int = 2, json: bool = False
) -> None:
    """Load a node of its own with `print(1+1)`: lost answers, calls/s, latency, CPU per call.

    Exits 1 when a single call was lost or answered wrongly.

    Example: rstar2 sandbox bench --calls 2000 --in-flight 64 --json

    Parameters
    ----------
    calls
        How many.
    in_flight
        How many are unanswered at any time.
    num_slots
        Calls that run at once on the node.
    json
        Print one line of JSON.
    """
    import asyncio
    import json as json_module
    import tempfile

    from infra.sandbox.client import open_sandbox
    from infra.sandbox.resident import stop_daemon
    from rstar2.config import SandboxConfig

    with _explained():
        config = SandboxConfig(num_slots=num_slots)

    async def run(folder: Path) -> dict[str, object]:
        async with open_sandbox(config, folder) as sandbox:
            return await _load(sandbox, calls, in_flight)

    with tempfile.TemporaryDirectory(prefix="rstar2-bench-") as name:
        try:
            figures = asyncio.run(run(Path(name)))
        finally:
            stop_daemon(Path(name))
    if json:
        print(json_module.dumps(figures))
    else:
        print("\n".join(f"{key:20} {value}" for key, value in figures.items()))
    if figures["num_lost"]:
        sys.exit(1)


@app.command
def status(*, json: bool = False) -> None:
    """Say how the checkout's node does. Exits 1 when none runs.

    Example: rstar2 sandbox status --json

    Parameters
    ----------
    json
        Print one line of JSON.
    """
    import json as json_module

    from infra.sandbox.resident import daemon_status
    from infra.settings import load_settings

    health = daemon_status(load_settings().state_folder)
    if health is None:
        print("no sandbox daemon runs here; start it with: rstar2 up", file=sys.stderr)
        sys.exit(1)
    if json:
        print(json_module.dumps(health))
    else:
        print("\n".join(f"{key:20} {value}" for key, value in health.items()))


@contextmanager
def _explained() -> Iterator[None]:
    """An option that is no setting of the sandbox is said as such, not as pydantic says it."""
    from pydantic import ValidationError

    from rstar2.config import ConfigError

    try:
        yield
    except ValidationError as error:
        fault = error.errors()[0]
        option = str(fault["loc"][0]).replace("_", "-")
        raise ConfigError(f"--{option} {fault['input']}: {fault['msg']}") from None


async def _load(sandbox: Sandbox, calls: int, in_flight: int) -> dict[str, object]:
    import asyncio
    import time

    await sandbox.run(BENCH_CODE, call_id="first")
    latencies: list[float] = []
    num_right = 0
    gate = asyncio.Semaphore(in_flight)

    async def one(index: int) -> None:
        nonlocal num_right
        async with gate:
            started = time.perf_counter()
            result = await sandbox.run(BENCH_CODE, call_id=f"bench/{index}")
            latencies.append(time.perf_counter() - started)
            num_right += result.status == "ok" and result.stdout == "2\n"

    cpu_before = await _cpu_seconds(sandbox)
    client_before, started = time.process_time(), time.perf_counter()
    await asyncio.gather(*(one(index) for index in range(calls)))
    seconds = time.perf_counter() - started
    cpu = await _cpu_seconds(sandbox) - cpu_before
    return {
        "num_calls": calls,
        "in_flight": in_flight,
        "num_lost": calls - num_right,
        "calls_per_second": round(calls / seconds, 1),
        "p50_ms": _percentile_ms(latencies, 0.50),
        "p95_ms": _percentile_ms(latencies, 0.95),
        "cpu_ms_per_call": round(1000 * cpu / calls, 3),
        "client_cpu_ms_per_call": round(1000 * (time.process_time() - client_before) / calls, 3),
        "rung": sandbox.rung,
    }


async def _cpu_seconds(sandbox: Sandbox) -> float:
    return float(str((await sandbox.health())["cpu_seconds"]))


def _percentile_ms(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
