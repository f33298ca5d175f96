"""The recipe: SFT, RL stages with their gates, the difficulty filter, evaluation.

One run name is one run. The flow only orders; every part looks into the ledger first, so that
starting a run again continues it, and starting a finished one returns its result. Run it with
`rstar2 run laptop`, or as the deployment `rstar2/full-recipe`.
"""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.difficulty_filter import difficulty_filter
from flows.evaluation import evaluation
from flows.hold import open_ledger_across_holds, past_holds
from flows.parameters import NewOrExistingRun, Overrides, Profile
from flows.rl_stage import rl_stage
from flows.sft import sft
from infra.server_outage import await_server
from rstar2.config import RecipeConfig
from rstar2.profiles import load_config
from rstar2.types import GateVerdict, StageResult
from tasks.inputs import check_sources, input_files
from tasks.ledger import Ledger, start_run
from tasks.problems import prepare_problems
from tasks.promotion import pass_gate
from tasks.runs import resume_command, run_name_of


def _flow_run_name() -> str:
    """The run's name; where it is still to be made, what Prefect called the flow run."""
    return str(flow_run.parameters.get("run") or flow_run.name)


@flow(name="rstar2", flow_run_name=_flow_run_name)
def recipe(profile: Profile = "laptop", run: NewOrExistingRun = "", set: Overrides = ()) -> State:
    """Trains a model by the whole recipe, or continues the run of that name.

    `set` overrides single settings, as in `["seed=3", "gates.rl-1.threshold=0.08"]`.
    """
    config = load_config(profile, set)
    check_sources(config)
    name = run or run_name_of(config, str(flow_run.id))
    with open_ledger_across_holds(config.storage, name) as ledger:
        command = resume_command(profile, name, set)
        start_run(ledger, config, input_files(config), command=command)
        ledger.publish(force=True)
        result = past_holds(ledger, lambda: run_stages(ledger, config), days=config.hold_days)
        if result.gate.verdict is not GateVerdict.PROMOTE:
            return Failed(name=str(result.gate.verdict).title(), message=result.gate.reason)
        await_server()
        evaluation(ledger, config, result)
        ledger.publish(force=True)
    return Completed(message=f"run {name} is complete: {result.checkpoint.uri}")


def run_stages(ledger: Ledger, config: RecipeConfig) -> StageResult:
    """SFT and every RL stage in order, until one does not promote."""
    await_server()
    result = sft(ledger, config)
    for stage, settings in config.stages.items():
        if settings.filter_problems:
            await_server()
            result = difficulty_filter(ledger, config, start=result)
            if result.gate.verdict is not GateVerdict.PROMOTE:
                break
        problem_set = prepare_problems(ledger, config, stage=stage)
        await_server()
        result = rl_stage(ledger, config, stage, start=result, problem_set=problem_set)
        result = pass_gate(ledger, stage=stage, result=result)
        get_run_logger().info(f"{result.gate.verdict}: {result.gate.reason}")
        if result.gate.verdict is not GateVerdict.PROMOTE:
            break
    return result
