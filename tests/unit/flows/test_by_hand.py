"""What a part of the recipe builds on, found in the ledger or named as missing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from flows.by_hand import result_before, result_of
from infra.object_store import open_store
from rstar2.profiles import load_config
from rstar2.types import ArtifactRef, GateDecision, GateVerdict, StageResult
from tasks.ledger import Ledger, LedgerError, start_run

CHECKPOINT = ArtifactRef(kind="checkpoint", uri="demo/c", sha256="ab", num_bytes=3)


def ledger_with(tmp_path: Path, **verdicts: GateVerdict) -> Ledger:
    """The run `demo` with these stages ended (`rl_1` for `rl-1`)."""
    ledger = Ledger(open_store(str(tmp_path)), "demo")
    start_run(ledger, load_config("smoke"), {})
    for name, verdict in verdicts.items():
        stage = name.replace("_", "-")
        gate = GateDecision(verdict=verdict, reason="because.", evidence={})
        result = StageResult(
            stage=stage, checkpoint=CHECKPOINT, problem_set=None, last_step=1, gate=gate
        )
        ledger.commit("stage", stage=stage, values=asdict(result))
    return ledger


def test_a_stage_starts_from_the_one_before(tmp_path: Path) -> None:
    ledger = ledger_with(tmp_path, sft=GateVerdict.PROMOTE, rl_1=GateVerdict.PROMOTE)
    assert result_before(ledger, "rl-1").stage == "sft"
    assert result_before(ledger, "rl-2").stage == "rl-1"


def test_the_last_stage_that_ended_is_found(tmp_path: Path) -> None:
    ledger = ledger_with(tmp_path, sft=GateVerdict.PROMOTE, rl_1=GateVerdict.PROMOTE)
    assert result_of(ledger, "last").stage == "rl-1"


def test_a_stage_before_that_has_not_ended_is_named(tmp_path: Path) -> None:
    ledger = ledger_with(tmp_path, sft=GateVerdict.PROMOTE)
    with pytest.raises(
        LedgerError, match="rl-1 of the run 'demo' has not ended: expected one of s"
    ):
        result_before(ledger, "rl-2")


def test_a_stage_after_a_hold_waits_for_the_answer(tmp_path: Path) -> None:
    ledger = ledger_with(tmp_path, sft=GateVerdict.PROMOTE, rl_1=GateVerdict.HOLD)
    with pytest.raises(LedgerError, match="answered by `rstar2 gate approve demo --storage"):
        result_before(ledger, "rl-2")
    ledger.commit("answer", stage="rl-1", values={"verdict": "approve"})
    assert result_before(ledger, "rl-2").stage == "rl-1"
