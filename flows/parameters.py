"""Types of the deployments' parameters: the server refuses a wrong value when a run is created.

Prefect turns them into the JSON schema behind its form and its check. `set` cannot be checked by a
schema (it overrides any field of the profile): the flow does that as its first act.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from rstar2.config import ConfigError

ProfileName = Literal["laptop", "smoke"]
"""The profiles that ship, spelled out because a schema is static; a test holds it to `recipes/`."""

ProfilePath = Annotated[str, Field(pattern=r"\.toml$")]
"""A profile of the user's own, by path."""

RUN_NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9._-]{0,62}$"
RunName = Annotated[
    str,
    Field(
        pattern=RUN_NAME_PATTERN,
        description="Letters, digits, `.`, `_`, `-`, starting with a letter. One name = one run: "
        "an existing one is continued.",
    ),
]

Override = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*=.*$")]
Overrides = Annotated[
    list[Override],
    Field(description="`key.path=value` lines over the profile, as in `gates.rl-1.threshold=0.08`"),
]


def check_run_name(name: str) -> str:
    """The name itself where it can name a run; raises `ConfigError` else."""
    if not re.match(RUN_NAME_PATTERN, name):
        raise ConfigError(
            f"run name {name!r}: expected 1 to 63 letters, digits, '.', '_' or '-', starting with "
            "a letter, as in demo-2"
        )
    return name
