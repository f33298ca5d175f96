"""What this machine and this checkout decide: the only reader and writer of `os.environ`.

Reads the environment and `[tool.prefect.api]` of the checkout's pyproject.toml, once, into a frozen
`Settings`; writes the variables that Prefect and torch read while they are imported. Decides
nothing about what a run computes: that is `rstar2.config`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_API_URL = "http://127.0.0.1:4269/api"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    checkout: Path
    """Folder of the checkout's pyproject.toml, or the working directory outside a checkout."""
    state_folder: Path
    """Pid files, logs, Prefect's database. `RSTAR2_STATE_FOLDER`, else the checkout's `.rstar2/`."""
    api_url: str
    """Of the Prefect server: `PREFECT_API_URL`, else pyproject, else port 4269 here."""
    is_api_url_chosen: bool
    """The environment names the server: it is used as it is, whoever started it."""
    writing_api_key: str | None = field(default=None, repr=False)
    """Of the endpoint that rewrites SFT data: `OPENAI_API_KEY`. Never logged."""
    s3_endpoint: str | None
    """Of an S3 other than Amazon's: `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`."""

    @property
    def prefect_home(self) -> Path:
        return self.state_folder / "prefect"

    @property
    def log_folder(self) -> Path:
        return self.state_folder / "logs"


def load_settings() -> Settings:
    """The settings of the working directory. Creates no folder."""
    checkout = _find_checkout(Path.cwd())
    named = os.environ.get("RSTAR2_STATE_FOLDER")
    state_folder = Path(named).expanduser().absolute() if named else checkout / ".rstar2"
    chosen = os.environ.get("PREFECT_API_URL")
    return Settings(
        checkout=checkout,
        state_folder=state_folder,
        api_url=chosen or _pyproject(checkout).get("api_url", DEFAULT_API_URL),
        is_api_url_chosen=bool(chosen),
        writing_api_key=os.environ.get("OPENAI_API_KEY"),
        s3_endpoint=os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"),
    )


def prefect_variables(settings: Settings, api_url: str) -> dict[str, str]:
    """For every Prefect process of ours: own home, no telemetry, no temporary server."""
    return {
        "PREFECT_API_URL": api_url,
        "PREFECT_HOME": str(settings.prefect_home),
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        # Six tasks a step would each say that they finished; the step's own line says it all.
        "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "WARNING",
    }


def prepare_prefect_environment(settings: Settings, api_url: str) -> None:
    """Points this process at the server. Call it before the first `import prefect`."""
    os.environ.update(prefect_variables(settings, api_url))


def prepare_torch_environment() -> None:
    """Defaults that torch and transformers read while they are imported; the user's own win.

    `OMP_WAIT_POLICY=PASSIVE`: idle threads sleep; spinning ones made a step 20 times slower on a
    busy machine. Models are folders, so nothing is ever fetched from a hub.
    """
    defaults = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that we start: this one's, with `changes`."""
    return {**os.environ, **changes}


def _find_checkout(start: Path) -> Path:
    for folder in (start, *start.parents):
        if _pyproject(folder).get("name") == "rstar2":
            return folder
    return start


def _pyproject(folder: Path) -> dict[str, str]:
    """`name` and `api_url` of the folder's pyproject.toml, where it has them."""
    try:
        tree = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}
    found = {
        "name": tree.get("project", {}).get("name"),
        "api_url": tree.get("tool", {}).get("prefect", {}).get("api", {}).get("url"),
    }
    return {key: value for key, value in found.items() if value}
