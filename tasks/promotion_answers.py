"""A person's answer to a `hold`, and the wish for one: kept in the ledger, so they survive a restart.

An answer is a manifest. A pause after the running stage is one small object that names the stage; it
makes a hold of its promotion, and is answered like any other. One that names the difficulty filter holds
the stage before it until the bands were seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rstar2.types import GateVerdict, StageResult
from tasks.filter_chunks import is_measured
from tasks.ledger import FILTER, Ledger, LedgerError
from tasks.runs import filter_command

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
    """The run waits for a person after the stage it is in; returns that stage.

    Where it is in the difficulty filter, it waits before a band is applied.
    """
    running = [s for s in ledger.config().stages if ledger.stage_result(s) is None]
    if not running:
        raise LedgerError(
            f"all stages of the run {ledger.run!r} have ended: expected a run with a stage to come; "
            f"`{ledger.gate_command('show')}` lists its decisions"
        )
    stage = FILTER if _is_in_filter(ledger, running[0]) else running[0]
    ledger.store.put_bytes(f"{ledger.run}/{PAUSE_AFTER}", stage.encode())
    return stage


def _is_in_filter(ledger: Ledger, following: str) -> bool:
    """It samples for this stage, and the one before was not answered: that hold can be had once."""
    stages = list(ledger.config().stages)
    before = stages[stages.index(following) - 1]
    return _can_filter(ledger, following) and ledger.find("answer", stage=before) is None


def _can_filter(ledger: Ledger, following: str) -> bool:
    """The stage before it promoted, and no band was applied yet."""
    stages = ledger.config().stages
    before = list(stages)[list(stages).index(following) - 1]
    result = ledger.stage_result(before) if stages[following].filter_problems else None
    is_promoted = result is not None and result.gate.verdict is GateVerdict.PROMOTE
    return is_promoted and ledger.find("filter", stage=FILTER) is None


def _pause_due(ledger: Ledger, stage: str) -> str | None:
    """What was asked for, after this stage, where it is not too late; else None."""
    found = ledger.store.get_with_etag(f"{ledger.run}/{PAUSE_AFTER}")
    stages = list(ledger.config().stages)
    following = stages[stages.index(stage) + 1 :] if stage in stages else []
    if found is None or (following and ledger.steps(following[0])):
        return None
    if found[0].decode() == FILTER and following and _can_filter(ledger, following[0]):
        look = filter_command(ledger.run, ledger.store.uri)
        asked = f"A person asked to see what each band would keep: `{look}`."
        return asked if is_measured(ledger) else None
    return f"A person asked for a pause after {stage}." if found[0].decode() == stage else None


def waits_in_filter(ledger: Ledger) -> bool:
    """Whether the hold that waits for an answer is the one before the filter's band is applied."""
    found = ledger.store.get_with_etag(f"{ledger.run}/{PAUSE_AFTER}")
    is_asked = found is not None and found[0].decode() == FILTER
    is_open = ledger.find("filter", stage=FILTER) is None
    return is_asked and is_open and held_stage(ledger) is not None


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


def answer(
    ledger: Ledger,
    verdict: Literal["approve", "reject"],
    *,
    band: tuple[int, int] | None = None,
) -> StageResult:
    """Stores the answer and returns the stage's result with it. Raises where nothing holds.

    A hold of the difficulty filter may be answered with another band than the run's.
    """
    held = held_stage(ledger)
    if held is None:
        raise LedgerError(
            f"no stage of the run {ledger.run!r} waits for an answer; "
            f"`{ledger.gate_command('show')}` lists its decisions"
        )
    values: dict[str, object] = {"verdict": verdict}
    if band is not None:
        if not waits_in_filter(ledger):
            raise LedgerError(
                f"{held.stage} of the run {ledger.run!r} waits for yes or no: expected a band only "
                "where the difficulty filter waits; leave --set out"
            )
        values["band"] = {"min_correct": band[0], "max_correct": band[1]}
    ledger.commit("answer", stage=held.stage, values=values)
    return answered(ledger, held.stage, held)


def answered(ledger: Ledger, stage: str, result: StageResult) -> StageResult:
    """The result with a person's stored answer in place of a `hold`, and a pause that was asked for."""
    stored = ledger.find("answer", stage=stage)
    if result.gate.verdict is GateVerdict.PROMOTE and (asked := _pause_due(ledger, stage)):
        reason = f"{result.gate.reason} {asked}"
        result = replace(result, gate=replace(result.gate, verdict=GateVerdict.HOLD, reason=reason))
    if result.gate.verdict is not GateVerdict.HOLD or stored is None:
        return result
    approved = stored.values["verdict"] == "approve"
    verdict = GateVerdict.PROMOTE if approved else GateVerdict.ABORT
    word = "approved" if approved else "rejected"
    reason = f"{word} by a person; the gate had said: {result.gate.reason}"
    return replace(result, gate=replace(result.gate, verdict=verdict, reason=reason))
