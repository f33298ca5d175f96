"""The first pass of the curation: each row read once and judged by itself, into one staging file.

Reads the sources row by row, writes `rows.parquet` into a scratch folder: the row, what it is compared
by with others, and what its answer and the evaluation sets say about it. Holds one batch in memory.
Deliberately compares no row with another: that is `curation`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from data_catalog.curation.answers import judge_answer
from data_catalog.curation.inputs import (
    BATCH_ROWS,
    EvaluationSet,
    batched,
    check_columns,
    read_counts,
    unreadable_message,
)
from data_catalog.curation.spelling import content, spell
from data_catalog.curation.workers import in_order
from data_catalog.layouts import Layout, field, top_level
from data_catalog.row_sources import Row, RowSource, SourceError
from data_catalog.sources import choose_layout, problem_of, wanted_columns
from rstar2.curation import CurationConfig
from rstar2.jsonl import shorter
from rstar2.types import Problem

MAX_SHOWN = 2000
"""Characters that are kept of a row which is no problem."""

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("file", pa.large_string()),
        ("number", pa.int64()),
        ("problem_id", pa.large_string()),
        ("question", pa.large_string()),
        ("answer", pa.large_string()),
        ("source", pa.large_string()),
        ("malformed", pa.large_string()),
        ("clean_answer", pa.large_string()),
        ("answer_key", pa.binary(8)),
        ("spelling", pa.binary(16)),
        ("content", pa.binary(8)),
        ("num_tokens", pa.int32()),
        ("answer_rule", pa.large_string()),
        ("answer_reason", pa.large_string()),
        ("contaminated", pa.large_string()),
        ("num_correct", pa.int64()),
        ("num_attempts", pa.int64()),
    ]
)
Record = dict[str, object]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The columns of the sources, where they are not found by their layout."""

    question: str = "question"
    answer: str = "answer"
    num_correct: str = "num_correct"
    """Of a reference policy, where there is one; a column `a.b` is the field `b` of `a`."""
    num_attempts: str = "num_attempts"


def mapped_columns(entries: Sequence[str]) -> Columns:
    """The columns that `--map name=COLUMN` entries name; raises `SourceError` on any other name."""
    names = [known.name for known in fields(Columns)]
    named: dict[str, str] = {}
    for entry in entries:
        name, _, column = entry.partition("=")
        if name not in names or not column:
            raise SourceError(
                f"--map {entry}: expected NAME=COLUMN with {', '.join(names)} as NAME, as in --map "
                "question=problem"
            )
        named[name] = column
    return replace(Columns(), **named)


def stage_rows(
    path: Path,
    sources: Sequence[RowSource],
    *,
    columns: Columns,
    config: CurationConfig,
    evaluation: EvaluationSet,
    num_workers: int,
) -> int:
    """Writes every row of the sources to `path`; returns how many there are.

    Raises `SourceError` where a source is missing, has no rows, lacks a column or has rows that are
    none: nothing is curated from half a file.
    """
    judge = _Judge(config, evaluation)
    named = _NamedCounts(columns)
    batches = (batch for rows in sources for batch in _batches(rows, columns, named))
    num_rows = 0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for table in in_order(judge.table, batches, num_workers=num_workers):
            numbers = pa.array(range(num_rows + 1, num_rows + 1 + len(table)), pa.int64())
            writer.write_table(table.set_column(0, SCHEMA.field("row"), numbers))
            num_rows += len(table)
    named.check()
    return num_rows


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some rows of a source, and what it takes to read them as problems."""

    name: str
    label: str
    layout: Layout
    counts: tuple[str, str]
    rows: Sequence[Row]


class _NamedCounts:
    """The columns that a user named for the counts: a row may lack them, all rows together may not."""

    def __init__(self, columns: Columns) -> None:
        usual = Columns()
        pairs = {
            columns.num_correct: usual.num_correct,
            columns.num_attempts: usual.num_attempts,
        }
        self._missing = {column for column, name in pairs.items() if column != name}
        self._seen: set[str] = set()

    def see(self, rows: RowSource, batch: Sequence[Row]) -> None:
        if not self._missing:
            return
        self._seen |= {*rows.columns, *_columns_of_rows(batch)}
        for value in (row.value for row in batch if not isinstance(row.value, str)):
            self._missing -= {c for c in self._missing if c in value or field(value, c) is not None}

    def check(self) -> None:
        """Once all rows were seen; raises `SourceError` for a column that none of them has."""
        if self._missing:
            raise SourceError(
                f"no row has a column {', '.join(map(repr, sorted(self._missing)))}; seen: "
                f"{', '.join(sorted(self._seen))}. Name the right ones with --map "
                "num_correct=COLUMN --map num_attempts=COLUMN"
            )


def _batches(rows: RowSource, columns: Columns, named: _NamedCounts) -> Iterator[_Batch]:
    layout = choose_layout(rows, columns.question, columns.answer)
    counts = (columns.num_correct, columns.num_attempts)
    wanted = sorted({*wanted_columns(rows, layout), *_present(rows, counts)})
    unreadable: list[str] = []
    is_first = True
    for batch in batched(rows.read(wanted), BATCH_ROWS):
        readable = [row for row in batch if not isinstance(row.value, str)]
        unreadable += [f"  row {r.number}: {r.value}" for r in batch if isinstance(r.value, str)]
        if is_first:
            needed = (layout.question, layout.answer)
            check_columns(rows, needed, _columns_of_rows(readable))
        is_first = False
        named.see(rows, readable)
        yield _Batch(rows.name, rows.label, layout, counts, readable)
    if unreadable:
        raise SourceError(unreadable_message(rows, unreadable))
    if is_first:
        raise SourceError(f"{rows.name} has no rows: expected at least one problem")


def _present(rows: RowSource, columns: Sequence[str]) -> Iterator[str]:
    for column in columns:
        name = column if column in rows.columns else top_level(column)
        if name in rows.columns:
            yield name


def _columns_of_rows(rows: Sequence[Row]) -> list[str]:
    return sorted({name for row in rows if not isinstance(row.value, str) for name in row.value})


@dataclass(frozen=True, slots=True)
class _Judge:
    config: CurationConfig
    evaluation: EvaluationSet

    def table(self, batch: _Batch) -> pa.Table:
        """The rows of a batch, judged; their numbers over all sources come later."""
        records = [self.record(batch, row) for row in batch.rows]
        columns = {f.name: [record.get(f.name) for record in records] for f in SCHEMA}
        return pa.table({f.name: pa.array(columns[f.name], f.type) for f in SCHEMA}, schema=SCHEMA)

    def record(self, batch: _Batch, row: Row) -> Record:
        place: Record = {"file": batch.name, "number": row.number}
        assert not isinstance(row.value, str), "unreadable rows were set apart"
        problem = problem_of(row, batch.label, batch.layout)
        if not isinstance(problem, Problem):
            return place | _no_problem(row.value, problem)
        tries = read_counts(*(field(row.value, column) for column in batch.counts))
        if isinstance(tries, str):
            return place | _no_problem(row.value, tries)
        judged = self._judged(problem.question, problem.answer)
        tried = dict(zip(("num_correct", "num_attempts"), tries, strict=True))
        return place | _columns_of(problem) | judged | tried

    def _judged(self, question: str, answer: str) -> Record:
        spelling = spell(question)
        gold = judge_answer(answer, self.config)
        return {
            "spelling": _hash("\n".join(spelling.tokens), 16),
            "content": _hash("\n".join(content(spelling.tokens)), 8),
            "num_tokens": len(spelling.tokens),
            "clean_answer": gold.text,
            "answer_key": _hash(gold.key, 8),
            "answer_rule": gold.rule,
            "answer_reason": gold.reason,
            "contaminated": self._contaminated(spelling),
        }

    def _contaminated(self, spelling: Any) -> str | None:
        found = self.evaluation.words.find(spelling)
        if found is None:
            return None
        return f"as {self.evaluation.names[found.question]}: {shorter(found.words)!r}"


def _columns_of(problem: Problem) -> Record:
    return {
        "problem_id": problem.problem_id,
        "question": problem.question,
        "answer": problem.answer,
        "source": problem.source.removeprefix("user/"),  # whoever reads the result adds it again
    }


def _no_problem(value: Mapping[str, Any], reason: str) -> Record:
    """A row without a problem in it: what was there stands as its question, cut."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return {"question": _writable(text[:MAX_SHOWN]), "malformed": _writable(reason)}


def _writable(text: str) -> str:
    """Lone surrogates, which no file can hold, as their escapes."""
    return text.encode(errors="backslashreplace").decode()


def _hash(text: str, num_bytes: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=num_bytes).digest()
