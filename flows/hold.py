"""A `hold` in a deployment: the flow run suspends, and a person answers it in a form or by command.

Suspending ends the process of the run and frees all it held; an answer starts it again, and it finds
the finished stages in the ledger. Only the top flow of a deployment can suspend: elsewhere a hold
ends the run, and the same command goes on after the answer.
"""

from __future__ import annotations

from typing import Literal

from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.runtime import deployment, flow_run
from pydantic import Field

from rstar2.types import StageResult
from tasks.ledger import Ledger
from tasks.promotion_answers import remember_suspended

SECONDS_PER_DAY = 86_400


class HoldAnswer(RunInput):
    """The form of a held run."""

    verdict: Literal["approve", "reject"] = Field(
        description="approve: the next stage begins. reject: the run ends here."
    )


def can_suspend() -> bool:
    """Whether this flow run can be started again by the server: it belongs to a deployment."""
    return deployment.id is not None


def ask_person(ledger: Ledger, held: StageResult, *, days: float) -> Literal["approve", "reject"]:
    """Suspends the flow run until the hold is answered, for `days` at most; returns the answer.

    Returns only in the process that the server starts after the answer.
    """
    remember_suspended(ledger, str(flow_run.id))
    form = HoldAnswer.with_initial_data(description=_description(ledger.run, held))
    answered = suspend_flow_run(
        wait_for_input=form, timeout=int(days * SECONDS_PER_DAY), key=f"hold-{held.stage}"
    )
    return answered.verdict


def _description(run: str, held: StageResult) -> str:
    seen = "\n".join(f"- {name}: {value}" for name, value in sorted(held.gate.evidence.items()))
    return (
        f"**{held.stage} of the run {run} waits for a person**\n\n{held.gate.reason}\n\n{seen}\n\n"
        f"The same answer by command: `rstar2 gate approve {run}` or `rstar2 gate reject {run}`"
    )
