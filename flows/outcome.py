"""How a run stands, read from its ledger alone, and what the command line says of it.

Needs no server and takes no lock: it is asked before a flow starts and after one ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from infra.object_store import open_store
from rstar2.profiles import load_config
from rstar2.types import GateVerdict, Score, StageResult
from tasks.inputs import input_files
from tasks.ledger import FINAL, Ledger, check_unchanged, num_dropped
from tasks.promotion_answers import answered
from tasks.runs import gate_command

COLUMNS = ("after", "problems", "avg@k", "95 % interval", "truncated", "tokens", "attempts")
LOG_WIDTH = 110
"""Columns of the table where the output is no terminal."""
EXIT_DONE, EXIT_FAILED, EXIT_WAITING = 0, 1, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    run: str
    command: str
    """What goes on with the run."""
    storage: str
    stages: tuple[StageResult, ...]
    """Finished ones in order, SFT first, with a person's answers applied."""
    scores: dict[str, tuple[Score, ...]]
    """By the checkpoint they were measured after: `sft`, `rl-1`, …, `final`."""
    filtered: tuple[int, int] | None
    """Problems dropped by the difficulty filter, of how many."""

    @property
    def stopped_by(self) -> StageResult | None:
        """The stage whose gate holds or aborted."""
        last = self.stages[-1] if self.stages else None
        return last if last and last.gate.verdict is not GateVerdict.PROMOTE else None

    @property
    def is_complete(self) -> bool:
        return FINAL in self.scores

    @property
    def has_ended(self) -> bool:
        """Complete, or stopped by a gate: starting it again would change nothing."""
        return self.is_complete or self.stopped_by is not None

    @property
    def exit_code(self) -> int:
        if self.is_complete:
            return EXIT_DONE
        stopped = self.stopped_by
        is_waiting = stopped is not None and stopped.gate.verdict is GateVerdict.HOLD
        return EXIT_WAITING if is_waiting else EXIT_FAILED


def read_outcome(storage: str, run: str, profile: str, overrides: Sequence[str]) -> Outcome | None:
    """The run's outcome so far, None if there is no such run.

    Raises `LedgerError` where the run was started with other settings than these.
    """
    ledger = Ledger(open_store(storage), run)
    if ledger.find("run") is None:
        return None
    config = load_config(profile, overrides)
    check_unchanged(ledger, config, input_files(config))
    return outcome_of(ledger)


def outcome_of(ledger: Ledger) -> Outcome:
    names = ledger.stage_names()
    finished = [(name, r) for name in names if (r := ledger.stage_result(name)) is not None]
    return Outcome(
        run=ledger.run,
        command=ledger.command(),
        storage=ledger.store.uri,
        stages=tuple(answered(ledger, stage, result) for stage, result in finished),
        scores=ledger.scores(),
        filtered=num_dropped(ledger),
    )


def print_outcome(outcome: Outcome) -> int:
    """Prints gates, filter and scores, and what to do next. Returns the exit code."""
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console = Console(soft_wrap=True, highlight=False, width=LOG_WIDTH)
    for result in outcome.stages:
        console.print(f"{result.gate.verdict}: {result.gate.reason}")
        if result.losses.sentence:
            console.print(f"{result.stage}: {result.losses.sentence}")
    if outcome.filtered:
        dropped, total = outcome.filtered
        console.print(f"difficulty filter: {dropped} of {total} problems dropped")
    if outcome.scores:
        console.print(_score_table(outcome))
    console.print(_next_step(outcome))
    return outcome.exit_code


def _score_table(outcome: Outcome) -> Table:
    table = Table(title=f"run {outcome.run}: held-out problems")
    for column in COLUMNS:
        table.add_column(column)
    for name, scores in outcome.scores.items():
        for row in scores:
            table.add_row(
                name,
                row.name,
                f"{row.mean:.1%}",
                f"{row.low:.1%} to {row.high:.1%}",
                f"{row.truncation_rate:.1%}",
                f"{row.mean_response_tokens:.0f}",
                str(row.num_attempts),
            )
    return table


def _next_step(outcome: Outcome) -> str:
    run, stopped = outcome.run, outcome.stopped_by
    if outcome.is_complete:
        last = outcome.stages[-1]
        return f"run {run} is complete; the model: {last.checkpoint.uri}"
    if stopped is None:
        return f"run {run} has not ended; to go on: {outcome.command}"
    if stopped.gate.verdict is GateVerdict.HOLD:
        approve = gate_command("approve", run, outcome.storage)
        reject = gate_command("reject", run, outcome.storage)
        return (
            f"run {run} waits for a person: `{approve}` goes on to the next stage, `{reject}` ends it; "
            f"then: {outcome.command}"
        )
    return f"run {run} was ended by its gate: {stopped.gate.reason}"
