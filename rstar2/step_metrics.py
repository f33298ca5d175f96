"""One row of the step series: what gates read, what people plot, what the catalogue keeps.

Filled from the sampled groups (`rstar2.statistics`) and from what each phase of the step reports.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetrics:
    """One row of the step series: what gates read and people plot. Rates are in [0, 1]."""

    stage: str
    step: int
    """1-based within the stage."""
    num_problems: int
    """Problems drawn, refill rounds included."""
    num_rollouts: int
    """All rollouts sampled in the step, before RoC and before groups are dropped."""
    num_failed: int
    num_undecided: int
    num_groups_trained: int
    num_groups_without_signal: int
    num_groups_too_small: int
    """Groups with fewer than G decided rollouts."""
    is_thin: bool
    """Fewer groups had signal than the stage asks for."""
    reward: float
    """Mean over decided rollouts."""
    truncation_rate: float
    """Share of all rollouts stopped by the length limit."""
    turn_limit_rate: float
    """Share of all rollouts stopped by the turn limit."""
    solved_rate: float
    """Share of problems drawn that all their rollouts solved."""
    tool_error_rate: float
    """Errors / calls over all rollouts."""
    tool_error_rate_positives: float
    """Errors / calls over correct rollouts."""
    format_penalty_positives: float
    """Mean p_format (report E5) over correct rollouts."""
    first_call_success_rate: float
    """Among correct rollouts with a call: share whose first call ended `ok`."""
    valid_call_rate: float
    """Share of calls that were well formed and named a known tool."""
    num_tool_calls: int
    mean_response_tokens: float
    loss: float
    grad_norm: float
    clip_fraction: float
    behaviour_kl: float
    entropy: float
    num_skipped_updates: int = 0
    """Optimizer updates of the step that were not applied: gradient not finite, or every token
    masked. 0 in series written before this was recorded."""
    collect_seconds: float
    build_seconds: float
    train_seconds: float
    sync_seconds: float
    num_sampled_tokens: int
    evaluation_score: float | None = None
    """avg@k where the stage evaluates during training."""

    @property
    def num_decided(self) -> int:
        """Rollouts with a reward. Without any, `reward` says nothing of the policy."""
        return self.num_rollouts - self.num_failed - self.num_undecided

    @property
    def step_seconds(self) -> float:
        return self.collect_seconds + self.build_seconds + self.train_seconds + self.sync_seconds
