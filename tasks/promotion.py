"""Decides each step whether the stage goes on, and shows the decision with its evidence.

Reads the step series from the ledger; a decision is stored with its step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from rstar2.gate import decide_gate
from rstar2.sparkline import sparklines
from rstar2.step_metrics import StepMetrics
from rstar2.types import GateDecision, StageResult
from tasks.health_table import health_table
from tasks.ledger import Ledger
from tasks.pictures import shown
from tasks.promotion_answers import answered
from tasks.resources import Resources


@task(name="decide gate", cache_policy=NO_CACHE)
def decide(resources: Resources, *, stage: str, metrics: StepMetrics) -> GateDecision:
    """The gate's verdict after this step, from all steps of the stage."""
    series = [*resources.ledger.series(stage), metrics]
    settings = resources.config.stages[stage]
    return decide_gate(
        resources.config.gates[stage], series, stage=stage, max_thin_steps=settings.max_thin_steps
    )


@task(name="gate", task_run_name="gate {stage}", cache_policy=NO_CACHE)
def pass_gate(ledger: Ledger, *, stage: str, result: StageResult) -> StageResult:
    """The stage's result as the gate leaves it: a `hold` that a person approved is a promotion.

    Shown on the run's page and announced once for each verdict, however often the run is started.
    """
    result = answered(ledger, stage, result)
    key = ledger.key(stage, f"announced-{result.gate.verdict}")
    if not ledger.store.exists(key):
        _show(ledger, stage, result)
        _announce(ledger, stage, result.gate)
        ledger.store.put_if_absent(key, b"")
    return result


def with_kept_step(decision: GateDecision, step: int) -> GateDecision:
    """The decision that also says which checkpoint remains."""
    reason = f"{decision.reason} The checkpoint of step {step}, its best, is kept."
    return replace(decision, reason=reason, evidence={**decision.evidence, "kept_step": step})


def _announce(ledger: Ledger, stage: str, decision: GateDecision) -> None:
    """Tells the server how the stage ended: what notices to people are made from."""
    emit_event(
        f"rstar2.gate.{decision.verdict}",
        resource={
            "prefect.resource.id": f"rstar2.run.{ledger.run}.{stage}",
            "prefect.resource.name": f"{ledger.run} {stage}",
        },
        payload={"verdict": str(decision.verdict), "reason": decision.reason},
    )


def _show(ledger: Ledger, stage: str, result: StageResult) -> None:
    """Puts the decision and the step series in front of whoever opens the run."""
    rows = [
        {
            "step": m.step,
            "reward": round(m.reward, 3),
            "truncated": round(m.truncation_rate, 3),
            "turn limit": round(m.turn_limit_rate, 3),
            "solved": round(m.solved_rate, 3),
            "tool errors": round(m.tool_error_rate, 3),
            "tokens": round(m.mean_response_tokens, 1),
        }
        for m in ledger.series(stage)
    ]
    key = artifact_key(ledger.run, stage)
    markdown = _markdown(stage, result.gate, ledger.series(stage))
    markdown += health_table(result.losses, ledger.healths(stage))
    with shown(f"the gate of {stage}"):
        create_table_artifact(table=rows, key=f"{key}-steps", description=f"Steps of {stage}")
        create_markdown_artifact(markdown=markdown, key=f"{key}-gate")


def artifact_key(*parts: str) -> str:
    """Lower case, digits and dashes: what Prefect allows."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")


def _markdown(stage: str, decision: GateDecision, series: Sequence[StepMetrics]) -> str:
    lines = [f"# {stage}: {decision.verdict}", "", decision.reason, "", "```"]
    lines += sparklines(series)
    lines += ["```", "", "| seen | value |", "|-|-|"]
    return "\n".join(lines + [f"| {name} | {value} |" for name, value in shown_evidence(decision)])


def shown_evidence(decision: GateDecision) -> list[tuple[str, str]]:
    """What the gate saw, by name, with four digits."""
    return [
        (name, f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in sorted(decision.evidence.items())
    ]
