"""The last part of the recipe: the final policy on all held-out problems."""

from __future__ import annotations

from prefect import flow

from infra.server_outage import await_server
from rstar2.config import RecipeConfig
from rstar2.types import Score, StageResult
from tasks.evaluation import evaluate, known_scores, show_scores
from tasks.health import check_resources
from tasks.ledger import FINAL, Ledger
from tasks.problems import held_out_problems
from tasks.resources import open_resources


@flow(name="evaluation", flow_run_name="evaluation", validate_parameters=False)
def evaluation(
    ledger: Ledger, config: RecipeConfig, result: StageResult, *, name: str = FINAL
) -> tuple[Score, ...]:
    """avg@k with intervals, by kind of problem, shown beside the scores after each stage."""
    scores = known_scores(ledger, name=name)
    if scores is None:
        scores = _measure(ledger, config, result, name)
    show_scores(ledger)
    await_server()
    return scores


def _measure(
    ledger: Ledger, config: RecipeConfig, result: StageResult, name: str
) -> tuple[Score, ...]:
    with open_resources(ledger, config, checkpoint=result.checkpoint, trains=False) as resources:
        check_resources(resources, when="before")
        scores = evaluate(
            resources,
            name=name,
            checkpoint=result.checkpoint,
            problem_set=held_out_problems(ledger, config),
            num_problems=None,
        )
        check_resources(resources, when="after")
        return scores
