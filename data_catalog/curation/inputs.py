"""What the curation is told besides the rows: evaluation questions, and how often a policy was right.

Reads evaluation sets and the counts of a reference policy through `row_sources`, writes the counts as
Parquet into the scratch folder. Also the messages of sources that cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from data_catalog.curation.contamination import EvaluationWords
from data_catalog.layouts import Layout, field, find_layout, question_text, top_level
from data_catalog.row_sources import Row, RowSource, SourceError, open_rows
from rstar2.curation import CurationConfig
from rstar2.jsonl import listed, shorter
from rstar2.problems import problem_id

BATCH_ROWS = 8192
MAX_ATTEMPTS = 2**31 - 1
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSet:
    """What must not be trained on."""

    names: tuple[str, ...]
    """Of each evaluation question: its source and id."""
    words: EvaluationWords


def read_evaluation(sources: Sequence[str | Path], config: CurationConfig) -> EvaluationSet:
    """The questions of all evaluation sets, ready to be looked for."""
    questions = [named for source in sources for named in read_questions(source)]
    return EvaluationSet(
        names=tuple(name for name, _ in questions),
        words=EvaluationWords((question for _, question in questions), config.ngram_words),
    )


def read_questions(source: str | Path) -> Iterator[tuple[str, str]]:
    """Name and question of every row of an evaluation set; its answers need not be known."""
    rows = open_rows(source)
    layout = Layout(question="question", answer="answer")
    if layout.question not in rows.columns:
        layout = find_layout(rows.columns) or layout
    check_columns(rows, (layout.question,), rows.columns)
    is_empty = True
    for row in rows.read([top_level(layout.question)]):
        is_empty = False
        value = {} if isinstance(row.value, str) else row.value
        question = question_text(field(value, layout.question))
        if not isinstance(question, str) or not question.strip():
            raise SourceError(
                f"{rows.name}: row {row.number} is no question: {shorter(str(row.value))}"
            )
        yield f"row {row.number} of {rows.label}", question
    if is_empty:
        raise SourceError(f"{rows.name} has no rows: expected at least one evaluation question")


def stage_counts(path: Path, rows: RowSource) -> Path:
    """Writes the counts of a reference policy by problem to `path`.

    Reads the columns `num_correct`, `num_attempts` and `problem_id` (or the question), as an export of
    the catalogue has them; raises `SourceError` where a row has none.
    """
    faults: list[str] = []
    is_empty = True
    with pq.ParquetWriter(path, _COUNTS_SCHEMA) as writer:
        for batch in batched(rows.read(rows.columns), BATCH_ROWS):
            is_empty = False
            found = [(row.number, _counts_of(row)) for row in batch]
            faults += [
                f"  row {number}: {fault}" for number, fault in found if isinstance(fault, str)
            ]
            records = [record for _, record in found if not isinstance(record, str)]
            writer.write_table(pa.Table.from_pylist(records, schema=_COUNTS_SCHEMA))
    if faults:
        raise SourceError(unreadable_message(rows, faults))
    if is_empty:
        raise SourceError(f"{rows.name} has no rows: expected the counts of at least one problem")
    return path


Counts = dict[str, str | int | None]
_COUNTS_SCHEMA = pa.schema(
    [("problem_id", pa.string()), ("num_correct", pa.int64()), ("num_attempts", pa.int64())]
)


def _counts_of(row: Row) -> Counts | str:
    if isinstance(row.value, str):
        return row.value
    question = row.value.get("question")
    name = row.value.get("problem_id") or (
        problem_id(question) if isinstance(question, str) else None
    )
    counts = read_counts(row.value.get("num_correct"), row.value.get("num_attempts"))
    if not isinstance(name, str) or isinstance(counts, str) or counts[0] is None:
        seen = shorter(", ".join(row.value))
        reason = counts if isinstance(counts, str) else "no problem or no counts"
        return f"{reason}; expected problem_id, num_correct and num_attempts (columns seen: {seen})"
    return {"problem_id": name, "num_correct": counts[0], "num_attempts": counts[1]}


def read_counts(correct: object, attempts: object) -> tuple[int | None, int | None] | str:
    """How often a reference policy was right, of how often; nulls where it did not try; or a fault."""
    if correct is None and attempts is None:
        return None, None
    counts = (_whole(correct), _whole(attempts))
    if counts[0] is None or counts[1] is None or not 0 <= counts[0] <= counts[1] <= MAX_ATTEMPTS:
        seen = f"right {shorter(repr(correct))} of {shorter(repr(attempts))} attempts"
        return f"{seen}: expected two counts, the first no larger than the second"
    return counts


def _whole(value: object) -> int | None:
    """A whole number; tables with gaps hold theirs as floats."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def check_columns(rows: RowSource, needed: Sequence[str], seen: Sequence[str]) -> None:
    """Raises where no row that was seen has a column: the file is another one than was thought."""
    for column in needed if seen else ():
        if column not in seen and top_level(column) not in seen:
            raise SourceError(
                f"{rows.name}: no column {column!r}; seen: {', '.join(seen)}. Name the right ones "
                "with --map question=COLUMN --map answer=COLUMN"
            )


def unreadable_message(rows: RowSource, unreadable: list[str]) -> str:
    head = f"{rows.name}: {len(unreadable)} rows cannot be read, nothing was written:"
    last = "Expected whole rows: copy the file again (its end may be missing), or mend them."
    return "\n".join([head, *listed(unreadable), last])


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch
