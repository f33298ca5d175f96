"""`rstar2 gate`: the promotion decisions of a run, and a person's answer to a `hold`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from flows.commands.options import Run, Storage

if TYPE_CHECKING:
    from rstar2.config import RecipeConfig
    from rstar2.gate_replay import Replay
    from rstar2.types import StageResult
    from tasks.ledger import Ledger

app = App(name="gate", help="The promotion decisions of a run. Example: rstar2 gate show demo")


@app.command
def show(run: Run, /, *, storage: Storage = "runs") -> int:
    """Print every stage's decision with the numbers it was made from.

    Example: rstar2 gate show demo
    """
    from rstar2.sparkline import sparklines
    from tasks.promotion_answers import answered

    ledger = _ledger(storage, run)
    for stage in ledger.config().stages:
        series, result = ledger.series(stage), ledger.stage_result(stage)
        if result is None:
            print(f"{stage}: no decision yet ({len(series)} steps)")
        else:
            gate = answered(ledger, stage, result).gate
            print(f"{stage}: {gate.verdict} at step {result.last_step}: {gate.reason}")
            if result.losses.sentence:
                print(f"  {result.losses.sentence}")
        if series:
            print("\n".join(f"  {line}" for line in sparklines(series)))
        if result is not None:
            for name, value in sorted(gate.evidence.items()):
                print(f"  {name} = {value}")
    return 0


@app.command
def replay(
    run: Run,
    /,
    *,
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
    storage: Storage = "runs",
) -> int:
    """Say what another rule would have decided, at which step, over a run's logged steps.

    Example: rstar2 gate replay demo --set gates.rl-1.threshold=0.08

    Parameters
    ----------
    set
        Overrides one setting of a gate, as in `gates.rl-1.threshold=0.08`; may be repeated.
    """
    from rstar2.gate_replay import replay_gate

    ledger = _ledger(storage, run)
    config = _other_rules(ledger.config(), set or [])
    for stage, gate in config.gates.items():
        series = ledger.series(stage)
        if not series:
            print(f"{stage}: no step was logged")
            continue
        thin = config.stages[stage].max_thin_steps
        seen = replay_gate(gate, series, stage=stage, max_thin_steps=thin)
        print(_comparison(seen, ledger.stage_result(stage)))
    return 0


def _other_rules(config: RecipeConfig, overrides: Sequence[str]) -> RecipeConfig:
    """The run's own configuration under other gates; what changes anything else is refused."""
    from rstar2.config import ConfigError
    from rstar2.profiles import override_config

    for override in overrides:
        key = override.partition("=")[0].strip()
        if not key.startswith("gates.") and not key.endswith(".max_thin_steps"):
            raise ConfigError(
                f"--set {override!r}: a replay changes gates only; expected gates.STAGE.FIELD=value "
                f"with a stage of {', '.join(config.gates)}"
            )
    return override_config(config, overrides)


def _comparison(seen: Replay, logged: StageResult | None) -> str:
    then = "has no decision yet"
    if logged is not None:
        then = f"ended with {logged.gate.verdict} at step {logged.last_step}"
    if seen.end_step is None:
        now = f"would go on after all {seen.num_steps} logged steps"
    else:
        now = f"would end with {seen.decision.verdict} at step {seen.end_step}"
    return f"{seen.stage}: {then}; under these rules it {now}\n  {seen.decision.reason}"


@app.command
def approve(
    run: Run,
    /,
    *,
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
    storage: Storage = "runs",
) -> int:
    """Answer a hold with yes: the next start goes on to the next stage.

    Example: rstar2 gate approve demo

    Parameters
    ----------
    set
        Where the difficulty filter waits: another band, as in `filter.max_correct=6`.
    """
    from tasks.filter_chunks import with_band

    ledger = _ledger(storage, run)
    band = with_band(ledger.config(), set).filter.band if set else None
    return _answer(ledger, "approve", band=band)


@app.command
def reject(run: Run, /, *, storage: Storage = "runs") -> int:
    """Answer a hold with no: the run ends there.

    Example: rstar2 gate reject demo
    """
    return _answer(_ledger(storage, run), "reject")


@app.command
def pause(run: Run, /, *, storage: Storage = "runs") -> int:
    """Have a run wait for a person after the stage it is in, as if its gate held.

    In the difficulty filter it waits when all problems are tried, before a band is applied.

    Example: rstar2 gate pause demo
    """
    from tasks.ledger import FILTER
    from tasks.promotion_answers import request_pause

    ledger = _ledger(storage, run)
    stage = request_pause(ledger)
    where = "before its difficulty filter applies a band" if stage == FILTER else f"after {stage}"
    print(
        f"{run} will wait {where}; answer it then: {ledger.gate_command('approve')}, or "
        f"{ledger.gate_command('reject')}"
    )
    return 0


def _answer(
    ledger: Ledger, verdict: Literal["approve", "reject"], *, band: tuple[int, int] | None = None
) -> int:
    from tasks.promotion_answers import answer, suspended_flow_run

    result = answer(ledger, verdict, band=band)
    print(f"{result.stage}: {result.gate.verdict}: {result.gate.reason}")
    flow_run_id = suspended_flow_run(ledger)
    print(_what_follows(ledger, flow_run_id, verdict) if flow_run_id else _then(ledger, verdict))
    return 0


def _what_follows(ledger: Ledger, flow_run_id: str, verdict: Literal["approve", "reject"]) -> str:
    """Starts the suspended flow run again. One that is only about to suspend finds the answer."""
    from infra.ownership import lives, read_owner
    from infra.prefect_api import resume_flow_run
    from infra.services import current_api_url
    from infra.settings import load_settings

    api_url = current_api_url(load_settings())
    state = resume_flow_run(api_url, flow_run_id, run_input={"verdict": verdict})
    owner = read_owner(ledger.store, ledger.run) if state == "RUNNING" else None
    if state in ("SCHEDULED", "PENDING") or (owner and lives(ledger.store, ledger.run, owner)):
        does = "goes on" if verdict == "approve" else "ends"
        return f"the suspended flow run {does} by itself"
    if state == "PAUSED":
        refused = "the server did not start the suspended flow run: resume it on its page, or"
        return f"{refused}\n{_then(ledger, verdict)}"
    return _then(ledger, verdict)


def _then(ledger: Ledger, verdict: Literal["approve", "reject"]) -> str:
    if verdict == "reject":
        return f"the run is over; how it went: {ledger.gate_command('show')}"
    return f"then: {ledger.command()}"


def _ledger(storage: str, run: str) -> Ledger:
    """The ledger of a run that exists; raises `LedgerError` naming those that do."""
    from infra.object_store import open_store
    from tasks.ledger import Ledger

    ledger = Ledger(open_store(storage), run)
    ledger.config()
    return ledger
