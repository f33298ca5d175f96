"""`rstar2 filter`: what the difficulty filter measured, and what each band would keep of it.

Reads a run's ledger; samples nothing and changes nothing. Loads neither prefect nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from flows.commands.options import Run, Storage

if TYPE_CHECKING:
    from tasks.ledger import Ledger

app = App(name="filter", help="The difficulty filter of a run. Example: rstar2 filter show demo")


@app.command
def show(
    run: Run,
    /,
    *,
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")] = False,
    storage: Storage = "runs",
) -> int:
    """Say what each band would keep of the problems that a run tried, also while it tries them.

    Example: rstar2 filter show demo --set filter.min_correct=2 --set filter.max_correct=6

    Parameters
    ----------
    set
        Another band than the run's, as in `filter.max_correct=6`; may be repeated.
    """
    import json
    from dataclasses import asdict

    from infra.object_store import open_store
    from rstar2.bands import bands_text, count_bands
    from tasks.filter_chunks import filter_in_force, measured_tries, with_band
    from tasks.ledger import Ledger, LedgerError

    ledger = Ledger(open_store(storage), run)
    config = ledger.config()
    config = config.model_copy(update={"filter": filter_in_force(ledger, config)})
    settings = with_band(config, set or []).filter
    tries = measured_tries(ledger)
    if not tries:
        raise LedgerError(
            f"the run {run!r} has tried no problem for its difficulty filter yet: expected one whose "
            "filter has begun, between the last two stages of a profile with filter_problems"
        )
    if as_json:
        print(json.dumps([asdict(row) for row in count_bands(tries, settings)], indent=1))
        return 0
    print(f"{run}: {_measured(ledger, len(tries))}\n{bands_text(tries, settings)}")
    return 0


def _measured(ledger: Ledger, num_problems: int) -> str:
    """How many problems were tried, and under which conditions where the run says so."""
    from tasks.ledger import FILTER

    is_whole = ledger.find("filter", stage=FILTER) is not None
    said = f"{num_problems:,} problems tried{'' if is_whole else ' so far'}"
    chunks = ledger.steps(FILTER, "chunk")
    if not chunks:
        return said
    seen = chunks[-1].values["measured"]
    return (
        f"{said} by {seen['checkpoint']['uri']} at temperature {seen['temperature']}, top_p "
        f"{seen['top_p']}, {seen['max_response_tokens']} tokens, {seen['max_turns']} turns, seed "
        f"{seen['seed']}; {seen['verifier']}"
    )
