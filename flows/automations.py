"""What the Prefect server does by itself: runs whose process is gone, and notices to people.

Writes automations and notification blocks through Prefect's client, by name, so that repeating it
changes nothing. A run is called crashed only after `SILENT_SECONDS` without a heartbeat: a shorter
limit ends healthy runs. A run's truth is its ledger: one called crashed goes on under its name.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock, SendgridEmail
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from pydantic import SecretStr

HEARTBEAT = "prefect.flow-run.heartbeat"
SILENT_SECONDS = 600
"""Over three times the 180 s between heartbeats that Prefect takes where nobody sets it."""
ENDED = (
    *("Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "TimedOut"),
    *("Suspended", "Paused", "Scheduled", "AwaitingRetry", "Resuming"),
    *("Hold", "Abort"),  # our names of Failed
)
"""States in which no heartbeat is due."""
ZOMBIES = "rstar2: runs without a heartbeat have crashed"
NOTICES = "rstar2: tell people by "
EVENTS = ("rstar2.gate.promote", "rstar2.gate.hold", "rstar2.gate.abort")
FAILURES = ("prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut")
OF_THE_RECIPE = {"prefect.resource.role": "flow", "prefect.resource.name": "rstar2"}
"""The top flow only: a stage that fails makes its recipe fail, and one notice is enough."""


def zombie_automation(*, silent_seconds: int = SILENT_SECONDS) -> AutomationCore:
    """Marks a run crashed that neither beat nor ended in time."""
    return AutomationCore(
        name=ZOMBIES,
        description="The process of the run is gone. Start the run again: it goes on.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            after={HEARTBEAT},
            expect={HEARTBEAT, *(f"prefect.flow-run.{name}" for name in ENDED)},
            threshold=1,
            within=timedelta(seconds=silent_seconds),
        ),
        actions=[
            ChangeFlowRunState(
                name="Crashed",
                force=False,
                state=StateType.CRASHED,
                message=f"no heartbeat for {silent_seconds} s: its process is gone. Start the run "
                "again, or press Retry: it goes on where it was",
            )
        ],
    )


def ensure_automations() -> None:
    """The server has the automations of this version; one that is right already is left alone."""
    with get_client(sync_client=True) as client:
        _ensure(client, zombie_automation())


def notify_webhook(url: str, *, name: str = "webhook") -> None:
    """Posts `{"subject", "text"}` to `url` at every promotion, hold and failure."""
    block = CustomWebhookNotificationBlock(
        name=name,
        url=url,
        headers=None,
        cookies=None,
        json_data={"subject": "{{subject}}", "text": "{{body}}"},
    )
    _notify(name, _saved(block, name))


def notify_email(address: str, *, sender: str, api_key: str, name: str = "email") -> None:
    """Mails every promotion, hold and failure through SendGrid."""
    block = SendgridEmail(api_key=SecretStr(api_key), sender_email=sender, to_emails=[address])
    _notify(name, _saved(block, name))


def _saved(block: CustomWebhookNotificationBlock | SendgridEmail, name: str) -> UUID:
    saved = block.save(f"rstar2-{name}", overwrite=True)
    assert isinstance(saved, UUID), "called outside an event loop"
    return saved


def _notify(name: str, block_id: UUID) -> None:
    gates = _notice(
        f"{NOTICES}{name} of gates",
        EventTrigger(posture=Posture.Reactive, expect=set(EVENTS), threshold=1),
        block_id,
        text="{{ event.resource.name }}: {{ event.payload.verdict }}: {{ event.payload.reason }}",
    )
    failures = _notice(
        f"{NOTICES}{name} of failures",
        EventTrigger(
            posture=Posture.Reactive,
            expect=set(FAILURES),
            match_related=ResourceSpecification.model_validate(OF_THE_RECIPE),
            threshold=1,
        ),
        block_id,
        text="{{ event.resource.name }}: {{ event.payload.validated_state.name }}: "
        "{{ event.payload.validated_state.message }}",
    )
    with get_client(sync_client=True) as client:
        for automation in (gates, failures):
            _ensure(client, automation)


def _notice(name: str, trigger: EventTrigger, block_id: UUID, *, text: str) -> AutomationCore:
    subject = "rstar2: {{ event.resource.name }}"
    action = SendNotification(block_document_id=block_id, subject=subject, body=text)
    return AutomationCore(name=name, trigger=trigger, actions=[action])


def _ensure(client: SyncPrefectClient, automation: AutomationCore) -> None:
    known = client.read_automations_by_name(automation.name)
    if not known:
        client.create_automation(automation)
        return
    fields = set(AutomationCore.model_fields)
    if known[0].model_dump(include=fields) != automation.model_dump(include=fields):
        client.update_automation(known[0].id, automation)
