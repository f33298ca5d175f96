"""`rstar2 gate`: the promotion decisions of a run, and a person's answer to a `hold`."""

from __future__ import annotations

from typing import Literal

from cyclopts import App

app = App(name="gate", help="The promotion decisions of a run. Example: rstar2 gate show demo")


@app.command
def show(run: str, /, *, storage: str = "runs") -> int:
    """Print every stage's decision with the numbers it was made from.

    Example: rstar2 gate show demo
    """
    from infra.object_store import open_store
    from tasks.ledger import Ledger
    from tasks.promotion_answers import answered

    ledger = Ledger(open_store(storage), run)
    for stage in ledger.config().stages:
        result = ledger.stage_result(stage)
        if result is None:
            print(f"{stage}: no decision yet ({len(ledger.steps(stage))} steps)")
            continue
        gate = answered(ledger, stage, result).gate
        print(f"{stage}: {gate.verdict} at step {result.last_step}: {gate.reason}")
        for name, value in sorted(gate.evidence.items()):
            print(f"  {name} = {value}")
    return 0


@app.command
def approve(run: str, /, *, storage: str = "runs") -> int:
    """Answer a hold with yes: the next start goes on to the next stage.

    Example: rstar2 gate approve demo
    """
    return _answer(storage, run, "approve")


@app.command
def reject(run: str, /, *, storage: str = "runs") -> int:
    """Answer a hold with no: the run ends there.

    Example: rstar2 gate reject demo
    """
    return _answer(storage, run, "reject")


def _answer(storage: str, run: str, verdict: Literal["approve", "reject"]) -> int:
    from infra.object_store import open_store
    from tasks.ledger import Ledger, LedgerError
    from tasks.promotion_answers import answer

    try:
        ledger = Ledger(open_store(storage), run)
        result = answer(ledger, verdict)
    except LedgerError as error:
        print(f"rstar2 gate {verdict}: {error}")
        return 2
    print(f"{result.stage}: {result.gate.verdict}: {result.gate.reason}")
    print(f"then: {ledger.command()}")
    return 0
