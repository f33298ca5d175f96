"""Which arithmetic question a text is: the way back from `write_question`, for tests that check it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from rstar2.arithmetic import Question
from rstar2.arithmetic_wordings import (
    KNOWN_CLAUSES,
    ONE_CALL,
    OPERATIONS,
    TWO_CALL,
    UNSEEN_CLAUSES,
    write_question,
)


def parse_question(text: str) -> Question:
    """The question behind a text that `draw_question` wrote; `ValueError` for any other."""
    words = text.strip(".").replace(",", " ").split()
    numbers = tuple(int(word) for word in words if word.isdigit())
    for operations in [(name,) for name in ONE_CALL] + list(TWO_CALL):
        for clauses in (KNOWN_CLAUSES, UNSEEN_CLAUSES):
            if text in _texts(operations, numbers, clauses):
                return Question(operations=operations, numbers=numbers, text=text)
    raise ValueError(f"not one of the arithmetic questions: {text!r}")


def _texts(
    operations: tuple[str, ...],
    numbers: tuple[int, ...],
    clauses: Mapping[str, tuple[str, str]],
) -> Iterator[str]:
    num_operands = 1 + sum(OPERATIONS[name].num_operands - 1 for name in operations)
    if len(numbers) == num_operands:
        for wording in itertools.product(*(clauses[name] for name in operations)):
            yield write_question(wording, operations, numbers)
