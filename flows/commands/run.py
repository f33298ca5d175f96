"""`rstar2 run`: the recipe in the foreground, on the project's own local Prefect server.

The same flow as the deployment. Checks everything that can be wrong before it starts a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter


def run(
    profile: str,
    /,
    *,
    run: str | None = None,
    problems: str | None = None,
    map: Annotated[list[str] | None, Parameter(negative="")] = None,
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
) -> int:
    """Train a model by the whole recipe; a run of that name is continued.

    Example: rstar2 run laptop --run demo --set seed=3

    Parameters
    ----------
    profile
        laptop, smoke, or the path of a TOML file.
    run
        Name of the run. Without it a new one is made.
    problems
        Your own problems: JSONL, Parquet, a folder of `datasets`, or hub:OWNER/NAME[/CONFIG]:SPLIT.
    map
        Which column is which, as in `--map question=problem --map answer=solution.final`.
    set
        Overrides one setting, as in `gates.rl-1.threshold=0.08`; may be repeated.
    """
    from infra.object_store import open_store
    from rstar2.profiles import load_config, problem_overrides
    from tasks.inputs import check_sources
    from tasks.ledger import open_ledger

    overrides = [*(set or []), *problem_overrides(profile, problems, map or ())]
    config = load_config(profile, overrides)
    name = _checked_name(run) if run is not None else None
    open_store(config.storage).probe()
    if name and (code := _already_ended(config.storage, name, overrides, profile)) is not None:
        return code
    check_sources(config)
    if name:
        with open_ledger(config.storage, name):
            pass  # a run that another process trains is refused here, before anything starts
    _attach_to_server()
    return _run_flow(profile, name, overrides)


def _checked_name(name: str) -> str:
    from flows.parameters import check_run_name

    return check_run_name(name)


def _already_ended(storage: str, name: str, overrides: Sequence[str], profile: str) -> int | None:
    """Prints the result of a run that has ended, without a server; None where work is left."""
    from flows.outcome import print_outcome, read_outcome
    from infra.object_store import open_store
    from tasks.ledger import Ledger

    outcome = read_outcome(storage, name, profile, overrides)
    if outcome is None or not outcome.has_ended:
        return None
    Ledger(open_store(storage), name).publish(force=True)  # it may have been deleted since
    return print_outcome(outcome)


def _attach_to_server() -> None:
    from infra.services import ensure_server
    from infra.settings import (
        load_settings,
        prepare_prefect_environment,
        prepare_torch_environment,
    )

    settings = load_settings()
    prepare_prefect_environment(settings, ensure_server(settings, say=print))
    prepare_torch_environment()


def _run_flow(profile: str, name: str | None, overrides: Sequence[str]) -> int:
    from flows.commands.interrupt import stops_when_interrupted
    from infra.object_store import open_store
    from rstar2.profiles import load_config
    from tasks.runs import new_run_name, resume_command

    config = load_config(profile, overrides)
    name = name or new_run_name(open_store(config.storage), config.profile)
    command = resume_command(profile, name, overrides)
    print(f"run {name}; stop it at any time, this goes on: {command}", flush=True)
    with stops_when_interrupted():
        from flows.automations import ensure_automations  # Prefect and torch take seconds to load
        from flows.outcome import print_outcome, read_outcome
        from flows.recipe import recipe

        ensure_automations()
        state = recipe(profile, name, tuple(overrides), return_state=True)
    outcome = read_outcome(config.storage, name, profile, overrides)
    if outcome is None or not outcome.has_ended:
        raise _failure(state)
    return print_outcome(outcome)


def _failure(state: object) -> BaseException:
    error = state.result(raise_on_failure=False)  # type: ignore[attr-defined]
    if isinstance(error, BaseException):
        return error
    return RuntimeError(f"the flow ended in state {state} before its run did; start it again")
