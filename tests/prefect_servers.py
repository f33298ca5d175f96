"""Services of their own for a test, on a free port, and the commands and requests that use them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from infra import services
from infra.prefect_api import get_json, post_json
from infra.sandbox.resident import stop_daemon
from infra.settings import Settings, child_environment, prefect_variables

ROOT = Path(__file__).parents[1]
WAIT_SECONDS = 240
"""Generous: other tests run beside these on two cores."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings_at(folder: Path, port: int, *, is_chosen: bool = False) -> Settings:
    return Settings(
        checkout=ROOT,
        state_folder=folder,
        api_url=f"http://127.0.0.1:{port}/api",
        is_api_url_chosen=is_chosen,
        s3_endpoint=None,
    )


@contextmanager
def running_server(folder: Path) -> Iterator[Settings]:
    """A server with its state in `folder`; at the end it stops, with all that was started on it."""
    settings = settings_at(folder, free_port())
    services.ensure_server(settings)
    try:
        yield settings
    finally:
        services.stop_deployments(settings)
        stop_daemon(settings.state_folder)
        services.stop_server(settings)


def environment(settings: Settings, **more: str) -> dict[str, str]:
    """For a process of the services, which looks for work each second."""
    variables = prefect_variables(settings, settings.api_url) | {
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "RSTAR2_STATE_FOLDER": str(settings.state_folder),
        "PYTHONPATH": str(ROOT),
    }
    return child_environment(variables | more)


def run_module(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m …` in the checkout, to its end."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment(settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def rstar2(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module(settings, "flows.commands", *arguments)


def prefect(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module(settings, "prefect", *arguments)


def start_flow_run(settings: Settings, deployment: str, parameters: Mapping[str, object]) -> str:
    """Has the server run `FLOW/DEPLOYMENT` now; returns the flow run's id."""
    address = f"{settings.api_url}/deployments/name/{deployment}"
    found = answered(lambda: get_json(address))
    body = {
        "parameters": parameters,
        "state": {"type": "SCHEDULED"},
        "idempotency_key": uuid4().hex,  # asked again, the server answers with the same flow run
    }
    url = f"{settings.api_url}/deployments/{found['id']}/create_flow_run"
    return str(answered(lambda: post_json(url, body))["id"])


def state_of(settings: Settings, flow_run: str) -> str:
    found = answered(lambda: get_json(f"{settings.api_url}/flow_runs/{flow_run}"))
    return str(found["state"]["name"])


def answered(ask: Callable[[], object]) -> dict[str, Any]:
    """The server's answer; a busy one is asked again."""
    for _ in range(12):
        answer = ask()
        if isinstance(answer, dict):
            return answer
        time.sleep(1.0)
    raise AssertionError("no answer from the server")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s: {condition}"
        time.sleep(0.1)
