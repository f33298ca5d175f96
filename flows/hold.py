"""A `hold` in a deployment: the flow run suspends, and a person answers it in a form or by command.

Suspending ends the process of the run and frees all it held; an answer starts it again, and it finds
the finished stages in the ledger. Only the top flow of a deployment can suspend: elsewhere a hold
ends the run, and the same command goes on after the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from prefect.exceptions import NotPausedError, Pause
from prefect.flow_runs import resume_flow_run, suspend_flow_run
from prefect.input import RunInput
from prefect.runtime import deployment, flow_run
from pydantic import Field

from infra.object_store import open_store
from rstar2.types import GateVerdict, StageResult
from tasks.ledger import Ledger, open_ledger
from tasks.promotion import shown_evidence
from tasks.promotion_answers import answer, newest_answer, remember_suspended

SECONDS_PER_DAY = 86_400


class HoldAnswer(RunInput):
    """The form of a held run."""

    verdict: Literal["approve", "reject"] = Field(
        description="approve: the next stage begins. reject: the run ends here."
    )


def past_holds(ledger: Ledger, advance: Callable[[], StageResult], *, days: float) -> StageResult:
    """What `advance` comes to; each hold on the way is answered by a person where one can be asked.

    `advance` is called again after an answer and finds in the ledger what it did before.
    """
    result = advance()
    while result.gate.verdict is GateVerdict.HOLD and _can_suspend():
        answer(ledger, _ask_person(ledger, result, days=days))
        result = advance()
    return result


@contextmanager
def open_ledger_across_holds(storage: str, run: str) -> Iterator[Ledger]:
    """`open_ledger` for a flow that may suspend inside.

    An answer by command may come while the flow run is still on its way to suspend: too early to
    start it again, too late for it to see. Suspended and no owner any more, it looks once more and
    starts itself again.
    """
    try:
        with open_ledger(storage, run) as ledger:
            yield ledger
    except Pause:
        verdict = newest_answer(Ledger(open_store(storage), run))
        if verdict is not None:
            with suppress(NotPausedError):  # the command was in time after all
                resume_flow_run(flow_run.id, run_input={"verdict": verdict})
        raise


def _can_suspend() -> bool:
    """Whether this flow run can be started again by the server: it belongs to a deployment."""
    return deployment.id is not None


def _ask_person(ledger: Ledger, held: StageResult, *, days: float) -> Literal["approve", "reject"]:
    """Suspends the flow run until the hold is answered, for `days` at most; returns the answer.

    Returns only in the process that the server starts after the answer.
    """
    remember_suspended(ledger, str(flow_run.id))
    form = HoldAnswer.with_initial_data(description=_description(ledger, held))
    answered = suspend_flow_run(
        wait_for_input=form, timeout=int(days * SECONDS_PER_DAY), key=f"hold-{held.stage}"
    )
    return answered.verdict


def _description(ledger: Ledger, held: StageResult) -> str:
    seen = "\n".join(f"- {name}: {value}" for name, value in shown_evidence(held.gate))
    return (
        f"**{held.stage} of the run {ledger.run} waits for a person**\n\n{held.gate.reason}\n\n"
        f"{seen}\n\nThe same answer by command: `{ledger.gate_command('approve')}` or "
        f"`{ledger.gate_command('reject')}`"
    )
