"""Types of the deployments' parameters: the server refuses a wrong value when a run is created.

Prefect turns them into the JSON schema behind its form and its check. `set` cannot be checked by a
schema (it overrides any field of the profile): the flow does that as its first act.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from rstar2.config import ConfigError

PROFILES = ("laptop", "smoke")
"""The profiles that ship, spelled out because a schema is static; a test holds it to `recipes/`."""

Profile = Annotated[
    str,
    Field(
        pattern=rf"^({'|'.join(PROFILES)}|.+\.toml)$",
        description=f"{', '.join(PROFILES)}, or the path of a .toml file.",
    ),
]
"""One pattern, not a union: the server's refusal then shows what is allowed."""

RUN_NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9._-]{0,62}$"
RunName = Annotated[
    str,
    Field(
        pattern=RUN_NAME_PATTERN,
        description="Letters, digits, `.`, `_`, `-`, starting with a letter. One name = one run: "
        "an existing one is continued.",
    ),
]

NewOrExistingRun = Annotated[
    str,
    Field(
        pattern=RUN_NAME_PATTERN.replace("^", "^(", 1).replace("$", ")?$"),
        description="Name of the run, as in demo-2: an existing one is continued. Empty: a new "
        "name is made.",
    ),
]

RlStage = Annotated[
    str,
    Field(pattern=r"^rl-[1-9]$", description="rl-1, rl-2, rl-3: a stage of the profile."),
]
MeasuredStage = Annotated[
    str,
    Field(
        pattern=r"^(last|sft|rl-[1-9])$",
        description="sft, rl-1, rl-2, rl-3: a stage that ended; or last.",
    ),
]
ProblemFile = Annotated[
    str,
    Field(description="JSONL, Parquet, or a folder of `datasets`. Empty: those of the profile."),
]

CuratedFolder = Annotated[
    str,
    Field(
        description="A new folder for the curated problems and all rows left out, with their reasons. "
        "Empty: the file is used as it is."
    ),
]
EvaluationSets = Annotated[
    tuple[str, ...],
    Field(
        description="Files of problems that must not be trained on: what the curation leaves out."
    ),
]
ReferenceCounts = Annotated[
    str,
    Field(
        description="A file with problem_id, num_correct and num_attempts of a reference policy, for "
        "the curation. Empty: the columns of the problem file, where it has them."
    ),
]

Override = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*=.*$")]
Overrides = Annotated[
    tuple[Override, ...],
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
