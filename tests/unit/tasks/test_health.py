"""What a stage lost, and the health of its resources, kept with its result and shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.health import ResourceError, ResourceHealth, not_ready, require_ready
from infra.object_store import open_store
from rstar2.types import ArtifactRef, GateDecision, GateVerdict, Losses, StageResult
from tasks.health_table import health_table
from tasks.ledger import Ledger

SANDBOX = ResourceHealth(name="sandbox", is_ready=True, capacity=2, seen="rung B")
GONE = not_ready("trainer", "it is gone", "start it")
CHECKPOINT = ArtifactRef(kind="checkpoint", uri="c", sha256="ab", num_bytes=3)


def test_what_is_not_ready_is_named_with_what_was_seen_and_the_remedy() -> None:
    require_ready([SANDBOX])
    with pytest.raises(ResourceError) as raised:
        require_ready([SANDBOX, GONE])
    assert str(raised.value) == "trainer: it is gone; start it"


def test_losses_in_words() -> None:
    lost = Losses(num_sandbox_restarts=1, num_calls_redone=3).plus(Losses(num_rollouts_redone=2))
    assert lost.sentence == "sandbox restarts: 1, calls redone: 3, rollouts redone: 2, failed: 0"
    assert lost.since(lost).sentence == ""


def test_a_stage_keeps_its_losses_over_processes_and_its_health_at_the_end(tmp_path: Path) -> None:
    ledger = Ledger(open_store(str(tmp_path)), "demo")
    for step, num_redone in ((1, 4), (2, 0), (3, 1)):
        losses = {"num_sandbox_restarts": 1, "num_calls_redone": num_redone}
        ledger.commit("step", stage="rl-1", step=step, values={"losses": losses})
    ledger.commit("step", stage="rl-1", step=4, values={})  # written before they were recorded
    losses = ledger.step_losses("rl-1")
    assert losses == Losses(num_sandbox_restarts=3, num_calls_redone=5)

    gate = GateDecision(verdict=GateVerdict.PROMOTE, reason="because.", evidence={})
    result = StageResult(
        stage="rl-1", checkpoint=CHECKPOINT, problem_set=None, last_step=4, gate=gate, losses=losses
    )
    ledger.commit_result(result, [SANDBOX, GONE])
    again = Ledger(open_store(str(tmp_path)), "demo")
    assert again.stage_result("rl-1") == result
    assert again.healths("rl-1") == (SANDBOX, GONE)


def test_the_table_shows_losses_and_health() -> None:
    assert health_table(Losses(), []) == ""
    lines = health_table(Losses(num_calls_redone=3), [SANDBOX, GONE]).splitlines()
    assert lines[2] == "sandbox restarts: 0, calls redone: 3, rollouts redone: 0, failed: 0"
    assert lines[-2:] == ["| sandbox | yes | 2 | rung B |", "| trainer | no | 0 | it is gone |"]
    assert "Nothing was lost." in health_table(Losses(), [SANDBOX])
