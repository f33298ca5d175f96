"""Generated problem files with planted faults, and which row has which: for `benchmarks/curation.py`.

Clean rows come with neighbours that must not be taken for copies: the same words with other numbers, the
same numbers with other words, turns of phrase that the evaluation set has too. Deterministic by seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CLEAN = "clean"
NAMES = (
    "Ada",
    "Ben",
    "Cora",
    "Dev",
    "Ema",
    "Finn",
    "Gita",
    "Hugo",
    "Ines",
    "Jon",
    "Kira",
    "Liam",
    "Mona",
    "Nils",
    "Olga",
    "Pia",
    "Rosa",
    "Sam",
    "Tara",
    "Uma",
)
THINGS = (
    "apples",
    "pencils",
    "stamps",
    "marbles",
    "tickets",
    "coins",
    "shells",
    "cards",
    "books",
    "ribbons",
)
PLACES = ("market", "library", "station", "harbour", "museum", "garden", "theatre", "bakery")

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Problem:
    question: str
    answer: int


def problem(chance: random.Random, number: int) -> Problem:
    """A clean problem; `number` is different for each, and stands in the question."""
    a, b = chance.randint(2, 999), chance.randint(2, 999)
    name, other = chance.sample(NAMES, 2)
    thing, place = chance.choice(THINGS), chance.choice(PLACES)
    match chance.randrange(5):
        case 0:
            question = (
                f"{name} bought {number} {thing} at the {place} and {other} gave {a} more to the "
                f"collection. After that, {b} boxes were packed, each with all of the {thing}. How many "
                f"{thing} are in the boxes altogether?"
            )
            return Problem(question, (number + a) * b)
        case 1:
            question = (
                f"Let $f(x) = x^{{2}} + {a}x - {b}$. Compute $f({number})$ and give the remainder when "
                f"it is divided by {a + b}."
            )
            return Problem(question, (number**2 + a * number - b) % (a + b))
        case 2:
            question = (
                f"The ratio of {thing} to boxes at the {place} is ${a}:{b}$. If there are {number * b} "
                f"boxes, find the number of {thing}, where m and n are relatively prime positive "
                f"integers with $m \\leq {number}$."
            )
            return Problem(question, number * a)
        case 3:
            question = (
                f"What is the largest integer smaller than $\\dfrac{{{number}}}{{{a}}} + {b}$? Here "
                f"{name} writes ${{1,{a},{b}}}$ for the set of the known {thing}."
            )
            return Problem(question, -(-number // a) + b - 1)
        case _:
            question = (
                f"{name} has {number} {thing}. {other} has {a} fewer {thing} than {name} and sells "
                f"{b} of them at the {place}. How many {thing} does {other} have left?"
            )
            return Problem(question, number - a - b)


def neighbour(chance: random.Random, known: Problem, number: int) -> Problem:
    """A clean problem that differs from `known` in one number only."""
    digits = known.question.split()
    places = [i for i, word in enumerate(digits) if word.strip(".?,").isdigit()]
    if not places:
        return problem(chance, number)
    place = chance.choice(places)
    old = digits[place].strip(".?,")
    digits[place] = digits[place].replace(old, str(number))
    return Problem(" ".join(digits), known.answer)


def evaluation_questions(chance: random.Random, num: int) -> list[str]:
    """Questions in words of their own; some share a turn of phrase with the clean rows."""
    words = [f"{a}{b}" for a in SYLLABLES for b in SYLLABLES if a != b]
    questions = []
    for index in range(num):
        body = " ".join(chance.sample(words, 24))
        tail = (
            f"If the sum is $\\frac{{m}}{{n}}$, where m and n are relatively prime positive integers, "
            f"find $m + n + {index}$."
            if index % 2
            else f"Find the value of the {chance.choice(words)} after {index + 3} days."
        )
        questions.append(
            f"In the town of {body.capitalize()} there lived {index + 7} wise people. {tail}"
        )
    return questions


SYLLABLES = (
    "bel",
    "dor",
    "fin",
    "gar",
    "hal",
    "jor",
    "kel",
    "lum",
    "mar",
    "nor",
    "pel",
    "quin",
    "ras",
    "sol",
    "tam",
    "vor",
    "wex",
    "yor",
    "zan",
)
PHRASES = (
    "Here is a problem for my class: {}",
    "Hello there, {}",
    "{} I would be glad about any help.",
    "{} Good luck with it!",
    "My friend asked me this one, can you do it? {}",
    "{} Take your time.",
)


def reworded(chance: random.Random, question: str) -> str:
    """The same problem otherwise spelled, or with one phrase more."""
    kinds: tuple[Callable[[str], str], ...] = (
        lambda q: q.replace(" ", "  ", 3) + " ",
        lambda q: q.upper() if "\\" not in q and "$" not in q else q.replace("Let", "LET"),
        lambda q: q.rstrip(".?") + "!!" if q[-2].isalpha() else q.rstrip(".?"),
        lambda q: q.replace(", ", " ").replace(". ", ".\n\n"),
        lambda q: q.replace("$", "").replace("^{2}", "^2").replace("\\dfrac", "\\frac"),
        lambda q: "Please " + q[0].lower() + q[1:],
        lambda q: chance.choice(PHRASES).format(q),
        _misspelt,
    )
    for kind in chance.sample(kinds, len(kinds)):
        changed = kind(question)
        if " ".join(changed.lower().split()) != " ".join(question.lower().split()):
            return changed
    raise AssertionError(f"nothing to reword in {question!r}")


def _misspelt(question: str) -> str:
    for word in ("altogether", "remainder", "divided", "relatively", "largest", "bought"):
        if word in question and len(word) > 8:
            return question.replace(word, word[:3] + word[4:], 1)
    return question


def rows(num_rows: int, seed: int, evaluation: list[str]) -> Iterator[tuple[Row, str]]:
    """Rows with the rule that each must fall to, or `clean`."""
    chance = random.Random(seed)
    recent: list[Problem] = []
    number = 1000
    made = 0
    while made < num_rows:
        number += 1
        known = chance.choice(recent) if recent else None
        for row, rule in _some(chance, number, known, evaluation, recent):
            if made < num_rows:
                yield row | {"source": f"part-{made % 7}"}, rule
            made += 1
        del recent[:-5000]


def _some(
    chance: random.Random,
    number: int,
    known: Problem | None,
    evaluation: list[str],
    recent: list[Problem],
) -> Iterator[tuple[Row, str]]:
    new = problem(chance, number)
    kind = chance.random()
    if known is None or kind < 0.62:
        recent.append(new)
        yield _row(new.question, new.answer), CLEAN
    elif kind < 0.70:
        yield _row(neighbour(chance, known, 10**7 + number).question, known.answer), CLEAN
    elif kind < 0.82:
        yield (
            _row(known.question, chance.choice((known.answer, f"${known.answer}$"))),
            "exact_duplicate",
        )
    elif kind < 0.90:
        yield _row(reworded(chance, known.question), known.answer), "near_duplicate"
    elif kind < 0.91:
        yield _row(new.question, new.answer), "conflicting_answers"
        respelt = chance.choice((new.question, new.question.replace(" ", "  ")))
        yield _row(respelt, new.answer + 1), "conflicting_answers"
    elif kind < 0.92:
        yield _row(_contaminated(chance, new, number, evaluation), new.answer), "contaminated"
    else:
        yield _refused(chance, new)


def _contaminated(chance: random.Random, new: Problem, number: int, evaluation: list[str]) -> str:
    """A whole evaluation question, one with another beginning, or twelve of its words in a new one."""
    taken = chance.choice(evaluation)
    words = taken.split()
    match chance.randrange(3):
        case 0:
            return f"{taken} (Version {number}.)"
        case 1:
            return f"{new.question} {' '.join(words[6:])}"
        case _:
            start = chance.randint(4, 14)
            return f"{new.question} {' '.join(words[start : start + 12])}"


def _refused(chance: random.Random, new: Problem) -> tuple[Row, str]:
    huge = (10**60 + new.answer, f"10^{{{new.answer % 900 + 100}}}", "9" * chance.randint(51, 900))
    prose = ("It depends on the number of people who came.", "N/A", "both of them are equally fast")
    words = (f"\\frac{{{2 * abs(new.answer) + 1}}}{{2}}", f"{abs(new.answer)}.5", "x+1", "Tuesday")
    match chance.randrange(5):
        case 0:
            return _row(new.question, str(chance.choice(huge))), "too_large"
        case 1:
            return _row(new.question, chance.choice(prose)), "not_checkable"
        case 2:
            return _row(new.question, chance.choice(words)), "not_an_integer"
        case 3:
            return _row(new.question, new.answer, correct=chance.randint(0, 1)), "reference_policy"
        case _:
            return _row("   ", new.answer), "malformed"


def _row(question: str, answer: object, *, correct: int | None = None) -> Row:
    tries = {"num_correct": 2 + len(question) % 15 if correct is None else correct}
    return {"question": question, "answer": answer, **tries, "num_attempts": 16}


def write_rows(folder: Path, num_rows: int, seed: int) -> list[str]:
    """Writes `rows.jsonl` and `evaluation.jsonl`; returns the rule of each row, in order."""
    evaluation = evaluation_questions(random.Random(seed), 500)
    with (folder / "evaluation.jsonl").open("w") as file:
        for question in evaluation:
            print(json.dumps({"question": question, "answer": "1"}), file=file)
    rules = []
    with (folder / "rows.jsonl").open("w") as file:
        for row, rule in rows(num_rows, seed, evaluation):
            print(json.dumps(row), file=file)
            rules.append(rule)
    return rules
