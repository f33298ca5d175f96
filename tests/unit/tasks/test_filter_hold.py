"""A pause asked for in the difficulty filter: it waits once everything is measured, for a band."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from infra.object_store import open_store
from rstar2.profiles import load_config
from rstar2.types import ArtifactRef, GateDecision, GateVerdict, StageResult
from tasks.filter_chunks import filter_in_force
from tasks.ledger import FILTER, Ledger, LedgerError, start_run
from tasks.promotion_answers import answer, answered, held_stage, request_pause, waits_in_filter

CONFIG = load_config("smoke", ["filter.num_rollouts=8"])
TRIED = {"problem_id": "p", "num_correct": 3, "num_decided": 8, "num_rollouts": 8}


def ended(stage: str, verdict: GateVerdict = GateVerdict.PROMOTE) -> StageResult:
    checkpoint = ArtifactRef(kind="checkpoint", uri="c", sha256="ab", num_bytes=1)
    gate = GateDecision(verdict=verdict, reason="because.", evidence={})
    return StageResult(stage=stage, checkpoint=checkpoint, problem_set=None, last_step=2, gate=gate)


def in_filter(folder: Path, *, rl_2: GateVerdict = GateVerdict.PROMOTE) -> Ledger:
    """The run `demo`, RL-2 of which has ended."""
    ledger = Ledger(open_store(str(folder)), "demo")
    start_run(ledger, CONFIG, {})
    for result in (ended("rl-1"), ended("rl-2", rl_2)):
        ledger.commit("stage", stage=result.stage, values=asdict(result))
    return ledger


def commit_chunk(ledger: Ledger, number: int, *, is_last: bool) -> None:
    values = {"tries": [TRIED], "is_last": is_last}
    ledger.commit("chunk", stage=FILTER, step=number, values=values)


def verdict_of(ledger: Ledger, stage: str = "rl-2") -> GateVerdict:
    return answered(ledger, stage, ended(stage)).gate.verdict


def test_it_waits_once_every_problem_is_tried(tmp_path: Path) -> None:
    ledger = in_filter(tmp_path)
    assert request_pause(ledger) == FILTER
    commit_chunk(ledger, 1, is_last=False)
    assert verdict_of(ledger) is GateVerdict.PROMOTE
    commit_chunk(ledger, 2, is_last=True)
    assert verdict_of(ledger) is GateVerdict.HOLD
    assert verdict_of(ledger, "rl-1") is GateVerdict.PROMOTE
    reason = answered(ledger, "rl-2", ended("rl-2")).gate.reason
    assert reason == (
        "because. A person asked to see what each band would keep: `rstar2 filter show demo "
        f"--storage {tmp_path}`."
    )


def test_an_answer_may_carry_another_band(tmp_path: Path) -> None:
    ledger = in_filter(tmp_path)
    request_pause(ledger)
    commit_chunk(ledger, 1, is_last=True)
    assert waits_in_filter(ledger)
    assert filter_in_force(ledger, CONFIG).band == (0, 7)
    assert answer(ledger, "approve", band=(2, 6)).gate.verdict is GateVerdict.PROMOTE
    assert held_stage(ledger) is None
    assert filter_in_force(ledger, CONFIG).band == (2, 6)


def test_a_rejected_band_ends_the_run(tmp_path: Path) -> None:
    ledger = in_filter(tmp_path)
    request_pause(ledger)
    commit_chunk(ledger, 1, is_last=True)
    assert answer(ledger, "reject").gate.verdict is GateVerdict.ABORT


def test_what_was_applied_is_in_force_and_nothing_waits_any_more(tmp_path: Path) -> None:
    ledger = in_filter(tmp_path)
    request_pause(ledger)
    commit_chunk(ledger, 1, is_last=True)
    band = {"min_correct": 1, "max_correct": 5}
    ledger.commit("filter", stage=FILTER, values={"band": band, "verdicts": []})
    assert filter_in_force(ledger, CONFIG).band == (1, 5)
    assert verdict_of(ledger) is GateVerdict.PROMOTE
    assert not waits_in_filter(ledger)
    assert request_pause(ledger) == "rl-3"


def test_a_hold_of_another_kind_takes_no_band(tmp_path: Path) -> None:
    ledger = in_filter(tmp_path, rl_2=GateVerdict.HOLD)
    with pytest.raises(LedgerError, match="rl-2 of the run 'demo' waits for yes or no"):
        answer(ledger, "approve", band=(2, 6))
    assert held_stage(ledger) is not None


def test_a_stage_that_was_answered_is_not_held_again(tmp_path: Path) -> None:
    ledger = in_filter(tmp_path, rl_2=GateVerdict.HOLD)
    answer(ledger, "approve")
    assert request_pause(ledger) == "rl-3"
