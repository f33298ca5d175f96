"""`rstar2 up`, `down`, `status`: the services that outlive a run on one machine.

Starts, stops and asks the Prefect server, the process that serves deployments, and the sandbox
daemon. Does not import Prefect; asks its server over HTTP.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from infra.services import ServiceHealth
    from infra.settings import Settings

DEPLOYMENT = "rstar2/full-recipe"


def up() -> int:
    """Start server, deployment and sandbox, or find them running. Safe to repeat.

    Example: rstar2 up && prefect deployment run rstar2/full-recipe --watch
    """
    from infra.services import ensure_deployments, ensure_server, ui_url, wait_for_deployment
    from infra.settings import load_settings

    settings = load_settings()
    api_url = ensure_server(settings, say=_say)
    serving = ensure_deployments(settings, api_url)
    _ensure_sandbox(settings)
    wait_for_deployment(serving, DEPLOYMENT)
    _print_table(_health(settings))
    print(f"\nUI:   {ui_url(api_url)}")
    print(f"next: prefect deployment run {DEPLOYMENT} --watch")
    return 0


def down() -> int:
    """Stop what `up` or a run left running; a run inside continues later under its name.

    Example: rstar2 down
    """
    from infra.sandbox.resident import stop_daemon
    from infra.services import stop_deployments, stop_server
    from infra.settings import load_settings

    settings = load_settings()
    stopped = {
        "deployments": stop_deployments(settings),
        "sandbox": stop_daemon(settings.state_folder),
        "server": stop_server(settings),
    }
    for name, was_running in stopped.items():
        print(f"{name:12} {'stopped' if was_running else 'was not running'}")
    return 0


def status(*, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> int:
    """Health of the local services. Exit code 0 when all are healthy, else 1.

    Example: rstar2 status --json

    Parameters
    ----------
    as_json
        One JSON object per service, one a line.
    """
    from infra.settings import load_settings

    services = _health(load_settings())
    if as_json:
        _print_json(services)
    else:
        _print_table(services)
    return 0 if all(service.state == "healthy" for service in services) else 1


def _health(settings: Settings) -> list[ServiceHealth]:
    from infra.services import deployments_health, server_health

    return [server_health(settings), deployments_health(settings), _sandbox_health(settings)]


def _ensure_sandbox(settings: Settings) -> None:
    """Leaves a running daemon as it is: a run may be using it with settings of its own."""
    from infra.sandbox.resident import daemon_status, ensure_daemon
    from rstar2.config import SandboxConfig

    if daemon_status(settings.state_folder) is None:
        ensure_daemon(settings.state_folder, SandboxConfig(), replace=False)


def _sandbox_health(settings: Settings) -> ServiceHealth:
    """By a trial call, as before a stage."""
    from infra.sandbox.resident import daemon_status, has_daemon, sandbox_folder
    from infra.sandbox.trial import daemon_health
    from infra.services import ServiceHealth

    folder = settings.state_folder
    health = daemon_health(folder)
    if not has_daemon(folder):
        return ServiceHealth(
            name="sandbox", state="stopped", pid=None, address="", detail=health.remedy
        )
    pid = (daemon_status(folder) or {}).get("pid") if health.is_ready else None
    return ServiceHealth(
        name="sandbox",
        state="healthy" if health.is_ready else "unhealthy",
        pid=pid if isinstance(pid, int) else None,
        address=f"unix://{sandbox_folder(folder)}",
        detail=health.seen if health.is_ready else f"{health.seen}; {health.remedy}",
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _print_table(services: list[ServiceHealth]) -> None:
    for service in services:
        pid = service.pid if service.pid is not None else "-"
        print(f"{service.name:12} {service.state:10} {pid:>8}  {service.address}  {service.detail}")


def _print_json(services: list[ServiceHealth]) -> None:
    for service in services:
        print(json.dumps(asdict(service)))
