"""Deployments from prefect.yaml, run by a real worker of a real work pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect_servers import prefect, rstar2, running_server, start_flow_run, state_of

from infra.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with running_server(tmp_path_factory.mktemp("state")) as settings:
        yield settings


def test_a_missing_pool_is_named_with_the_command_that_makes_it(settings: Settings) -> None:
    refused = rstar2(settings, "deploy")
    assert refused.returncode == 2
    assert "the work pool 'rstar2' of prefect.yaml is missing" in refused.stderr
    assert "prefect work-pool create rstar2 --type process" in refused.stderr


def test_a_worker_of_the_pool_runs_the_whole_recipe(settings: Settings, tmp_path: Path) -> None:
    pool = ("work-pool", "create", "rstar2", "--type", "process", "--overwrite")
    assert prefect(settings, *pool).returncode == 0
    deployed = rstar2(settings, "deploy")
    assert deployed.returncode == 0, deployed.stdout
    assert "prefect worker start --pool rstar2" in deployed.stdout
    parameters = {"profile": "smoke", "run": "pooled", "set": [f"storage={tmp_path}"]}
    flow_run = start_flow_run(settings, "rstar2/full-recipe", parameters)
    worker = prefect(settings, "worker", "start", "--pool", "rstar2", "--run-once")
    assert worker.returncode == 0, worker.stderr
    assert state_of(settings, flow_run) == "Completed", worker.stdout
