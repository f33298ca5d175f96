"""The user's own problems: rows of a JSONL or Parquet file, or of a folder of `datasets`.

Reads a source row by row, gives checked `Problem`s. Nothing is skipped in silence: a row that cannot
be read is an error that lists it by line before anything starts; a row whose answer cannot be
checked, or which contradicts another, is quarantined with its reason; repeated rows are counted.
Deliberately does not decide which problems are good to train on: that is curation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress

from rstar2.jsonl import is_unicode, listed, parse_line, shorter
from rstar2.problems import problem_id
from rstar2.types import Problem

MAX_ANSWER_CHARACTERS = 200
MAX_ANSWER_WORDS = 2
"""Plain words in a checkable answer: `Tuesday`, `12 dollars`, `no solution`."""
PROGRESS_FROM = 100_000
"""Rows, or bytes of a JSONL file, from which reading shows a progress bar."""
BATCH_ROWS = 4096


class SourceError(ValueError):
    """A source is not what it should be. Names file and rows, what was seen and expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantined:
    """A row that was read but is not used."""

    row: int
    """1-based: the line of a JSONL file, the row of another."""
    problem_id: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceProblems:
    """What a source holds: every row is in exactly one of the three counts."""

    problems: tuple[Problem, ...]
    """In the order of their first rows."""
    quarantined: tuple[Quarantined, ...]
    num_duplicates: int
    """Rows that repeat a problem with the same answer."""

    def quarantined_rows(self) -> tuple[Mapping[str, object], ...]:
        """One row a problem, as a manifest holds them."""
        reasons = {row.problem_id: row.reason for row in self.quarantined}
        return tuple({"problem_id": k, "reason": reason} for k, reason in reasons.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    number: int
    value: Mapping[str, Any] | str
    """The row by column, or why it cannot be read."""


def read_source(
    source: str | Path, *, question_column: str = "question", answer_column: str = "answer"
) -> SourceProblems:
    """All problems of a source. A column `a.b` is the field `b` of the column `a`.

    Where the rows have a `source`, it is kept: `user/<source>`; else it is the file's name. Raises
    `SourceError` listing up to 20 malformed rows by line.
    """
    path = Path(source)
    malformed: list[str] = []
    found: list[tuple[int, Problem]] = []
    for row in _read_rows(path, question_column, answer_column):
        problem = _problem(row, path.stem, question_column, answer_column)
        if isinstance(problem, Problem):
            found.append((row.number, problem))
        else:
            malformed.append(f"  row {row.number}: {problem}")
    if malformed:
        raise SourceError(_malformed_message(path, malformed, question_column, answer_column))
    if not found:
        raise SourceError(f"{path} has no rows: expected at least one problem")
    return _sort_out(found)


def why_not_checkable(answer: str) -> str | None:
    """Why no verifier could judge an attempt against this gold answer; None where one can."""
    if len(answer) > MAX_ANSWER_CHARACTERS:
        return f"answer not checkable: longer than {MAX_ANSWER_CHARACTERS} characters"
    words = _WORD.findall(_LATEX.sub(" ", answer))
    if len(words) > MAX_ANSWER_WORDS:
        return f"answer not checkable: prose of more than {MAX_ANSWER_WORDS} words"
    if answer.strip(" .").lower() in _NO_ANSWER:
        return "answer not checkable: a placeholder"
    if not any(character.isalnum() or character in "∞∅π" for character in answer):
        return "answer not checkable: no letter or digit"
    return None


_WORD = re.compile(r"[^\W\d_]{3,20}")
"""A longer run of letters, as of a language without spaces, counts as several words."""
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|exp|sqrt|mod|max|min"
_LATEX = re.compile(rf"\\[A-Za-z]+|\b(?:{_FUNCTIONS})\b")
_NO_ANSWER = frozenset({"n/a", "na", "none", "null", "nan", "unknown", "todo", "see solution", "?"})


def _sort_out(found: list[tuple[int, Problem]]) -> SourceProblems:
    """Deduplicates; a problem with two answers, or one not checkable, is quarantined as a whole."""
    first: dict[str, Problem] = {}
    reasons: dict[str, str] = {}
    for _, problem in found:
        known = first.setdefault(problem.problem_id, problem)
        reason = why_not_checkable(problem.answer)
        if reason is None and _plain(known.answer) != _plain(problem.answer):
            reason = "conflicting answers: rows with this question disagree"
        if reason is not None:
            reasons.setdefault(problem.problem_id, reason)
    quarantined = [
        Quarantined(row=number, problem_id=p.problem_id, reason=reasons[p.problem_id])
        for number, p in found
        if p.problem_id in reasons
    ]
    problems = [p for p in first.values() if p.problem_id not in reasons]
    return SourceProblems(
        problems=tuple(problems),
        quarantined=tuple(quarantined),
        num_duplicates=len(found) - len(quarantined) - len(problems),
    )


def _plain(answer: str) -> str:
    """Answers that differ only so are the same; `1,000` and `1000.0` are `1000`."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer.strip().strip("$").strip())
    number = re.fullmatch(r"([+-]?\d+)(?:\.0*)?", text)
    return str(int(number[1])) if number and len(text) < 4000 else text


def _problem(row: Row, stem: str, question_column: str, answer_column: str) -> Problem | str:
    """The problem, or what is wrong with the row."""
    if isinstance(row.value, str):
        return row.value
    question = _field(row.value, question_column)
    if not isinstance(question, str) or not question.strip():
        seen = _seen(row.value, question)
        return f"{question_column!r} is {seen}: expected text that is not empty"
    answer = _field(row.value, answer_column)
    text = _answer_text(answer)
    if text is None:
        return f"{answer_column!r} is {_seen(row.value, answer)}: expected text or a finite number"
    label = row.value.get("source")
    label = label if isinstance(label, str) and label.strip() else stem
    if not all(is_unicode(part) for part in (question, text, label)):
        return "holds a lone surrogate: expected valid Unicode"
    return Problem(
        problem_id=problem_id(question), question=question, answer=text, source=f"user/{label}"
    )


def _field(row: Mapping[str, Any], column: str) -> Any:
    if column in row:
        return row[column]
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _answer_text(answer: object) -> str | None:
    if isinstance(answer, str):
        return answer.strip() or None
    if isinstance(answer, bool) or not isinstance(answer, (int, float)):
        return None
    if isinstance(answer, float):
        if not math.isfinite(answer):
            return None
        return str(int(answer)) if answer.is_integer() and abs(answer) < 2**53 else repr(answer)
    return str(answer)


def _seen(row: Mapping[str, Any], value: object) -> str:
    if value is None:
        return f"missing or null (columns seen: {shorter(', '.join(row) or 'none')})"
    return shorter(repr(value))


def _malformed_message(path: Path, malformed: list[str], question: str, answer: str) -> str:
    lines = [f"{path}: {len(malformed)} malformed rows, nothing was started:", *listed(malformed)]
    lines.append(
        f"Expected rows with text in {question!r} and text or a number in {answer!r}. Correct or "
        "remove these rows, or name other columns (question_column, answer_column)."
    )
    return "\n".join(lines)


def _read_rows(path: Path, question_column: str, answer_column: str) -> Iterator[Row]:
    if not path.exists():
        raise SourceError(
            f"no such file: {path}; expected a JSONL or Parquet file, or a folder of `datasets`"
        )
    if path.is_dir():
        return _read_folder(path, question_column, answer_column)
    if path.suffix == ".parquet":
        return _read_parquet(path, question_column, answer_column)
    if path.suffix in (".jsonl", ".ndjson", ".json"):
        return _read_jsonl(path)
    raise SourceError(
        f"{path}: unknown kind of file {path.suffix!r}; expected .jsonl, .parquet, or a folder that "
        "`datasets` saved"
    )


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as file, _progress(path.name, path.stat().st_size) as advance:
        for number, line in enumerate(file, start=1):
            advance(len(line))
            if line.strip():
                yield Row(number=number, value=parse_line(line, is_first=number == 1))


def _read_parquet(path: Path, question_column: str, answer_column: str) -> Iterator[Row]:
    try:
        with pq.ParquetFile(path) as file, _progress(path.name, file.metadata.num_rows) as advance:
            names = file.schema_arrow.names
            columns = _needed(path, names, question_column, answer_column)
            number = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                for value in batch.to_pylist():
                    number += 1
                    yield Row(number=number, value=value)
                advance(batch.num_rows)
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(
            f"{path}: not a readable Parquet file ({str(error).splitlines()[0]}); expected a whole "
            "one: copy it again, its end may be missing"
        ) from error


def _read_folder(path: Path, question_column: str, answer_column: str) -> Iterator[Row]:
    """A folder of `datasets.save_to_disk`, one split, or one that holds a single file of rows."""
    import datasets  # takes a second: loaded where it is used

    if not any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        files = sorted(f for f in path.iterdir() if f.suffix in (".jsonl", ".parquet"))
        if len(files) != 1:
            raise SourceError(
                f"{path}: a folder with {len(files)} files of rows, not one that `datasets` saved "
                "(state.json); expected one of the two: name the file itself"
            )
        yield from _read_rows(files[0], question_column, answer_column)
        return
    data = datasets.load_from_disk(str(path))
    if isinstance(data, datasets.DatasetDict):
        raise SourceError(
            f"{path} holds the splits {', '.join(sorted(data))}; expected one of them: name its "
            f"folder, as in {path / sorted(data)[0]}"
        )
    columns = _needed(path, data.column_names, question_column, answer_column)
    with _progress(path.name, len(data)) as advance:
        for number, value in enumerate(data.select_columns(columns), start=1):
            advance(1)
            yield Row(number=number, value=value)


def _needed(path: Path, names: list[str], question_column: str, answer_column: str) -> list[str]:
    """The columns to read; raises with those seen where one is missing."""
    wanted = [c if c in names else c.split(".")[0] for c in (question_column, answer_column)]
    for column, name in zip((question_column, answer_column), wanted, strict=True):
        if name not in names:
            raise SourceError(
                f"{path}: no column {column!r}; seen: {', '.join(names)}. Name the right ones with "
                "question_column and answer_column"
            )
    return sorted({*wanted, *({"source"} & set(names))})


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error for a big source; only where a person watches."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=total < PROGRESS_FROM) as progress:
        bar = progress.add_task(name, total=total)
        pending = 0

        def advance(amount: int) -> None:
            nonlocal pending
            pending += amount
            if pending * 200 > total:  # a redraw for each row would cost more than the row
                progress.advance(bar, pending)
                pending = 0

        yield advance
