"""One row of the step series, from what each phase of the step reported, and the line that shows it."""

from __future__ import annotations

import time
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from infra.server_outage import is_server_away
from rstar2.protocols import TrainMetrics
from rstar2.step_metrics import StepMetrics
from tasks.batches import BuiltBatch
from tasks.pictures import shown
from tasks.promotion import artifact_key
from tasks.resources import Resources
from tasks.rollouts import Collected

PROGRESS_SECONDS = 5.0
"""An update costs the server 0.1 s of work: not more often than this."""


def step_metrics_of(
    resources: Resources,
    *,
    stage: str,
    step: int,
    collected: Collected,
    built: BuiltBatch,
    trained: TrainMetrics,
    sync_seconds: float,
    evaluation_score: float | None,
) -> StepMetrics:
    """The step's row. Rates are over ALL sampled rollouts, before RoC and before groups dropped."""
    settings = resources.config.stages[stage]
    return StepMetrics(
        stage=stage,
        step=step,
        **built.statistics,
        num_groups_trained=built.num_groups,
        is_thin=built.num_groups < settings.min_groups,
        loss=trained.loss,
        grad_norm=trained.grad_norm,
        clip_fraction=trained.clip_fraction,
        behaviour_kl=trained.behaviour_kl,
        entropy=trained.entropy,
        num_skipped_updates=trained.num_skipped_updates,
        collect_seconds=collected.seconds,
        build_seconds=built.seconds,
        train_seconds=trained.seconds,
        sync_seconds=sync_seconds,
        evaluation_score=evaluation_score,
    )


def step_line(metrics: StepMetrics) -> str:
    """Fixed columns, one line a step."""
    return (
        f"{metrics.stage} step {metrics.step:>3} | reward {metrics.reward:.2f} | "
        f"truncated {metrics.truncation_rate:5.1%} | tool errors {metrics.tool_error_rate:5.1%} | "
        f"tokens {metrics.mean_response_tokens:,.0f} | groups {metrics.num_groups_trained:>2} | "
        f"{metrics.step_seconds:.1f} s"
    )


class Progress:
    """A stage's progress bar on the run's page: created once, updated seldom."""

    __slots__ = ("_artifact_id", "_last", "_max_steps")

    def __init__(self, run: str, stage: str, max_steps: int) -> None:
        self._max_steps = max_steps
        self._last = 0.0
        self._artifact_id: UUID | None = None
        with shown("the progress bar"):
            artifact_id = create_progress_artifact(
                progress=0.0,
                key=f"{artifact_key(run, stage)}-progress",
                description=f"Steps of {stage}, of at most {max_steps}",
            )
            assert isinstance(artifact_id, UUID), "called outside an event loop"
            self._artifact_id = artifact_id

    def show(self, step: int) -> None:
        if self._artifact_id is None or time.monotonic() - self._last < PROGRESS_SECONDS:
            return
        self._last = time.monotonic()
        if is_server_away():
            return  # Prefect would try for a minute, and the step with it
        with shown("the progress"):
            update_progress_artifact(self._artifact_id, progress=100.0 * step / self._max_steps)
