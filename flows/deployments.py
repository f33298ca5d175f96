"""Serves the deployments of this checkout: waits for runs that the server schedules, and runs them.

Started by `rstar2 up`, or by hand as `python -m flows.deployments`; ends on SIGTERM, and the run
inside ends with it (the same run name goes on later). Reads the server's address from the
environment. Deployments name the flow by module, never by file: a file entrypoint would put
`flows/` first on the import path and hide an import error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.settings import prepare_torch_environment

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment

MAX_RUNS = 1
"""Recipes at once on one machine: each pins its threads to the cores, two would share them."""


def main() -> None:
    prepare_torch_environment()  # inherited by the process of each run, before it imports torch
    from prefect import serve

    from flows.automations import ensure_automations

    ensure_automations()
    serve(*deployments(), limit=MAX_RUNS, print_starting_message=False)


def deployments() -> list[RunnerDeployment]:
    """`rstar2/full-recipe`, and one for each part."""
    from prefect.deployments.runner import RunnerDeployment
    from prefect.types.entrypoint import EntrypointType

    from flows import by_hand
    from flows.recipe import recipe

    flows = {
        "full-recipe": (recipe,),
        "by-hand": (
            by_hand.rl_stage_by_hand,
            by_hand.difficulty_filter_by_hand,
            by_hand.evaluation_by_hand,
            by_hand.ingest_by_hand,
        ),
    }
    made = [
        flow.to_deployment(name, entrypoint_type=EntrypointType.MODULE_PATH, tags=["rstar2"])
        for name, group in flows.items()
        for flow in group
    ]
    return [d for d in made if isinstance(d, RunnerDeployment)]  # coroutines only in an event loop


if __name__ == "__main__":
    main()
