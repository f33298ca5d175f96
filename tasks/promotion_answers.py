"""A person's answer to a `hold`: a manifest of its own, so that it survives any restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rstar2.types import GateVerdict, StageResult
from tasks.ledger import Ledger, LedgerError


def held_stage(ledger: Ledger) -> StageResult | None:
    """The stage whose gate holds and has no answer yet."""
    for stage in ledger.config().stages:
        result = ledger.stage_result(stage)
        if result and answered(ledger, stage, result).gate.verdict is GateVerdict.HOLD:
            return result
    return None


def answer(ledger: Ledger, verdict: Literal["approve", "reject"]) -> StageResult:
    """Stores the answer and returns the stage's result with it. Raises where nothing holds."""
    held = held_stage(ledger)
    if held is None:
        raise LedgerError(
            f"no stage of the run {ledger.run!r} waits for an answer; `rstar2 gate show "
            f"{ledger.run}` lists its decisions"
        )
    ledger.commit("answer", stage=held.stage, values={"verdict": verdict})
    return answered(ledger, held.stage, held)


def answered(ledger: Ledger, stage: str, result: StageResult) -> StageResult:
    """The result with a person's stored answer in place of a `hold`."""
    stored = ledger.find("answer", stage=stage)
    if result.gate.verdict is not GateVerdict.HOLD or stored is None:
        return result
    approved = stored.values["verdict"] == "approve"
    verdict = GateVerdict.PROMOTE if approved else GateVerdict.ABORT
    word = "approved" if approved else "rejected"
    reason = f"{word} by a person; the gate had said: {result.gate.reason}"
    return replace(result, gate=replace(result.gate, verdict=verdict, reason=reason))
