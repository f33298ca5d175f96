"""What another rule would have decided, over the logged steps of a stage. Pure.

Reads a series that ran under one gate and asks another gate at each of its steps. Says nothing of
steps that never ran: a gate that would have gone on longer is shown as still going on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rstar2.gate import decide_gate
from rstar2.gate_config import GateConfig
from rstar2.step_metrics import StepMetrics
from rstar2.types import GateDecision, GateVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    stage: str
    num_steps: int
    """Logged ones."""
    end_step: int | None
    """The first step at which the gate says anything but `continue`; None: at none of them."""
    decision: GateDecision
    """At that step, or at the last logged one."""


def replay_gate(
    config: GateConfig,
    series: Sequence[StepMetrics],
    *,
    stage: str,
    max_thin_steps: int | None = None,
) -> Replay:
    """The gate's first decision that ends the stage, asked after each step as in a run."""
    decision = decide_gate(config, [], stage=stage, max_thin_steps=max_thin_steps)
    for num_steps in range(1, len(series) + 1):
        decision = decide_gate(
            config, series[:num_steps], stage=stage, max_thin_steps=max_thin_steps
        )
        if decision.verdict is not GateVerdict.CONTINUE:
            return Replay(stage=stage, num_steps=len(series), end_step=num_steps, decision=decision)
    return Replay(stage=stage, num_steps=len(series), end_step=None, decision=decision)
