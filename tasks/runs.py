"""Names of runs: chosen by the user, or made once and remembered under Prefect's flow run id.

A flow run that is retried or resumed finds the name it made the first time, so that it continues its
own run and does not start another.
"""

from __future__ import annotations

import shlex
import string
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import product
from typing import Literal

from infra.object_store import ObjectStore, open_store
from rstar2.config import RecipeConfig

DEFAULT_STORAGE = "runs"
"""Where the commands look for a run when they are not told."""


def resume_command(profile: str, run: str, overrides: Sequence[str]) -> str:
    """What a person types to go on with a run: the same settings under the same name."""
    options = [word for override in overrides for word in ("--set", override)]
    return shlex.join(["rstar2", "run", profile, "--run", run, *options])


def gate_command(verb: Literal["show", "approve", "reject"], run: str, storage: str) -> str:
    """What a person types about a run's gates, wherever the run is kept."""
    return _command("gate", verb, run, storage)


def filter_command(run: str, storage: str) -> str:
    """What a person types to see what each band of a run's difficulty filter would keep."""
    return _command("filter", "show", run, storage)


def _command(group: str, verb: str, run: str, storage: str) -> str:
    where = [] if storage == DEFAULT_STORAGE else ["--storage", storage]
    return shlex.join(["rstar2", group, verb, run, *where])


def run_name_of(config: RecipeConfig, flow_run_id: str) -> str:
    """The name of this flow run's run, made at the first call: `laptop-1201-a`."""
    store = open_store(config.storage)
    key = f"flow-runs/{flow_run_id}"
    if store.exists(key):
        return store.get_bytes(key).decode()
    name = new_run_name(store, config.profile)
    store.put_if_absent(key, name.encode())
    return store.get_bytes(key).decode()


def new_run_name(store: ObjectStore, profile: str) -> str:
    """Profile, day and the first letters that are free; reserved for the caller."""
    stem = f"{profile}-{date.today():%m%d}"
    for letters in _letters():
        name = f"{stem}-{letters}"
        if not store.list(f"{name}/") and store.put_if_absent(f"run-names/{name}", b""):
            return name
    raise AssertionError("the letters never end")


def _letters() -> Iterator[str]:
    for length in range(1, 9):
        yield from map("".join, product(string.ascii_lowercase, repeat=length))
