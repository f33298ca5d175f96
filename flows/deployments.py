"""Serves the deployments of this checkout: waits for runs that the server schedules, and runs them.

Started by `rstar2 up`, or by hand as `python -m flows.deployments`; ends on SIGTERM, and the run
inside ends with it (the same run name goes on later). Reads the server's address from the
environment. Deployments name the flow by module, never by file: a file entrypoint would put
`flows/` first on the import path and hide an import error.
"""

from __future__ import annotations

from infra.settings import prepare_torch_environment

MAX_RUNS = 1
"""Recipes at once on one machine: each pins its threads to the cores, two would share them."""


def main() -> None:
    prepare_torch_environment()  # inherited by the process of each run, before it imports torch
    from prefect import serve
    from prefect.deployments.runner import RunnerDeployment
    from prefect.types.entrypoint import EntrypointType

    from flows.recipe import recipe

    deployment = recipe.to_deployment(
        "full-recipe",
        entrypoint_type=EntrypointType.MODULE_PATH,
        description="SFT, RL stages with their gates, the difficulty filter, evaluation. "
        "Give `run` the name of an earlier run to continue it.",
        tags=["rstar2"],
    )
    assert isinstance(deployment, RunnerDeployment)  # a coroutine only inside an event loop
    serve(deployment, limit=MAX_RUNS, print_starting_message=False)


if __name__ == "__main__":
    main()
