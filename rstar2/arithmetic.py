"""The laptop problems: generated questions with one integer answer, solved through the Python tool.

Pure and deterministic: nothing is read or written. Some problems need one call, some two in
sequence (the second works on what the first printed). No other program of the space that SFT
teaches gives the right answer: such draws are rejected here, and a test runs all programs. The hash
of a question decides whether it may ever be trained on. Does not make SFT data (`sft_data`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import Literal

from rstar2.arithmetic_wordings import (
    KNOWN_CLAUSES,
    ONE_CALL,
    OPENING,
    OPERATIONS,
    RESULT,
    THEN,
    TWO_CALL,
    UNSEEN_CLAUSES,
    draw_operands,
    write_question,
)
from rstar2.problems import (
    exact_share,
    has_prefix,
    is_held_out,
    largest_remainder,
    problem_id,
)
from rstar2.types import Problem

Split = Literal["train", "held-out", "unseen"]

MAX_REPEATS = 1000
"""So many questions in a row that were drawn before: the kind is exhausted."""


class ArithmeticProblemsError(ValueError):
    """What was asked for cannot be generated. Names the kind, what was seen and what is expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A problem with what its text was made from."""

    operations: tuple[str, ...]
    """One or two names from `OPERATIONS`, in the order of the calls."""
    numbers: tuple[int, ...]
    """As they stand in the text."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One way through the tool: the operations called, and the last value printed."""

    operations: tuple[str, ...]
    operands: tuple[int, ...]
    """Of the first call, in its order."""
    value: int


def generate_problems(
    split: Split, num_problems: int, shares: Mapping[str, float], seed: int
) -> tuple[Problem, ...]:
    """`num_problems` distinct problems of a split, in a shuffled order that the seed fixes.

    `shares` gives the share by source prefix (`arithmetic/two-call`, `arithmetic/one-call/gcd`),
    with `arithmetic/` for every split; the kinds it does not name fill up with one-call problems.
    Within a share the kinds alternate. Raises `ArithmeticProblemsError` where there is no such kind,
    or one has too few questions.
    """
    generator = random.Random(f"arithmetic/{split}/{seed}")
    chosen: dict[str, Problem] = {}
    for operations, num in _kinds(num_problems, shares):
        fresh = _distinct(operations, split, generator, num, set(chosen))
        chosen |= {problem.problem_id: problem for problem in fresh}
    problems = list(chosen.values())
    generator.shuffle(problems)
    return tuple(problems)


def check_shares(shares: Mapping[str, float]) -> None:
    """Raises `ArithmeticProblemsError` for a share of problems that there are none of."""
    _kinds(0, shares)


def draw_question(operations: tuple[str, ...], split: Split, generator: random.Random) -> Question:
    """One question of the split that only `operations` answer."""
    clauses = UNSEEN_CLAUSES if split == "unseen" else KNOWN_CLAUSES
    while True:
        wording = tuple(generator.choice(clauses[name]) for name in operations)
        numbers = draw_operands(operations, generator)
        text = write_question(wording, operations, numbers)
        if is_held_out(problem_id(text)) == (split == "train"):
            continue
        question = Question(operations=operations, numbers=numbers, text=text)
        if _is_unambiguous(question):
            return question


def to_problem(question: Question, split: Split) -> Problem:
    """The problem, with its answer and its kind as source."""
    return Problem(
        problem_id=problem_id(question.text),
        question=question.text,
        answer=str(answer(question)),
        source=_source(question.operations, split),
    )


def clause_words(question: Question, index: int) -> str:
    """The words of a clause before its first number: `multiply ` of `multiply 12 by 34`."""
    clause = question.text.removeprefix(OPENING).split(THEN)[index]
    return re.split(rf"\d|{RESULT}", clause)[0]


def answer(question: Question) -> int:
    """What the question's own operations give."""
    return _run(question.operations, question.numbers)


def candidate_programs(question: Question) -> Iterator[Program]:
    """Every program of the space that SFT teaches, on the question's numbers.

    One call: any operation on any of the numbers, in either order. Two calls: any operation on the
    numbers of a split, then any on its value and the number that is left.
    """
    for name, op in OPERATIONS.items():
        for operands in permutations(question.numbers, op.num_operands):
            value = op.compute(operands[0], operands[-1])
            yield Program(operations=(name,), operands=operands, value=value)
    for operands, left in call_splits(question):
        for first in (op for op in OPERATIONS.values() if op.num_operands == len(operands)):
            value = first.compute(operands[0], operands[-1])
            for second in OPERATIONS.values():
                if second.num_operands == len(left) + 1:
                    yield Program(
                        operations=(first.name, second.name),
                        operands=operands,
                        value=second.compute(value, (*left, 0)[0]),
                    )


def call_splits(question: Question) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ways to give a question's numbers to two calls: (the first call's, what is left).

    The one that is meant comes first; of one clause it is the only one. A call takes at most two
    numbers, the second one the value of the first and at most one more.
    """
    numbers = question.numbers
    if len(question.operations) == 1:
        return [(numbers, ())]
    if len(numbers) == 2:
        return [(numbers, ()), (numbers[:1], numbers[1:]), (numbers[1:], numbers[:1])]
    a, b, c = numbers
    return [((a, b), (c,)), ((a, c), (b,)), ((b, c), (a,))]


def is_own_program(question: Question, program: Program) -> bool:
    """Whether it is the question's own way: its operations, the first on its first numbers."""
    num_first = OPERATIONS[question.operations[0]].num_operands
    return program.operations[: len(question.operations)] == question.operations and sorted(
        program.operands
    ) == sorted(question.numbers[:num_first])


def _kinds(num_problems: int, shares: Mapping[str, float]) -> list[tuple[tuple[str, ...], int]]:
    """How many problems of each kind: shares first, the rest one-call; alternating within each.

    A kind belongs to the longest prefix that fits, as in `draw_problems`.
    """
    kinds: list[tuple[str, ...]] = [*((name,) for name in ONE_CALL), *TWO_CALL]
    sources = {kind: _source(kind, "train") for kind in kinds}
    members: dict[str, list[tuple[str, ...]]] = {prefix: [] for prefix in shares}
    unnamed: list[tuple[str, ...]] = []
    for kind in kinds:
        fitting = [prefix for prefix in shares if has_prefix(sources[kind], prefix)]
        (members[max(fitting, key=len)] if fitting else unnamed).append(kind)
    if empty := [prefix for prefix, group in members.items() if not group]:
        raise ArithmeticProblemsError(
            f"share {empty[0]!r}: no kind of problem has this source prefix, or longer ones have "
            f"them all; expected one of {', '.join(sorted(sources.values()))} or a beginning of "
            "these"
        )
    weights = [exact_share(share) for share in shares.values()]
    weights.append(max(Fraction(0), 1 - sum(weights, Fraction(0))))
    total = sum(weights, Fraction(0))
    parts = largest_remainder([weight / total for weight in weights], num_problems)
    groups = [*members.values(), [kind for kind in unnamed if len(kind) == 1] or unnamed or kinds]
    counts = dict.fromkeys(kinds, 0)
    for group, num in zip(groups, parts, strict=True):
        for i in range(num):
            counts[group[i % len(group)]] += 1
    return [(kind, num) for kind, num in counts.items() if num]


def _distinct(
    operations: tuple[str, ...],
    split: Split,
    generator: random.Random,
    num: int,
    taken: set[str],
) -> list[Problem]:
    found: list[Problem] = []
    num_repeats = 0
    while num_repeats < MAX_REPEATS:
        if len(found) == num:
            return found
        problem = to_problem(draw_question(operations, split, generator), split)
        num_repeats += 1
        if problem.problem_id not in taken:
            num_repeats = 0
            taken.add(problem.problem_id)
            found.append(problem)
    raise ArithmeticProblemsError(
        f"{_source(operations, split)} has only about {len(found)} distinct questions in the split "
        f"{split!r}, {num} were asked for: lower num_problems or this kind's share"
    )


def _is_unambiguous(question: Question) -> bool:
    """Whether its answer is positive and nothing but its own way gives it.

    A needless call after the question's own ones makes no other way.
    """
    right = answer(question)
    return right > 0 and all(
        is_own_program(question, program)
        for program in candidate_programs(question)
        if program.value == right
    )


def _run(operations: tuple[str, ...], numbers: tuple[int, ...]) -> int:
    first = OPERATIONS[operations[0]]
    value = first.compute(numbers[0], (*numbers, 0)[1])
    for name in operations[1:]:
        value = OPERATIONS[name].compute(value, (*numbers, 0)[first.num_operands])
    return value


def _source(operations: tuple[str, ...], split: Split) -> str:
    root = "arithmetic-unseen" if split == "unseen" else "arithmetic"
    kind = "one-call" if len(operations) == 1 else "two-call"
    return f"{root}/{kind}/{'>'.join(operations)}"
