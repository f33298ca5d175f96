from __future__ import annotations

from rollout_builders import make_step

from rstar2.gate_config import GateConfig
from rstar2.gate_replay import replay_gate
from rstar2.types import GateVerdict

SERIES = [make_step(n + 1, truncation_rate=rate) for n, rate in enumerate([0.3, 0.09, 0.09, 0.05])]


def gate(**fields: object) -> GateConfig:
    defaults = {"window": 2, "min_steps": 2, "max_steps": 9, "rules": ["truncation_settled"]}
    return GateConfig.model_validate(defaults | fields)


def test_a_replay_names_the_first_step_that_ends_the_stage() -> None:
    seen = replay_gate(gate(), SERIES, stage="rl-1")
    assert (seen.end_step, seen.decision.verdict) == (3, GateVerdict.PROMOTE)
    assert seen.decision.reason.startswith("rl-1 step 3: truncation 9.0 % over 2 steps")


def test_a_lower_threshold_ends_later() -> None:
    seen = replay_gate(gate(threshold=0.08, max_half_difference=0.05), SERIES, stage="rl-1")
    assert (seen.end_step, seen.decision.verdict) == (4, GateVerdict.PROMOTE)


def test_a_gate_that_never_ends_says_so_with_its_last_reason() -> None:
    seen = replay_gate(gate(threshold=0.01), SERIES, stage="rl-1")
    assert (seen.end_step, seen.num_steps) == (None, 4)
    assert seen.decision.verdict is GateVerdict.CONTINUE
    assert "above 1.0 %" in seen.decision.reason


def test_idle_steps_hold_in_a_replay_as_in_a_run() -> None:
    idle = [make_step(n + 1, num_groups_trained=0) for n in range(3)]
    seen = replay_gate(gate(rules=["mostly_solved"]), idle, stage="rl-1", max_thin_steps=2)
    assert (seen.end_step, seen.decision.verdict) == (2, GateVerdict.HOLD)
