"""The problem sets of a run, read before anything is trained on them: for use by hand.

In the recipe each stage prepares its own set when it is reached; what was read here is found then.
"""

from __future__ import annotations

from prefect import flow

from rstar2.config import RecipeConfig
from tasks.ledger import Ledger
from tasks.problems import held_out_problems, prepare_problems, show_problem_sets


@flow(name="problem-sets", flow_run_name="problem sets", validate_parameters=False)
def ingest(ledger: Ledger, config: RecipeConfig) -> str:
    """Every set that does not wait for the difficulty filter; returns their counts as a sentence."""
    for stage, settings in config.stages.items():
        if not settings.filter_problems:
            prepare_problems(ledger, config, stage=stage)
    held_out_problems(ledger, config)
    return show_problem_sets(ledger)
