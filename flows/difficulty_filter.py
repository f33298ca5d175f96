"""The difficulty filter between two RL stages: sample with the newest policy, drop what is solved."""

from __future__ import annotations

from prefect import flow
from prefect.logging import get_run_logger

from infra.server_outage import await_server
from rstar2.config import RecipeConfig
from rstar2.types import ArtifactRef, StageResult
from tasks.difficulty import decide_difficulty, sample_difficulty
from tasks.health import check_resources
from tasks.ledger import FILTER, Ledger, num_dropped
from tasks.resources import open_resources


@flow(name="difficulty-filter", flow_run_name="difficulty filter", validate_parameters=False)
def difficulty_filter(ledger: Ledger, config: RecipeConfig, *, start: StageResult) -> ArtifactRef:
    """The problems of the stage before that its policy does not always solve; done only once."""
    known = ledger.find("filter", stage=FILTER)
    if known is not None:
        return known.parts["problems"]
    assert start.problem_set is not None, "the configuration has no filter before the first stage"
    with open_resources(ledger, config, checkpoint=start.checkpoint, trains=False) as resources:
        check_resources(resources, when="before")
        rollouts = sample_difficulty(resources, problem_set=start.problem_set, stage=start.stage)
        kept = decide_difficulty(
            ledger,
            config,
            problem_set=start.problem_set,
            rollouts=rollouts,
            start=start,
            losses=resources.losses(),
            healths=check_resources(resources, when="after"),
        )
    ledger.publish(force=True)
    dropped, total = num_dropped(ledger) or (0, 0)
    get_run_logger().info(f"difficulty filter: {dropped} of {total} problems dropped")
    await_server()
    return kept
