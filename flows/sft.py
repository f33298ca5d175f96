"""The SFT stage: base model, conversations, training, a score before and after."""

from __future__ import annotations

from prefect import flow
from prefect.logging import get_run_logger

from infra.server_outage import await_server
from rstar2.config import RecipeConfig
from rstar2.types import StageResult
from tasks.evaluation import evaluate
from tasks.health import check_resources
from tasks.ledger import BASE, SFT, Ledger
from tasks.problems import held_out_problems
from tasks.resources import open_resources
from tasks.sft import finish_sft, prepare_base, prepare_conversations, show_conversations, train_sft
from tasks.training import load_newest_checkpoint, sync_weights


@flow(name="sft", flow_run_name="sft", validate_parameters=False)
def sft(ledger: Ledger, config: RecipeConfig) -> StageResult:
    """The model after SFT, or the base model where the profile has no SFT; resumes."""
    done = ledger.stage_result(SFT)
    if done is not None:
        return done
    base = prepare_base(ledger, config)
    if config.sft is None:
        return finish_sft(ledger, config, checkpoint=base, scores=())
    with open_resources(ledger, config, checkpoint=base, trains=True) as resources:
        check_resources(resources, when="before")
        problem_set = held_out_problems(ledger, config)
        num_problems = config.evaluation.num_problems_between_stages
        evaluate(
            resources,
            name=BASE,
            checkpoint=base,
            problem_set=problem_set,
            num_problems=num_problems,
        )
        conversations = prepare_conversations(resources)
        show_conversations(ledger)
        step = load_newest_checkpoint(resources, stage=SFT, kind="checkpoint")
        known = ledger.find("checkpoint", stage=SFT, step=step)
        checkpoint = known.parts["checkpoint"] if known else base
        while step < config.sft.num_steps:
            step, loss, checkpoint = train_sft(resources, conversations=conversations, start=step)
            get_run_logger().info(f"sft step {step} of {config.sft.num_steps} | loss {loss:.3f}")
        sync_weights(resources, version=step)
        scores = evaluate(
            resources,
            name=SFT,
            checkpoint=checkpoint,
            problem_set=problem_set,
            num_problems=num_problems,
        )
        result = finish_sft(
            ledger,
            config,
            checkpoint=checkpoint,
            scores=scores,
            losses=resources.losses(),
            healths=check_resources(resources, when="after"),
        )
    await_server()
    return result
