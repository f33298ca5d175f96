"""`rstar2 deploy`: gives the deployments of prefect.yaml to workers, on this or other machines.

Reads prefect.yaml of the checkout, asks the Prefect server for the work pools that it names, and
lets Prefect's own command do the rest. Does not make pools: their type is a choice of the site.
"""

from __future__ import annotations

from pathlib import Path

DEPLOYMENTS_FILE = "prefect.yaml"


def deploy() -> int:
    """Register the deployments of prefect.yaml, for workers that run them. Safe to repeat.

    Example: rstar2 deploy && prefect worker start --pool rstar2 --limit 1
    """
    import subprocess
    import sys

    from infra.services import ensure_server
    from infra.settings import child_environment, load_settings, prefect_variables

    settings = load_settings()
    pools = _pools_of(settings.checkout / DEPLOYMENTS_FILE)
    api_url = ensure_server(settings, say=print)
    _check_pools(api_url, pools)
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "deploy", "--all", "--no-prompt"],
        cwd=settings.checkout,
        env=child_environment(prefect_variables(settings, api_url)),
        check=False,
    )
    if done.returncode == 0:
        print(
            "next: " + "; ".join(f"prefect worker start --pool {pool} --limit 1" for pool in pools)
        )
    return done.returncode


def _pools_of(path: Path) -> list[str]:
    """Names of the work pools in the file."""
    import yaml

    from rstar2.config import ConfigError

    if not path.is_file():
        raise ConfigError(f"{path} is missing: expected to be started in a checkout of rstar2")
    deployments = yaml.safe_load(path.read_text(encoding="utf-8"))["deployments"]
    return sorted({deployment["work_pool"]["name"] for deployment in deployments})


def _check_pools(api_url: str, pools: list[str]) -> None:
    """Raises `ConfigError` with the command that makes a pool which the server does not know."""
    from infra.prefect_api import get_json
    from rstar2.config import ConfigError

    for pool in pools:
        if get_json(f"{api_url}/work_pools/{pool}") is None:
            raise ConfigError(
                f"the work pool {pool!r} of {DEPLOYMENTS_FILE} is missing on {api_url}: no worker "
                "would ever start its runs. Make it first, of the type that your machines need: "
                f"prefect work-pool create {pool} --type process (or kubernetes)"
            )
