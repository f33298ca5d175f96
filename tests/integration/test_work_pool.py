"""Deployments from prefect.yaml, run by a real worker of a real work pool."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import services
from infra.settings import Settings, child_environment, prefect_variables

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    settings = Settings(
        checkout=ROOT,
        state_folder=tmp_path_factory.mktemp("state"),
        api_url=f"http://127.0.0.1:{port}/api",
        is_api_url_chosen=False,
        s3_endpoint=None,
    )
    services.ensure_server(settings)
    yield settings
    services.stop_server(settings)


def run(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = prefect_variables(settings, settings.api_url)
    more = {"RSTAR2_STATE_FOLDER": str(settings.state_folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env=child_environment(variables | more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_missing_pool_is_named_with_the_command_that_makes_it(settings: Settings) -> None:
    refused = run(settings, "flows.commands", "deploy")
    assert refused.returncode == 2
    assert "the work pool 'rstar2' of prefect.yaml is missing" in refused.stderr
    assert "prefect work-pool create rstar2 --type process" in refused.stderr


def test_a_worker_of_the_pool_runs_the_whole_recipe(settings: Settings, tmp_path: Path) -> None:
    pool = ("prefect", "work-pool", "create", "rstar2", "--type", "process", "--overwrite")
    assert run(settings, *pool).returncode == 0
    deployed = run(settings, "flows.commands", "deploy")
    assert deployed.returncode == 0, deployed.stdout
    assert "prefect worker start --pool rstar2" in deployed.stdout
    started = run(
        settings, "prefect", "deployment", "run", "rstar2/full-recipe",
        "-p", "profile=smoke", "-p", "run=pooled", "-p", f'set=["storage={tmp_path}"]',
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    worker = run(settings, "prefect", "worker", "start", "--pool", "rstar2", "--run-once")
    assert worker.returncode == 0, worker.stderr
    runs = run(settings, "prefect", "flow-run", "ls", "--flow-name", "rstar2", "-o", "json")
    assert [found["state_name"] for found in json.loads(runs.stdout)] == ["Completed"], (
        worker.stdout
    )
