"""The real Prefect server and serving process: started, found, used, stopped."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prefect_servers import ROOT, free_port, prefect, settings_at

from infra import services
from infra.server_outage import await_server
from infra.settings import Settings


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A checkout's services, with the server up: three commands started it at once."""
    folder = tmp_path_factory.mktemp("state")
    starters = [settings_at(folder, free_port(), is_chosen=n > 0) for n in range(3)]
    with ThreadPoolExecutor() as pool:
        addresses = list(pool.map(services.ensure_server, starters))
    settings = next(s for s in starters if s.api_url == addresses[0])
    yield settings
    services.stop_deployments(settings)
    services.stop_server(settings)


def test_a_port_held_by_another_program_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        settings = settings_at(tmp_path, other.getsockname()[1], is_chosen=True)
        with pytest.raises(services.ServiceError, match=r"export PREFECT_API_URL=http://127"):
            services.ensure_server(settings)


def test_a_remote_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    settings = Settings(
        checkout=ROOT,
        state_folder=tmp_path,
        api_url="http://rstar2.invalid:4200/api",
        is_api_url_chosen=True,
        s3_endpoint=None,
    )
    with pytest.raises(services.ServiceError, match=r"no Prefect server answers at http://rstar2"):
        services.ensure_server(settings)


def test_a_server_whose_pid_file_is_lost_still_keeps_a_second_one_out(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, free_port())
    settings.prefect_home.mkdir()
    with (settings.prefect_home / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(services.ServiceError, match=r"works on .* already.*fuser"):
            services.ensure_server(settings)
    assert not services.stop_server(settings)


@pytest.mark.slow
def test_a_running_server_is_found_by_the_next_start(settings: Settings) -> None:
    first = services.server_health(settings)
    assert first.state == "healthy"
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(services.ensure_server, [settings] * 4))
    assert found == [settings.api_url] * 4
    assert services.server_health(settings).pid == first.pid


@pytest.mark.slow
@pytest.mark.parametrize("is_chosen", [True, False])
def test_another_port_for_the_same_database_attaches_to_its_server(
    settings: Settings, is_chosen: bool
) -> None:
    other = settings_at(settings.state_folder, free_port(), is_chosen=is_chosen)
    said: list[str] = []
    assert services.ensure_server(other, say=said.append) == settings.api_url
    assert said == [
        f"this checkout's Prefect server runs already, at {services.ui_url(settings.api_url)}"
    ]
    assert services.server_health(other) == services.server_health(settings)
    assert services.current_api_url(other) == settings.api_url
    assert not services.is_healthy(other.api_url)


@pytest.mark.slow
def test_another_checkout_gets_the_next_free_port(settings: Settings, tmp_path: Path) -> None:
    usual_port = int(settings.api_url.split(":")[2].removesuffix("/api"))
    other = settings_at(tmp_path, usual_port)
    said: list[str] = []
    address = services.ensure_server(other, say=said.append)
    try:
        assert address != settings.api_url
        assert services.is_healthy(address)
        assert "is held by another program" in said[0]
        assert services.current_api_url(other) == address
    finally:
        assert services.stop_server(other)
    assert not services.is_healthy(address)
    assert services.is_healthy(settings.api_url)


@pytest.mark.slow
def test_a_server_that_the_environment_names_is_used_as_it_is(
    settings: Settings, tmp_path: Path
) -> None:
    port = int(settings.api_url.split(":")[2].removesuffix("/api"))
    other = settings_at(tmp_path, port, is_chosen=True)
    assert services.ensure_server(other) == settings.api_url
    assert not services.stop_server(other)
    assert services.is_healthy(settings.api_url)


@pytest.mark.slow
def test_a_killed_server_is_started_again(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, free_port())
    services.ensure_server(settings)
    pid = services.server_health(settings).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    try:
        services.ensure_server(settings)
        health = services.server_health(settings)
        assert health.state == "healthy"
        assert health.pid != pid
    finally:
        services.stop_server(settings)


@pytest.mark.slow
def test_a_run_whose_own_server_was_killed_starts_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_at(tmp_path, free_port())
    services.ensure_server(settings)
    pid = services.server_health(settings).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    monkeypatch.setenv("PREFECT_API_URL", settings.api_url)
    monkeypatch.setenv("RSTAR2_STATE_FOLDER", str(tmp_path))
    try:
        await_server()
        assert services.is_healthy(settings.api_url)
    finally:
        services.stop_server(settings)


@pytest.mark.slow
def test_the_deployment_refuses_wrong_parameters_and_runs_the_recipe(
    settings: Settings, tmp_path: Path
) -> None:
    serving = services.ensure_deployments(settings, settings.api_url)
    services.wait_for_deployment(serving, "rstar2/full-recipe")
    assert services.ensure_deployments(settings, settings.api_url) == serving

    run = ("deployment", "run", "rstar2/full-recipe")
    for wrong in ("profile=lptop", "run=42", 'set=["seed"]'):
        refused = prefect(settings, *run, "-p", wrong)
        assert refused.returncode == 1
        assert f"field '{wrong.partition('=')[0]}" in refused.stdout

    storage = json.dumps([f"storage={tmp_path}"])
    done = prefect(
        settings, *run, "--watch", "-p", "profile=smoke", "-p", "run=served", "-p", f"set={storage}"
    )
    assert done.returncode == 0, done.stdout + services.last_lines(Path(serving.log_file), 40)
    assert (tmp_path / "served" / "run.json").exists()

    assert services.stop_deployments(settings)
    assert services.deployments_health(settings).state == "stopped"
    with urllib.request.urlopen(f"{settings.api_url}/health", timeout=10) as answer:
        assert answer.status == 200
