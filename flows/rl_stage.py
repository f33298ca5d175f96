"""One RL stage: steps of collect, build, train, sync and gate, until the gate ends it.

The flow only orders. A step is committed by its manifest, written last; a stage that was killed
starts again after its last committed step, and one that finished returns its stored result.
"""

from __future__ import annotations

from dataclasses import asdict

from prefect import flow
from prefect.logging import get_run_logger

from infra.server_outage import await_server
from rstar2.config import RecipeConfig
from rstar2.types import ArtifactRef, GateDecision, GateVerdict, StageResult
from tasks.batches import build_batch
from tasks.evaluation import evaluate, evaluate_step
from tasks.health import check_resources
from tasks.ledger import Ledger, gate_decision_from
from tasks.metrics import Progress, step_line, step_metrics_of
from tasks.problems import held_out_problems
from tasks.promotion import decide, with_kept_step
from tasks.resources import Resources, open_resources
from tasks.rollouts import collect_groups
from tasks.training import (
    checkpoint_of,
    drop_old_checkpoints,
    enter_stage,
    return_to_best,
    save_checkpoint,
    sync_weights,
    train_step,
)


@flow(name="rl-stage", flow_run_name="{stage}", validate_parameters=False)
def rl_stage(
    ledger: Ledger,
    config: RecipeConfig,
    stage: str,
    *,
    start: StageResult,
    problem_set: ArtifactRef,
) -> StageResult:
    """Trains from the checkpoint of `start` on `problem_set`; resumes where it stopped."""
    done = ledger.stage_result(stage)
    if done is not None:
        return done
    with open_resources(ledger, config, checkpoint=start.checkpoint, trains=True) as resources:
        enter_stage(resources, stage=stage, start=start)
        check_resources(resources, when="before")
        decision = train_until_gate(resources, stage, problem_set)
        result = finish_stage(resources, stage, problem_set, decision)
    await_server()
    return result


def train_until_gate(resources: Resources, stage: str, problem_set: ArtifactRef) -> GateDecision:
    """Steps on from the last committed one until the gate says anything but `continue`."""
    committed = resources.ledger.steps(stage)
    decision = GateDecision(verdict=GateVerdict.CONTINUE, reason="", evidence={})
    if committed:
        decision = gate_decision_from(committed[-1].values["gate"])
    step = committed[-1].step or 0 if committed else 0
    progress = Progress(resources.ledger.run, stage, resources.config.gates[stage].max_steps)
    while decision.verdict == GateVerdict.CONTINUE:
        step += 1
        decision = run_step(resources, stage, step, problem_set)
        progress.show(step)
    return decision


def run_step(resources: Resources, stage: str, step: int, problem_set: ArtifactRef) -> GateDecision:
    """One step from draw to commit."""
    settings = resources.config.stages[stage]
    before = resources.losses()
    collected = collect_groups(resources, stage=stage, step=step, problem_set=problem_set)
    built = build_batch(
        resources, stage=stage, step=step, rollouts=collected.rollouts, policy_version=step - 1
    )
    parts = {"rollouts": collected.rollouts, "batch": built.batch}
    trained = train_step(resources, stage=stage, batch=built.batch)
    sync_seconds = sync_weights(resources, version=step)
    if step % settings.checkpoint_every_steps == 0:
        parts["checkpoint"] = save_checkpoint(resources, stage=stage, step=step)
    metrics = step_metrics_of(
        resources,
        stage=stage,
        step=step,
        collected=collected,
        built=built,
        trained=trained,
        sync_seconds=sync_seconds,
        evaluation_score=evaluate_step(
            resources, stage=stage, step=step, checkpoint=parts.get("checkpoint")
        ),
    )
    decision = decide(resources, stage=stage, metrics=metrics)
    lost = resources.losses().since(before)
    resources.ledger.commit(
        "step",
        stage=stage,
        step=step,
        parts=parts,
        values={
            "metrics": asdict(metrics),
            "kept_rollout_ids": built.kept_rollout_ids,
            "dropped": built.dropped,
            "gate": asdict(decision),
            "losses": asdict(lost),
        },
    )
    drop_old_checkpoints(resources, stage=stage, last_step=step)
    resources.ledger.publish()
    get_run_logger().info(step_line(metrics))
    if lost.sentence:
        get_run_logger().warning(f"{stage} step {step}: {lost.sentence}")
    return decision


def finish_stage(
    resources: Resources, stage: str, problem_set: ArtifactRef, decision: GateDecision
) -> StageResult:
    """Stores the stage's last checkpoint, scores it, and commits the result.

    Of a stage that its gate aborts, the checkpoint of its best steps is what remains.
    """
    before = resources.losses()
    last = resources.ledger.steps(stage)[-1]
    if decision.verdict is GateVerdict.ABORT and (best := return_to_best(resources, stage=stage)):
        best_step, checkpoint = best
        decision = with_kept_step(decision, best_step)
    else:
        checkpoint = checkpoint_of(resources, last)
    scores = evaluate(
        resources,
        name=stage,
        checkpoint=checkpoint,
        problem_set=held_out_problems(resources.ledger, resources.config),
        num_problems=resources.config.evaluation.num_problems_between_stages,
    )
    result = StageResult(
        stage=stage,
        checkpoint=checkpoint,
        problem_set=problem_set,
        last_step=last.step or 0,
        gate=decision,
        scores=scores,
        losses=resources.ledger.step_losses(stage).plus(resources.losses().since(before)),
    )
    resources.ledger.commit_result(result, check_resources(resources, when="after"))
    resources.ledger.publish(force=True)
    return result
