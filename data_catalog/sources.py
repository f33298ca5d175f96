"""Problems from rows: published sets and the user's own, by layout or by named columns.

Reads a source row by row (`row_sources`), gives checked `Problem`s. Nothing is skipped in silence:
a row that cannot be read is an error that lists it by line before anything starts; a row whose
answer cannot be checked, or which contradicts another, is quarantined with its reason; repeated
rows are counted, and of them only the numbers are kept (DAPO-Math-17k repeats itself 100 times).
Deliberately does not decide which problems are good to train on: that is curation.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_catalog.layouts import (
    DEFAULT_ANSWER,
    DEFAULT_QUESTION,
    Layout,
    field,
    find_layout,
    question_text,
    top_level,
)
from data_catalog.row_sources import Row, RowSource, SourceError, open_rows
from rstar2.jsonl import is_unicode, listed, shorter
from rstar2.problems import problem_id
from rstar2.types import Problem

MAX_ANSWER_CHARACTERS = 200
MAX_ANSWER_WORDS = 2
"""Plain words in a checkable answer: `Tuesday`, `12 dollars`, `no solution`."""


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


def read_source(
    source: str | Path,
    *,
    question_column: str = DEFAULT_QUESTION,
    answer_column: str = DEFAULT_ANSWER,
) -> SourceProblems:
    """All problems of a source. A column `a.b` is the field `b` of the column `a`.

    Where the default columns are not there, the layout of a published set is looked for. Where the
    rows have a `source`, it is kept: `user/<source>`; else it is the file's name. Raises
    `SourceError` listing up to 20 malformed rows by line.
    """
    rows = open_rows(source)
    layout = choose_layout(rows, question_column, answer_column)
    malformed: list[str] = []
    found = _Found()
    for row in rows.read(wanted_columns(rows, layout)):
        problem = problem_of(row, rows.label, layout)
        if isinstance(problem, Problem):
            found.add(row.number, problem)
        else:
            malformed.append(f"  row {row.number}: {problem}")
    if malformed:
        raise SourceError(_malformed_message(rows.name, malformed, layout))
    if not found.first:
        raise SourceError(f"{rows.name} has no rows: expected at least one problem")
    return found.sorted_out()


def choose_layout(rows: RowSource, question_column: str, answer_column: str) -> Layout:
    """The named columns; under the default names, those of the published layout that fits."""
    named = (question_column, answer_column) != (DEFAULT_QUESTION, DEFAULT_ANSWER)
    layout = None if named else find_layout(rows.columns)
    layout = layout or Layout(question=question_column, answer=answer_column)
    for column in (layout.question, layout.answer) if rows.has_schema else ():
        if column not in rows.columns and top_level(column) not in rows.columns:
            raise SourceError(
                f"{rows.name}: no column {column!r}; seen: {', '.join(rows.columns)}. Name the right "
                "ones with --map question=COLUMN --map answer=COLUMN"
            )
    return layout


def wanted_columns(rows: RowSource, layout: Layout) -> list[str]:
    """The columns to read, of those that there are."""
    named = (layout.question, layout.answer, layout.origin)
    wanted = {name if name in rows.columns else top_level(name) for name in named}
    return sorted(wanted & set(rows.columns))


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


class _Found:
    """Problems as they come: the first row of each is kept, of the others only their numbers."""

    def __init__(self) -> None:
        self.first: dict[str, Problem] = {}
        self._rows: dict[str, array[int]] = {}
        self._reasons: dict[str, str] = {}

    def add(self, number: int, problem: Problem) -> None:
        known = self.first.setdefault(problem.problem_id, problem)
        self._rows.setdefault(known.problem_id, array("q")).append(number)
        reason = why_not_checkable(problem.answer)
        if reason is None and _plain(known.answer) != _plain(problem.answer):
            reason = "conflicting answers: rows with this question disagree"
        if reason is not None:
            self._reasons.setdefault(known.problem_id, reason)

    def sorted_out(self) -> SourceProblems:
        """A problem with two answers, or one not checkable, is quarantined as a whole."""
        problems = [p for p in self.first.values() if p.problem_id not in self._reasons]
        quarantined = [
            Quarantined(row=number, problem_id=name, reason=reason)
            for name, reason in self._reasons.items()
            for number in self._rows[name]
        ]
        num_rows = sum(map(len, self._rows.values()))
        return SourceProblems(
            problems=tuple(problems),
            quarantined=tuple(sorted(quarantined, key=lambda row: row.row)),
            num_duplicates=num_rows - len(quarantined) - len(problems),
        )


def _plain(answer: str) -> str:
    """Answers that differ only so are the same; `1,000` and `1000.0` are `1000`."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer.strip().strip("$").strip())
    number = re.fullmatch(r"([+-]?\d+)(?:\.0*)?", text)
    return str(int(number[1])) if number and len(text) < 4000 else text


def problem_of(row: Row, name: str, layout: Layout) -> Problem | str:
    """The problem, or what is wrong with the row."""
    if isinstance(row.value, str):
        return row.value
    question = question_text(field(row.value, layout.question))
    if not isinstance(question, str) or not question.strip():
        seen = _seen(row.value, question)
        return f"{layout.question!r} is {seen}: expected text that is not empty"
    answer = field(row.value, layout.answer)
    text = _answer_text(answer)
    if text is None:
        return f"{layout.answer!r} is {_seen(row.value, answer)}: expected text or a finite number"
    label = layout.label or field(row.value, layout.origin)
    label = label if isinstance(label, str) and label.strip() else name
    if not all(is_unicode(part) for part in (question, text, label)):
        return "holds a lone surrogate: expected valid Unicode"
    return Problem(
        problem_id=problem_id(question), question=question, answer=text, source=f"user/{label}"
    )


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


def _malformed_message(name: str, malformed: list[str], layout: Layout) -> str:
    lines = [f"{name}: {len(malformed)} malformed rows, nothing was started:", *listed(malformed)]
    lines.append(
        f"Expected rows with text in {layout.question!r} and text or a number in {layout.answer!r}. "
        "Correct or remove these rows, or name other columns: --map question=COLUMN --map "
        "answer=COLUMN."
    )
    return "\n".join(lines)
