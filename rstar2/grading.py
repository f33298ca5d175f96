"""From the text of a rollout to an answer, and from an answer to a verdict.

Reads strings, returns values; writes nothing. What can be decided on the text alone is decided
here, without sympy (`grade_exact`); the rest needs mathematics (`grade_mathematics`), which may
run for ever and is therefore called only in a process that can be killed from outside.

`undecided` is for what is not known: a gold answer that cannot be read, a check that crashed or met
its deadline. An answer that cannot be read is wrong, not unknown.
"""

from __future__ import annotations

import re
from typing import Literal

from rstar2 import answers
from rstar2.types import Verdict, VerdictKind

_ANSWER_TAGS = re.compile(r"</?answer>")
_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def extract_answer(text: str, answer_tags: Literal["required", "optional"]) -> str | None:
    """Inside of the last `\\boxed{}` in the last `<answer>` block, or None.

    A block is an `<answer>` and the next `</answer>` with no other `<answer>` between. `optional`:
    a text without any `<answer>` is read as a whole. A last box that is not closed is no answer.
    """
    blocks = _answer_blocks(text)
    if blocks:
        return _last_box(text[slice(*blocks[-1])])
    if answer_tags == "optional" and "<answer>" not in text:
        return _last_box(text)
    return None


def count_answer_tags(text: str) -> int:
    """Number of `<answer>` tags: those of p_format (report E5).

    One that is named in prose or never closed counts: it is a tag to whoever reads the rollout.
    """
    return text.count("<answer>")


def grade_exact(gold: str, answer: str) -> Verdict | None:
    """The verdict where text and exact numbers decide it; None where it needs mathematics."""
    if gold.strip() and gold.strip() == answer.strip():
        return _correct("equal as written")
    if len(answer) > 4 * answers.MAX_CHARS:
        return _incorrect(f"the answer has {len(answer)} characters")
    gold_flat = answers.flatten(answers.clean(gold))
    answer_flat = answers.flatten(answers.clean(answer))
    if gold_flat and gold_flat == answer_flat:
        return _correct("equal after normalisation")
    if not gold_flat:
        return _undecided("the gold answer is empty")
    reason = answers.fault(answer_flat)
    if reason is not None:
        return _incorrect(reason)
    return _grade_text(gold_flat, answer_flat) or _grade_number(gold_flat, answer_flat)


def grade_mathematics(gold: str, answer: str) -> Verdict:
    """The verdict by exact or symbolic equality. May hang: call it in a killable process only."""
    verdict = grade_exact(gold, answer)
    if verdict is not None:
        return verdict
    gold, answer = answers.clean(gold), answers.clean(answer)
    (gold, gold_unit), (answer, unit) = answers.split_unit(gold), answers.split_unit(answer)
    if unit and gold_unit and unit != gold_unit:
        return _incorrect(f"the unit is {unit}, expected {gold_unit}")
    return _grade_expressions(gold, answer)


def _grade_expressions(gold: str, answer: str) -> Verdict:
    # They load sympy and math-verify: half a second that the exact path must not pay.
    from rstar2 import equality, expressions

    if expressions.is_too_large_text(answer) and not expressions.is_too_large_text(gold):
        return _incorrect("the answer is too large to evaluate")
    gold_tree, answer_tree = expressions.parse(gold), expressions.parse(answer)
    if gold_tree is None or expressions.is_too_large(gold_tree):
        return _undecided(f"the gold answer cannot be checked: {gold[:60]!r}")
    if answer_tree is None:
        return _incorrect("the answer cannot be read as mathematics")
    if expressions.is_too_large(answer_tree):
        return _incorrect("the answer is too large to evaluate")
    gold_repeats = expressions.num_repeats(gold, gold_tree)
    repeats = expressions.num_repeats(answer, answer_tree)
    if repeats != gold_repeats:
        return _incorrect(f"the list repeats {repeats} of its elements, expected {gold_repeats}")
    if expressions.is_unfinished(answer_tree) and not expressions.is_unfinished(gold_tree):
        return _incorrect("the answer is not worked out")
    try:
        is_same = equality.same(gold_tree, answer_tree)
    except equality.SYMPY_ERRORS as error:
        return _undecided(f"the comparison failed: {type(error).__name__}: {str(error)[:80]}")
    return _correct("equal expressions") if is_same else _incorrect("different expressions")


def _grade_text(gold: str, answer: str) -> Verdict | None:
    """Multiple choice and words."""
    if re.fullmatch("[A-Z]", gold):
        choice = re.fullmatch(r"\(?([A-Za-z])[).]?", answer)
        if choice is not None:
            same = choice[1] == gold
            return _correct("same choice") if same else _incorrect(f"choice {choice[1]}")
    gold_words, answer_words = answers.words(gold), answers.words(answer)
    if re.fullmatch("[A-Za-z ]+", gold) and (gold_words or gold.lower() == "no"):
        same = gold.lower() == answer.lower()
        return _correct("same words") if same else _incorrect(f"expected the words {gold!r}")
    extra = [word for word in answer_words if word not in gold_words]
    if extra:
        return _incorrect(f"the box holds words: {extra[0]!r}")
    return None


def _grade_number(gold: str, answer: str) -> Verdict | None:
    expected = answers.read_number(gold, with_any_unit=True)
    number = answers.read_number(answer, with_any_unit=True)
    if expected is None or number is None:
        return None
    if answers.same_number(expected, number):
        return _correct("equal numbers")
    return _incorrect(f"{answer[:40]} is not {gold[:40]}")


def _answer_blocks(text: str) -> list[tuple[int, int]]:
    """Insides of the answer blocks, as (start, stop)."""
    blocks: list[tuple[int, int]] = []
    start: int | None = None
    for match in _ANSWER_TAGS.finditer(text):
        if match.group() == "<answer>":
            start = match.end()
        elif start is not None:
            blocks.append((start, match.start()))
            start = None
    return blocks


def _last_box(text: str) -> str | None:
    """Inside of the last `\\boxed{}`, braces balanced; None without one or where it is not closed."""
    start = max((opening.end() for opening in _BOX.finditer(text)), default=None)
    if start is None:
        return None
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return text[start : match.start()].strip()
    return None


def _correct(reason: str) -> Verdict:
    return Verdict(kind=VerdictKind.CORRECT, reason=reason)


def _incorrect(reason: str) -> Verdict:
    return Verdict(kind=VerdictKind.INCORRECT, reason=reason)


def _undecided(reason: str) -> Verdict:
    return Verdict(kind=VerdictKind.UNDECIDED, reason=reason)
