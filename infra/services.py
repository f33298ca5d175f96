"""The local services of a checkout: its own Prefect server and the process that serves deployments.

Starts, finds, asks and stops them; both outlive the command that started them and are found again
by pid files under the state folder, where their logs are too. Launches Prefect as a program and
never imports it. The sandbox daemon starts and stops through `infra.sandbox.client`.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from infra.background import (
    BackgroundProcess,
    find_background,
    is_locked_within,
    is_running,
    last_lines,
    one_at_a_time,
    start_background,
    stop_background,
)
from infra.prefect_api import LOOPBACK, get_json
from infra.settings import Settings, child_environment, prefect_variables

ENDING_SECONDS = 10.0
"""A killed server is gone at once for its starter, but holds its files until its threads have ended."""
START_LIMIT_SECONDS = 180.0
"""A cold start on a busy two-core machine was seen to take 50 s."""
NUM_PORTS_TRIED = 20

CHEAP_SERVER = {
    "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "2",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "2",
    "PREFECT_SERVER_SERVICES_CLEANUP_RECONCILER_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "60",
}
"""The recipe runs on the same cores. Every service stays on; those that wake each 5 s wake each
minute, and task runs are written 100 at a time instead of singly, at most 2 s late: 3.3 s of CPU
for 250 task runs instead of 7.6, and 1.4 % of a core when idle instead of 2.0 %."""


class ServiceError(RuntimeError):
    """A local service cannot be used. The message says which, why and what to do."""


class AddressError(ValueError):
    """What is given as a server's address is none."""


ServiceState = Literal["healthy", "stopped", "unhealthy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceHealth:
    name: str
    state: ServiceState
    pid: int | None
    address: str
    detail: str
    """What to do where it is not healthy, else what it is."""


def ensure_server(settings: Settings, *, say: Callable[[str], None] = lambda _: None) -> str:
    """The API address of a healthy Prefect server: the one found, or one started and left running.

    A server that the environment names is used as it is. Otherwise it is this checkout's own, on
    its usual port or, where another program holds that, on the next free one. There is never a
    second one on the checkout's database: who starts at the same time waits for the first, also
    where the environment names another port, and is told so.
    """
    with _turn(settings):
        running = _own_server(settings)
        if running is not None and _becomes_healthy(running):
            if running.address != settings.api_url:
                say(f"this checkout's Prefect server runs already, at {ui_url(running.address)}")
            return running.address
        if settings.is_api_url_chosen and is_healthy(settings.api_url):
            return settings.api_url
        address = _free_address(settings)
        if address != settings.api_url:
            say(_other_port_notice(settings.api_url, address))
        say(f"starting the local Prefect server at {ui_url(address)} (first start: up to a minute)")
        server = _start_server(settings, address)
        if not _becomes_healthy(server):
            raise ServiceError(
                f"the Prefect server ended while it started; the end of {server.log_file}:\n"
                f"{last_lines(Path(server.log_file))}"
            )
        return address


def stop_server(settings: Settings) -> bool:
    """Stops the server that this checkout started; False if none runs."""
    return stop_background(server_file(settings), grace_seconds=20.0)


def server_health(settings: Settings) -> ServiceHealth:
    """State of this checkout's server, or of the one that the environment names."""
    running = _own_server(settings)
    if running is None:
        if settings.is_api_url_chosen and is_healthy(settings.api_url):
            return _health("healthy", None, settings.api_url, "named by PREFECT_API_URL")
        return _health("stopped", None, settings.api_url, "start it: rstar2 up")
    if is_healthy(running.address):
        return _health("healthy", running.pid, running.address, f"UI at {ui_url(running.address)}")
    return _health("unhealthy", running.pid, running.address, f"see {running.log_file}")


def current_api_url(settings: Settings) -> str:
    """Where this checkout's server answers, or would answer when started."""
    running = _own_server(settings)
    return running.address if running else settings.api_url


def ensure_deployments(settings: Settings, api_url: str) -> BackgroundProcess:
    """The process that serves this checkout's deployments, found or started."""
    with _turn(settings):
        running = find_background(_deployments_file(settings))
        if running is not None and running.address == api_url:
            return running
        stop_background(_deployments_file(settings), grace_seconds=20.0)
        return start_background(
            [sys.executable, "-m", "flows.deployments"],
            pid_file=_deployments_file(settings),
            log_file=settings.log_folder / "deployments.log",
            folder=settings.checkout,
            environment=child_environment(
                {**prefect_variables(settings, api_url), "PREFECT_RUNNER_POLL_FREQUENCY": "3"}
            ),
            address=api_url,
        )


def wait_for_deployment(process: BackgroundProcess, name: str) -> None:
    """Returns when runs of the deployment are asked for; raises `ServiceError`.

    Waits for the next time rather than comparing with this machine's clock: the server may have
    another one.
    """
    deadline = time.monotonic() + START_LIMIT_SECONDS
    url = f"{process.address}/deployments/name/{name}"
    before = _last_polled(url)
    while time.monotonic() < deadline:
        if not is_running(process):
            raise ServiceError(
                f"the process that serves deployments ended while it started; the end of "
                f"{process.log_file}:\n{last_lines(Path(process.log_file))}"
            )
        if _last_polled(url) not in (None, before):
            return
        time.sleep(0.3)
    raise ServiceError(
        f"deployment {name} was not served within {START_LIMIT_SECONDS:.0f} s; see "
        f"{process.log_file}, then try: rstar2 down && rstar2 up"
    )


def _last_polled(deployment_url: str) -> object:
    """When a process last asked for runs of the deployment, by the server's clock; or None."""
    answer = get_json(deployment_url)
    return answer.get("last_polled") if isinstance(answer, dict) else None


def stop_deployments(settings: Settings) -> bool:
    """Stops the serving process and the runs inside it; a run continues under its name later."""
    return stop_background(_deployments_file(settings), grace_seconds=40.0)


def deployments_health(settings: Settings) -> ServiceHealth:
    running = find_background(_deployments_file(settings))
    if running is None:
        return ServiceHealth(
            name="deployments", state="stopped", pid=None, address="", detail="start it: rstar2 up"
        )
    return ServiceHealth(
        name="deployments",
        state="healthy",
        pid=running.pid,
        address=running.address,
        detail=f"log: {running.log_file}",
    )


def is_healthy(api_url: str) -> bool:
    """Whether a Prefect server answers there."""
    return get_json(f"{api_url}/health") is True


def ui_url(api_url: str) -> str:
    return api_url.removesuffix("/api")


def is_port_free(api_url: str) -> bool:
    """Whether a server could listen at this local address."""
    host, port = _host_and_port(api_url)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _health(state: ServiceState, pid: int | None, address: str, detail: str) -> ServiceHealth:
    return ServiceHealth(name="server", state=state, pid=pid, address=address, detail=detail)


def _own_server(settings: Settings) -> BackgroundProcess | None:
    """The server that this checkout started, unless the environment names another.

    An address on this machine where nothing answers names none.
    """
    host, _ = _host_and_port(settings.api_url)
    running = find_background(server_file(settings))
    if running is None or not settings.is_api_url_chosen or running.address == settings.api_url:
        return running
    return None if host not in LOOPBACK or is_healthy(settings.api_url) else running


@contextmanager
def _claimed_home(settings: Settings) -> Iterator[int]:
    """A locked descriptor that the server inherits: no other starts on the same database while
    it, or anything it started, lives."""
    settings.prefect_home.mkdir(parents=True, exist_ok=True)
    path = settings.prefect_home / "server.lock"
    with path.open("w") as lock:
        if not is_locked_within(lock, ENDING_SECONDS):
            raise ServiceError(
                f"a Prefect server works on {settings.prefect_home} already, but is not the one that "
                f"{server_file(settings)} names: end it (`fuser {path}` shows its process), then "
                "start again"
            )
        yield lock.fileno()


def _start_server(settings: Settings, api_url: str) -> BackgroundProcess:
    host, port = _host_and_port(api_url)
    command = [sys.executable, "-m", "prefect", "server", "start"]
    with _claimed_home(settings) as lock:
        return start_background(
            [*command, "--host", host, "--port", str(port)],
            pid_file=server_file(settings),
            log_file=settings.log_folder / "server.log",
            folder=settings.prefect_home,
            environment=child_environment(CHEAP_SERVER | prefect_variables(settings, api_url)),
            address=api_url,
            held=[lock],
        )


def _becomes_healthy(server: BackgroundProcess) -> bool:
    """Waits until it answers; False where it ended first. Raises where it lives and never does."""
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while is_running(server):
        if is_healthy(server.address):
            return True
        if time.monotonic() > deadline:
            raise ServiceError(
                f"the Prefect server did not answer at {server.address} within "
                f"{START_LIMIT_SECONDS:.0f} s; see {server.log_file}, then try: "
                "rstar2 down && rstar2 up"
            )
        time.sleep(0.2)
    return False


def _free_address(settings: Settings) -> str:
    host, port = _host_and_port(settings.api_url)
    if host not in LOOPBACK:
        raise ServiceError(
            f"no Prefect server answers at {settings.api_url}: start it on {host}, or unset "
            "PREFECT_API_URL to use a local one"
        )
    if is_port_free(settings.api_url):
        return settings.api_url
    if settings.is_api_url_chosen:
        raise ServiceError(
            f"port {port} is held by another program and no Prefect server answers there: "
            f"choose another, as in: export PREFECT_API_URL=http://{host}:{port + 1}/api"
        )
    for other in range(port + 1, port + NUM_PORTS_TRIED):
        address = f"http://{host}:{other}/api"
        if is_port_free(address):
            return address
    raise ServiceError(
        f"ports {port} to {port + NUM_PORTS_TRIED - 1} are all held by other programs: choose a "
        f"free one, as in: export PREFECT_API_URL=http://{host}:5269/api"
    )


def _other_port_notice(usual: str, address: str) -> str:
    return (
        f"port {_host_and_port(usual)[1]} is held by another program (another checkout's server?); "
        f"this checkout uses {address}\nfor plain `prefect` commands here: "
        f"export PREFECT_API_URL={address}"
    )


def _host_and_port(api_url: str) -> tuple[str, int]:
    """Raises `AddressError` for what is no address of a server."""
    try:
        parts = urlsplit(api_url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError as error:  # brackets that do not close, a port that is no number
        raise AddressError(_address_problem(api_url, f" ({error})")) from None
    if scheme not in ("http", "https") or not host:
        raise AddressError(_address_problem(api_url))
    return host, port or (443 if scheme == "https" else 80)


def _address_problem(api_url: str, why: str = "") -> str:
    expected = "expected an address like http://127.0.0.1:4269/api"
    return f"the Prefect server's address {api_url!r} is none{why}: {expected}; see PREFECT_API_URL"


def server_file(settings: Settings) -> Path:
    return settings.state_folder / "server.json"


def _deployments_file(settings: Settings) -> Path:
    return settings.state_folder / "deployments.json"


def _turn(settings: Settings) -> AbstractContextManager[None]:
    return one_at_a_time(
        settings.state_folder / "services.lock",
        work=f"starting the services of {settings.state_folder}",
        seconds=START_LIMIT_SECONDS + 60.0,
    )
