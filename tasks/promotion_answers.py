"""A person's answer to a `hold`, and the wish for one: kept in the ledger, so they survive a restart.

An answer is a manifest. A pause after the running stage is one small object that names the stage; it
makes a hold of its promotion, and is answered like any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rstar2.types import GateVerdict, StageResult
from tasks.ledger import Ledger, LedgerError

PAUSE_AFTER = "pause-after"
"""Object with the name of the stage after which the run shall wait for a person."""
SUSPENDED = "suspended-flow-run"
"""Object with the id of Prefect's flow run that waits for an answer."""


def remember_suspended(ledger: Ledger, flow_run_id: str) -> None:
    """Notes which flow run waits for the answer, so that a command can start it again."""
    ledger.store.put_bytes(f"{ledger.run}/{SUSPENDED}", flow_run_id.encode())


def suspended_flow_run(ledger: Ledger) -> str | None:
    """Id of the flow run that suspended last, None where none ever did."""
    found = ledger.store.get_with_etag(f"{ledger.run}/{SUSPENDED}")
    return found[0].decode() if found else None


def request_pause(ledger: Ledger) -> str:
    """The run waits for a person after the stage it is in; returns that stage."""
    running = [s for s in ledger.config().stages if ledger.stage_result(s) is None]
    if not running:
        raise LedgerError(
            f"all stages of the run {ledger.run!r} have ended: expected a run with a stage to come; "
            f"`{ledger.gate_command('show')}` lists its decisions"
        )
    ledger.store.put_bytes(f"{ledger.run}/{PAUSE_AFTER}", running[0].encode())
    return running[0]


def _is_pause_due(ledger: Ledger, stage: str) -> bool:
    """Asked for after this stage, and not too late: the next one has no step yet."""
    found = ledger.store.get_with_etag(f"{ledger.run}/{PAUSE_AFTER}")
    stages = list(ledger.config().stages)
    following = stages[stages.index(stage) + 1 :] if stage in stages else []
    is_too_late = bool(following and ledger.steps(following[0]))
    return found is not None and found[0].decode() == stage and not is_too_late


def held_stage(ledger: Ledger) -> StageResult | None:
    """The stage whose gate holds and has no answer yet."""
    for stage in ledger.config().stages:
        result = ledger.stage_result(stage)
        if result and answered(ledger, stage, result).gate.verdict is GateVerdict.HOLD:
            return result
    return None


def newest_answer(ledger: Ledger) -> Literal["approve", "reject"] | None:
    """What a person answered last, None where a hold has no answer yet or there was none."""
    given = [m for stage in ledger.config().stages if (m := ledger.find("answer", stage=stage))]
    if not given or held_stage(ledger) is not None:
        return None
    return "approve" if given[-1].values["verdict"] == "approve" else "reject"


def answer(ledger: Ledger, verdict: Literal["approve", "reject"]) -> StageResult:
    """Stores the answer and returns the stage's result with it. Raises where nothing holds."""
    held = held_stage(ledger)
    if held is None:
        raise LedgerError(
            f"no stage of the run {ledger.run!r} waits for an answer; "
            f"`{ledger.gate_command('show')}` lists its decisions"
        )
    ledger.commit("answer", stage=held.stage, values={"verdict": verdict})
    return answered(ledger, held.stage, held)


def answered(ledger: Ledger, stage: str, result: StageResult) -> StageResult:
    """The result with a person's stored answer in place of a `hold`, and a pause that was asked for."""
    stored = ledger.find("answer", stage=stage)
    if result.gate.verdict is GateVerdict.PROMOTE and _is_pause_due(ledger, stage):
        reason = f"{result.gate.reason} A person asked for a pause after {stage}."
        result = replace(result, gate=replace(result.gate, verdict=GateVerdict.HOLD, reason=reason))
    if result.gate.verdict is not GateVerdict.HOLD or stored is None:
        return result
    approved = stored.values["verdict"] == "approve"
    verdict = GateVerdict.PROMOTE if approved else GateVerdict.ABORT
    word = "approved" if approved else "rejected"
    reason = f"{word} by a person; the gate had said: {result.gate.reason}"
    return replace(result, gate=replace(result.gate, verdict=verdict, reason=reason))
