"""`rstar2 catalog`: questions to what the runs of a storage did, also while one is writing.

Reads the published catalogue, never a run's own files. Loads neither prefect nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter, validators

from flows.commands.options import Storage

if TYPE_CHECKING:
    from data_catalog.queries import Answer

app = App(
    name="catalog",
    help="What the runs did: problems, stages, steps, gates, filters, checkpoints.\n\n"
    'Example: rstar2 catalog sql "from filter_reasons"',
)

Statement = Annotated[str, Parameter(help="The statement, in quotes.")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]
Listing = Annotated[bool, Parameter(name="--problems", negative="")]
Decision = Literal["trained", "dropped", "not drawn", "quarantined", "held out", "kept", "filtered"]
AsCsv = Annotated[bool, Parameter(name="--csv", negative="", help="Print CSV.")]


@app.command
def sql(
    statement: Statement,
    /,
    *,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    storage: Storage = "runs",
) -> int:
    """Run one read-only SQL statement (DuckDB's dialect).

    Example: rstar2 catalog sql "select stage, decision, reason, count(*) from problem_stage group
    by all". `show tables` lists tables and views; `from duckdb_columns()` their comments.
    """
    from data_catalog.queries import query

    return _print(query(_catalog(storage), statement), as_json=as_json, as_csv=as_csv)


@app.command
def problems(
    *,
    run: str | None = None,
    stage: str | None = None,
    decision: Decision | None = None,
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 50,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    storage: Storage = "runs",
) -> int:
    """List problems with what each stage decided about them, hardest first.

    Example: rstar2 catalog problems --stage difficulty-filter --decision filtered

    Parameters
    ----------
    run
        Only of this run.
    stage
        Only of this stage: rl-1, rl-2, difficulty-filter, rl-3, held-out, curation.
    decision
        Only with this decision.
    limit
        At most so many rows.
    """
    from data_catalog.queries import ask, check_known, open_catalog

    wanted = {"run": run, "stage": stage, "decision": decision}
    with open_catalog(_catalog(storage)) as connection:
        check_known(connection, run, stage)
        answer = ask(connection, _PROBLEMS, {**wanted, "limit": limit})
    return _print(answer, as_json=as_json, as_csv=as_csv)


@app.command
def explain(problem: str, /, *, as_json: AsJson = False, storage: Storage = "runs") -> int:
    """Tell what became of one problem in every stage, and why.

    Example: rstar2 catalog explain 3f2a91

    Parameters
    ----------
    problem
        Its id, or the beginning of it.
    """
    from data_catalog.lineage import explain_problem, problem_text
    from data_catalog.queries import open_catalog

    with open_catalog(_catalog(storage)) as connection:
        story = explain_problem(connection, problem)
    print(_json(story) if as_json else problem_text(story))
    return 0


@app.command
def lineage(
    checkpoint: str,
    /,
    *,
    problems: Listing = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    storage: Storage = "runs",
) -> int:
    """Tell what a checkpoint was made from: stages, steps, problem sets, filters.

    Example: rstar2 catalog lineage demo

    Parameters
    ----------
    checkpoint
        Its address, the beginning of its sha256, or a run's name for its newest checkpoint.
    problems
        List every problem it was trained on instead.
    """
    from data_catalog.lineage import checkpoint_text, problems_of, trace_checkpoint
    from data_catalog.queries import open_catalog

    with open_catalog(_catalog(storage)) as connection:
        if problems or as_csv:
            return _print(problems_of(connection, checkpoint), as_json=as_json, as_csv=as_csv)
        story = trace_checkpoint(connection, checkpoint)
    print(_json(story) if as_json else checkpoint_text(story))
    return 0


@app.command
def export(folder: Path, /, *, storage: Storage = "runs") -> int:
    """Write every table as a Parquet file into a new folder.

    Example: rstar2 catalog export tables

    Parameters
    ----------
    folder
        A folder that is not there yet; it is made.
    """
    from data_catalog.queries import export as export_tables

    for path in export_tables(_catalog(storage), folder):
        print(path)
    return 0


_PROBLEMS = """
select s.run, s.stage, s.problem_id, s.decision, s.reason, s.num_correct, s.num_decided,
    s.pass_rate, p.answer, p.source, p.question
from problem_stage as s left join problems as p using (run, problem_id)
    left join stages as t using (run, stage)
where ($run is null or s.run = $run) and ($stage is null or s.stage = $stage)
    and ($decision is null or s.decision = $decision)
order by s.run, t.position, s.pass_rate nulls last, s.problem_id limit $limit
"""


def _catalog(storage: str) -> Path:
    from infra.object_store import open_store
    from tasks.ledger import catalog_path

    return catalog_path(open_store(storage))


def _print(answer: Answer, *, as_json: bool, as_csv: bool) -> int:
    from data_catalog import queries

    form = queries.as_json if as_json else queries.as_csv if as_csv else queries.as_table
    print(form(answer))
    return 0


def _json(story: Mapping[str, object]) -> str:
    import json

    return json.dumps(story, ensure_ascii=False, indent=1, default=str)
