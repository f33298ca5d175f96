"""The ledger: what is committed is true once, and a run goes on only as it was started."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from data_catalog.queries import query
from infra.object_store import open_store
from infra.ownership import OwnedElsewhere
from rstar2.profiles import load_config
from rstar2.types import ArtifactRef, GateDecision, GateVerdict, StageResult
from tasks.ledger import (
    Ledger,
    LedgerError,
    gate_decision_from,
    num_dropped,
    open_ledger,
    run_names,
    start_run,
)
from tasks.promotion_answers import (
    answer,
    answered,
    held_stage,
    newest_answer,
    request_pause,
)

CHECKPOINT = ArtifactRef(kind="checkpoint", uri="demo/rl-1/c", sha256="ab", num_bytes=3)


def result(verdict: GateVerdict) -> StageResult:
    gate = GateDecision(verdict=verdict, reason="because", evidence={"mean": 0.25, "steps": 8})
    return StageResult(
        stage="rl-1", checkpoint=CHECKPOINT, problem_set=None, last_step=8, gate=gate
    )


def new_ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(open_store(str(tmp_path)), "demo")
    start_run(ledger, load_config("smoke"), {})
    return ledger


def test_a_committed_manifest_is_found_by_the_next_process(tmp_path: Path) -> None:
    new_ledger(tmp_path).commit("stage", stage="rl-1", values=asdict(result(GateVerdict.PROMOTE)))
    assert Ledger(open_store(str(tmp_path)), "demo").stage_result("rl-1") == result(
        GateVerdict.PROMOTE
    )


def test_a_step_s_decision_is_the_same_after_a_restart(tmp_path: Path) -> None:
    decision = result(GateVerdict.PROMOTE).gate
    new_ledger(tmp_path).commit("step", stage="rl-1", step=1, values={"gate": asdict(decision)})
    (step,) = Ledger(open_store(str(tmp_path)), "demo").steps("rl-1")
    restored = gate_decision_from(step.values["gate"])
    assert restored == decision
    assert restored.verdict is GateVerdict.PROMOTE


def test_a_fact_is_committed_only_once(tmp_path: Path) -> None:
    first, second = new_ledger(tmp_path), Ledger(open_store(str(tmp_path)), "demo")
    first.commit("step", stage="rl-1", step=1)
    with pytest.raises(LedgerError, match="another process trains the run 'demo'"):
        second.commit("step", stage="rl-1", step=1)


def test_steps_come_in_order_however_many(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    for step in (2, 10, 1):
        ledger.commit("step", stage="rl-1", step=step)
    assert [manifest.step for manifest in ledger.steps("rl-1")] == [1, 2, 10]


def test_a_run_continues_under_the_same_settings(tmp_path: Path) -> None:
    start_run(new_ledger(tmp_path), load_config("smoke"), {})


def test_other_settings_under_the_same_name_are_refused_with_the_difference(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"seed: 0 -> 3"):
        start_run(new_ledger(tmp_path), load_config("smoke", ["seed=3"]), {})


def test_another_problem_file_under_the_same_name_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(open_store(str(tmp_path)), "demo")
    start_run(ledger, load_config("smoke"), {"p.jsonl": "aaaa"})
    with pytest.raises(LedgerError, match=r"p\.jsonl: 'aaaa' -> 'bbbb'"):
        start_run(ledger, load_config("smoke"), {"p.jsonl": "bbbb"})


def test_a_changed_file_is_noticed_though_its_path_reads_like_a_setting(tmp_path: Path) -> None:
    ledger = Ledger(open_store(str(tmp_path)), "demo")
    start_run(ledger, load_config("smoke"), {"sandbox.address": "aaaa"})
    with pytest.raises(LedgerError, match=r"sandbox\.address: 'aaaa' -> 'bbbb'"):
        start_run(ledger, load_config("smoke"), {"sandbox.address": "bbbb"})


def test_settings_of_another_version_are_named(tmp_path: Path) -> None:
    ledger = Ledger(open_store(str(tmp_path)), "demo")
    settings = load_config("smoke").model_dump(mode="json") | {"colour": "blue"}
    ledger.commit("run", values={"config": json.dumps(settings)})
    with pytest.raises(LedgerError, match=r"(?s)another version of rstar2.*colour.*stays in the"):
        ledger.config()


def test_two_processes_do_not_own_one_run(tmp_path: Path) -> None:
    with open_ledger(str(tmp_path), "demo"):
        with pytest.raises(OwnedElsewhere, match="is being trained by another process"):
            with open_ledger(str(tmp_path), "demo"):
                pass


def test_an_unknown_run_names_those_there_are(tmp_path: Path) -> None:
    new_ledger(tmp_path)
    store = open_store(str(tmp_path))
    assert run_names(store) == ["demo"]
    with pytest.raises(LedgerError, match=r"no run 'dmeo' in .*: expected one of demo"):
        Ledger(store, "dmeo").config()


def test_a_run_of_a_storage_inside_the_storage_is_named_with_the_way_to_it(tmp_path: Path) -> None:
    new_ledger(tmp_path / "benchmark")
    new_ledger(tmp_path)
    store = open_store(str(tmp_path))
    assert run_names(store) == ["benchmark/demo", "demo"]
    with pytest.raises(LedgerError, match=rf"demo \(with --storage {tmp_path}/benchmark\), demo$"):
        Ledger(store, "dmeo").config()


def test_a_deleted_catalogue_comes_back_with_every_run_of_the_storage(tmp_path: Path) -> None:
    for run in ("one", "two"):
        start_run(Ledger(open_store(str(tmp_path)), run), load_config("smoke"), {})
    new_ledger(tmp_path / "benchmark")
    Ledger(open_store(str(tmp_path)), "two").publish(force=True)
    found = query(tmp_path / "catalog.duckdb", "select run from runs order by run")
    assert found.rows == (("one",), ("two",))


def test_an_approved_hold_is_a_promotion_that_says_so(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.commit("stage", stage="rl-1", values=asdict(result(GateVerdict.HOLD)))
    assert held_stage(ledger) == result(GateVerdict.HOLD)
    gate = answer(ledger, "approve").gate
    assert gate.verdict is GateVerdict.PROMOTE
    assert gate.reason == "approved by a person; the gate had said: because"
    assert held_stage(ledger) is None


def test_a_rejected_hold_ends_the_run(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.commit("stage", stage="rl-1", values=asdict(result(GateVerdict.HOLD)))
    assert answer(ledger, "reject").gate.verdict is GateVerdict.ABORT


def test_a_pause_asked_for_makes_a_hold_of_the_promotion(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    assert request_pause(ledger) == "rl-1"
    promoted = result(GateVerdict.PROMOTE)
    ledger.commit("stage", stage="rl-1", values=asdict(promoted))
    paused = answered(ledger, "rl-1", promoted).gate
    assert paused.verdict is GateVerdict.HOLD
    assert paused.reason == "because A person asked for a pause after rl-1."
    assert answer(ledger, "approve").gate.verdict is GateVerdict.PROMOTE
    assert held_stage(ledger) is None
    assert request_pause(ledger) == "rl-2"
    assert answered(ledger, "rl-1", promoted).gate.verdict is GateVerdict.PROMOTE


def test_a_pause_is_too_late_once_the_next_stage_trains(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    request_pause(ledger)
    ledger.commit("step", stage="rl-2", step=1)
    promoted = result(GateVerdict.PROMOTE)
    assert answered(ledger, "rl-1", promoted).gate.verdict is GateVerdict.PROMOTE


def test_a_run_whose_stages_have_ended_is_not_paused(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    for stage in ("rl-1", "rl-2", "rl-3"):
        ledger.commit("stage", stage=stage, values=asdict(result(GateVerdict.PROMOTE)))
    with pytest.raises(LedgerError, match="all stages of the run 'demo' have ended"):
        request_pause(ledger)


def test_only_a_hold_takes_an_answer(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.commit("stage", stage="rl-1", values=asdict(result(GateVerdict.PROMOTE)))
    with pytest.raises(LedgerError, match="no stage of the run 'demo' waits"):
        answer(ledger, "approve")
    promoted = result(GateVerdict.PROMOTE)
    assert answered(ledger, "rl-1", promoted) == promoted


def test_dropped_problems_are_counted_from_the_verdicts(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    assert num_dropped(ledger) is None
    verdicts = [{"decision": "drop"}, {"decision": "keep"}, {"decision": "keep"}]
    ledger.commit("filter", stage="difficulty-filter", values={"verdicts": verdicts})
    assert num_dropped(ledger) == (1, 3)


def test_the_newest_answer_counts_once_nothing_waits_any_more(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    assert newest_answer(ledger) is None
    ledger.commit("stage", stage="rl-1", values=asdict(result(GateVerdict.HOLD)))
    assert newest_answer(ledger) is None
    answer(ledger, "reject")
    assert newest_answer(ledger) == "reject"
