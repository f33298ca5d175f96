"""Which rows of the problem files may be trained on, and why each of the others may not.

Reads sources row by row, writes into a new folder: `problems.parquet` (what is kept, in the layout of a
problem set), `victims.parquet` (every other row with its rule, its reason and the row that stands for
it) and `curation.json` (a count for each rule). Kept and victims together are the rows read, always.
Works out of core: what does not fit into memory goes to a scratch folder beside the result.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_catalog.curation.groups import (
    counted,
    has_reference,
    judge_groups,
    judged_rows,
    open_scratch,
)
from data_catalog.curation.inputs import (
    BATCH_ROWS,
    EvaluationSet,
    read_evaluation,
    stage_counts,
)
from data_catalog.curation.rows import Columns, stage_rows
from data_catalog.row_sources import open_rows
from rstar2.curation import RULES, CurationConfig

MEMORY = "512MB"
"""Of the comparison; reading and writing hold one batch each."""
PROBLEMS, VICTIMS, COUNTS = "problems.parquet", "victims.parquet", "curation.json"

VICTIM_SCHEMA = pa.schema(
    [
        *((name, pa.large_string()) for name in ("rule", "reason", "problem_id")),
        ("file", pa.large_string()),
        ("row", pa.int64()),
        *((name, pa.large_string()) for name in ("question", "answer", "source")),
        ("other_file", pa.large_string()),
        ("other_row", pa.int64()),
        *((name, pa.large_string()) for name in ("other_problem_id", "other_answer")),
        ("is_kept", pa.bool_()),  # another row of the same problem is kept
    ]
)
PROBLEM_SCHEMA = pa.schema(
    [
        *((name, pa.large_string()) for name in ("problem_id", "question", "answer", "source")),
        ("pass_rate", pa.float64()),
    ],
    metadata={"rstar2": "problems"},
)
Say = Callable[[str], None]


class CurationError(ValueError):
    """The result cannot be written where it was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curation:
    """What became of the rows."""

    num_rows: int
    num_kept: int
    victims: Mapping[str, int]
    """Rows by rule, every rule named, in the order in which they apply."""
    off: Mapping[str, str]
    """Why each rule that could not apply did not."""
    request: Mapping[str, Any]
    """What it was made from: files with their sha256, settings, columns."""


def curate(
    sources: Sequence[str | Path],
    folder: Path,
    *,
    config: CurationConfig | None = None,
    columns: Columns | None = None,
    evaluation_sets: Sequence[str | Path] = (),
    reference: str | Path | None = None,
    num_workers: int = 2,
    memory: str = MEMORY,
    say: Say = lambda _: None,
) -> Curation:
    """Curates all rows of `sources` as one set into `folder`; what it holds already is returned.

    `reference` is a file with `problem_id` (or the question), `num_correct` and `num_attempts`. Raises
    `SourceError` on a source that cannot be read whole (then nothing is written), `CurationError` where
    the folder holds the result of other files or settings.
    """
    config, columns = config or CurationConfig(), columns or Columns()
    opened = [
        open_rows(source) for source in sources
    ]  # what is not there is said before any is read
    tries = open_rows(reference) if reference is not None else None
    request = {
        "sources": _sha256(sources),
        "evaluation_sets": _sha256(evaluation_sets),
        "reference": _sha256([reference] if reference else []),
        "settings": config.model_dump(mode="json"),
        "columns": asdict(columns),
    }
    known = _known(folder, request)
    if known is not None:
        say(f"{folder} holds this already")
        return known
    evaluation = read_evaluation(evaluation_sets, config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        scratch = Path(name)
        staged = scratch / "rows.parquet"
        counts = stage_counts(scratch / "counts.parquet", tries) if tries else None
        num_rows = stage_rows(
            staged,
            opened,
            columns=columns,
            config=config,
            evaluation=evaluation,
            num_workers=num_workers,
        )
        say(f"read {num_rows:,} rows")
        with open_scratch(scratch, memory=memory) as connection:
            judge_groups(connection, staged, config=config, reference=counts)
            say("compared them with each other")
            off = _off(connection, config, evaluation)
            result = _summary(connection, num_rows, off, request)
            _write(connection, staged, scratch, result)
        _put_in_place(scratch, folder, result)
    return result


def _known(folder: Path, request: Mapping[str, Any]) -> Curation | None:
    """The result that the folder holds, where it was asked for the same; None where it is free."""
    there = [name for name in (PROBLEMS, VICTIMS, COUNTS) if (folder / name).exists()]
    if not there and not folder.is_file():
        return None
    if len(there) == 3:
        known = read_curation(folder)
        if known.request == json.loads(json.dumps(request)):
            return known
    raise CurationError(
        f"{folder}: holds {', '.join(there) or 'no folder but a file'} of other files or settings; "
        "expected a new folder: name another, or move that one away"
    )


def read_curation(folder: Path) -> Curation:
    """What became of the rows from which the folder's problems were chosen."""
    return Curation(**json.loads((folder / COUNTS).read_text()))


def _sha256(sources: Sequence[str | Path]) -> dict[str, str]:
    """By name; a folder or a set of the hub stands under its name alone."""
    hashes = {}
    for source in map(str, sources):
        hashes[source] = ""
        if Path(source).is_file():
            with Path(source).open("rb") as file:
                hashes[source] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def curation_table(result: Curation) -> str:
    """The count of every rule, what it says, and which were off."""
    width = max(map(len, RULES))
    lines = [f"{'rows read':{width}}  {result.num_rows:>11,}"]
    for rule, num_rows in result.victims.items():
        lines.append(f"{rule:{width}}  {num_rows:>11,}  {_says(result, rule)}")
    return "\n".join([*lines, f"{'kept':{width}}  {result.num_kept:>11,}"])


def _says(result: Curation, rule: str) -> str:
    return f"off: {result.off[rule]}" if rule in result.off else RULES[rule]


def _off(
    connection: duckdb.DuckDBPyConnection, config: CurationConfig, evaluation: EvaluationSet
) -> dict[str, str]:
    off = {
        "near_duplicate": None if config.near_duplicates else "near_duplicates = false",
        "not_an_integer": None if config.integer_answers else "integer_answers = false",
        "reference_policy": None
        if has_reference(connection)
        else "no row has num_correct and num_attempts of a reference policy",
        "contaminated": None if evaluation.names else "no evaluation set was named",
    }
    return {rule: why for rule, why in off.items() if why is not None}


def _summary(
    connection: duckdb.DuckDBPyConnection,
    num_rows: int,
    off: Mapping[str, str],
    request: Mapping[str, Any],
) -> Curation:
    found = counted(connection)
    return Curation(
        num_rows=num_rows,
        num_kept=num_rows - sum(found.values()),
        victims={rule: found.get(rule, 0) for rule in RULES},
        off=off,
        request=request,
    )


def _write(
    connection: duckdb.DuckDBPyConnection, staged: Path, scratch: Path, result: Curation
) -> None:
    """Both tables in the order of the rows; raises where a row is in none of them or in both."""
    with (
        pq.ParquetWriter(scratch / PROBLEMS, PROBLEM_SCHEMA, compression="zstd") as problems,
        pq.ParquetWriter(scratch / VICTIMS, VICTIM_SCHEMA, compression="zstd") as victims,
    ):
        num_kept = num_victims = 0
        for rows in _judged(connection, staged):
            is_victim = pc.is_valid(rows["rule"])
            kept, fallen = rows.filter(pc.invert(is_victim)), rows.filter(is_victim)
            problems.write_table(_select(kept, PROBLEM_SCHEMA, {"answer": "clean_answer"}))
            victims.write_table(_select(fallen, VICTIM_SCHEMA, {"row": "number"}))
            num_kept, num_victims = num_kept + len(kept), num_victims + len(fallen)
    assert num_kept == result.num_kept, f"{num_kept} kept, counted {result.num_kept}"
    assert num_victims == sum(result.victims.values()), f"{num_victims} victims"
    assert num_kept + num_victims == result.num_rows, f"{num_kept} + {num_victims} rows"


def _judged(connection: duckdb.DuckDBPyConnection, staged: Path) -> Iterator[pa.Table]:
    """The staged rows, batch by batch, with what was decided about each."""
    with pq.ParquetFile(staged) as file:
        decisions = _Rows(judged_rows(connection, BATCH_ROWS))
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            decided = decisions.next(batch.num_rows)
            assert decided["row"].equals(pa.chunked_array([batch["row"]])), "rows are in order"
            table = pa.Table.from_batches([batch])
            for name in set(decided.column_names) - {"row"}:
                table = table.append_column(name, decided[name])
            yield table


class _Rows:
    """A stream of batches, taken in pieces of any length."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.Table | None = None

    def next(self, num_rows: int) -> pa.Table:
        while self._left is None or len(self._left) < num_rows:
            more = pa.Table.from_batches([next(self._batches)])
            self._left = more if self._left is None else pa.concat_tables([self._left, more])
        taken, self._left = self._left.slice(0, num_rows), self._left.slice(num_rows)
        return taken


def _select(table: pa.Table, schema: pa.Schema, names: Mapping[str, str]) -> pa.Table:
    columns = [table[names.get(name, name)].cast(schema.field(name).type) for name in schema.names]
    return pa.table(columns, schema=schema)


def _put_in_place(scratch: Path, folder: Path, result: Curation) -> None:
    """The counts come last: where they are, the tables are whole."""
    folder.mkdir(exist_ok=True)
    (scratch / COUNTS).write_text(json.dumps(asdict(result), indent=1) + "\n")
    for name in (PROBLEMS, VICTIMS, COUNTS):
        with (scratch / name).open("rb") as file:
            os.fsync(file.fileno())
        (scratch / name).replace(folder / name)
