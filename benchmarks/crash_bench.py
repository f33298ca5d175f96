"""What the crash matrix runs on: its services, the phases of a run, and one start of a run.

Everything lies in one temporary folder: a Prefect server, a sandbox and storages of its own. A start
stops by itself where a phase of its plan begins (`benchmarks/observer`), and waits there for a fault.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infra import services
from infra.object_store import ObjectStore, open_store
from infra.prefect_api import get_json, post_json
from infra.sandbox.resident import stop_daemon
from infra.settings import Settings, child_environment, prefect_variables

ROOT = Path(__file__).parents[1]
RUN = "drill"
MARK = "RSTAR2_CRASH_MATRIX"
LIMIT_SECONDS = 300.0
Phase = tuple[tuple[str, str, int], ...]
PHASES: dict[str, Phase] = {
    "SFT": (("rstar2/training/engine.py", "sft_step", 3),),
    "after SFT": (("tasks/problems.py", "prepare_problems", 1),),
    "collect": (("flows/rl_stage.py", "run_step", 2), ("rstar2/reward.py", "apply_verdict", 5)),
    "build": (("rstar2/roc.py", "resample_on_correct", 2),),
    "train": (
        ("tasks/training.py", "train_step", 1),
        ("rstar2/training/engine.py", "_update", 2),
    ),
    "sync": (
        ("rstar2/training/engine.py", "_metrics", 1),
        ("infra/rollout/pool.py", "update_weights", 1),
    ),
    "save": (
        ("tasks/training.py", "save_checkpoint", 1),
        ("infra/object_store_", "put_file|_upload", 4),
    ),
    "gate": (("rstar2/gate.py", "decide_gate", 1),),
    "commit": (
        ("flows/rl_stage.py", "run_step", 1),
        ("infra/ownership.py", "commit", 1),
        ("infra/object_store_", "put_if_absent", 1),
    ),
    "after RL-1": (("tasks/promotion.py", "pass_gate", 1),),
    "after RL-2": (("flows/difficulty_filter.py", "difficulty_filter", 1),),
    "filter": (
        ("tasks/difficulty.py", "sample_chunk", 2),
        ("rstar2/reward.py", "apply_verdict", 3),
    ),
    "after filter": (("tasks/problems.py", "_filtered_problems", 1),),
    "evaluate": (
        ("flows/evaluation.py", "evaluation", 1),
        ("rstar2/reward.py", "apply_verdict", 9),
    ),
}
"""In the order of a run, by the calls that lead there: part of the file's path, functions, and how
many calls of them. `collect` to `commit` lie in RL-1 behind its first step, so that one is committed.
`commit` is inside it: decided in the owner's record, the manifest not yet written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Services and one storage. Each run of a recipe has a storage of its own."""

    settings: Settings
    storage: str
    overrides: tuple[str, ...]
    variables: Mapping[str, str]
    """More of the environment that runs are started in."""

    @property
    def plan_file(self) -> Path:
        return self.settings.state_folder / "plan" / "phases.json"

    @property
    def all_overrides(self) -> list[str]:
        return [f"storage={self.storage}", *self.overrides]

    @property
    def environment(self) -> dict[str, str]:
        state = str(self.settings.state_folder)
        ours = {
            MARK: state,
            "RSTAR2_STATE_FOLDER": state,
            "RSTAR2_CRASH_PLAN": str(self.plan_file),
            "PYTHONPATH": f"{ROOT / 'benchmarks' / 'observer'}:{ROOT}",
        }
        return child_environment(
            {**prefect_variables(self.settings, self.settings.api_url), **ours, **self.variables}
        )

    def open_store(self) -> ObjectStore:
        return open_store(self.storage, cache=self.settings.state_folder / ".cache" / "rstar2")

    def plan(self, phases: Sequence[str]) -> None:
        """The next process of a run stops at these."""
        shutil.rmtree(self.plan_file.parent, ignore_errors=True)
        self.plan_file.parent.mkdir(parents=True)
        if phases:
            self.plan_file.write_text(json.dumps([PHASES[name] for name in phases]))


class Start(Protocol):
    """One start of a run."""

    def end(self) -> str | None:
        """Empty where the run is complete, else how this start ended; None while it goes on."""
        ...


class Foreground:
    """`rstar2 run` in a process of its own."""

    def __init__(self, bench: Bench) -> None:
        options = [word for override in bench.all_overrides for word in ("--set", override)]
        command = [sys.executable, "-m", "flows.commands", "run", "smoke", "--run", RUN, *options]
        with (bench.settings.log_folder / "runs.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=bench.environment, cwd=ROOT, stdout=log, stderr=log
            )

    def end(self) -> str | None:
        code = self._process.poll()
        return None if code is None else "" if code == 0 else f"exit code {code}"


class Deployed:
    """A flow run of the deployment `rstar2/full-recipe`."""

    def __init__(self, bench: Bench) -> None:
        api = bench.settings.api_url
        found = get_json(f"{api}/deployments/name/rstar2/full-recipe")
        assert isinstance(found, dict), f"rstar2/full-recipe is not deployed at {api}"
        parameters = {"profile": "smoke", "run": RUN, "set": bench.all_overrides}
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        created = post_json(f"{api}/deployments/{found['id']}/create_flow_run", body)
        assert isinstance(created, dict), f"{api} made no flow run"
        self.url = f"{api}/flow_runs/{created['id']}"

    def end(self) -> str | None:
        seen = get_json(self.url)
        kind = seen["state"]["type"] if isinstance(seen, dict) else ""
        if kind not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
            return None
        return "" if kind == "COMPLETED" else str(kind).lower()


def wait_for(what: str, is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {LIMIT_SECONDS:.0f} s: {what}")
        time.sleep(0.01)


def wait_for_phase(bench: Bench, start: Start, index: int) -> int:
    """Process id of the run, stopped where the plan's phase begins; 0 where the start ended first."""
    hit = bench.plan_file.parent / f"hit-{index}"
    wait_for(f"phase {index} of {bench.plan_file}", lambda: hit.exists() or start.end() is not None)
    if not hit.exists():
        return 0
    pid = int(hit.read_text())
    wait_for(f"process {pid} stops", lambda: process_state(pid) in ("T", ""))
    return pid


def wait_for_end(start: Start) -> str:
    wait_for("the run ends", lambda: start.end() is not None)
    return start.end() or ""


def process_state(pid: int) -> str:
    """As in `ps`; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def new_settings(folder: Path) -> Settings:
    """Services in `folder`, the server on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return Settings(
        checkout=ROOT,
        state_folder=folder,
        api_url=f"http://127.0.0.1:{port}/api",
        is_api_url_chosen=True,
        s3_endpoint=None,
    )


def stop_services(settings: Settings) -> None:
    services.stop_deployments(settings)
    stop_daemon(settings.state_folder)
    services.stop_server(settings)
