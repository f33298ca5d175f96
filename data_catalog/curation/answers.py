"""Gold answers as the curation judges them: which are the same, and which cannot be trained on.

Reads the text of an answer, says in which of the rules `too_large`, `not_checkable` and
`not_an_integer` it falls. Pure functions; evaluates nothing, so a tower of powers costs nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from data_catalog.sources import why_not_checkable
from rstar2 import answers
from rstar2.curation import CurationConfig
from rstar2.jsonl import shorter

_PLAIN_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
_INTEGER = re.compile(r"([+-]?) ?(\d{1,3}(?:[, ]\d{3})+|\d+)(?:\.0*)?", re.ASCII)
_BOXED = re.compile(r"\\boxed ?\{(.*)\}", re.DOTALL)
_SCIENTIFIC = re.compile(r"[\d.]+ ?(?:e|\\times ?10\^|\\cdot ?10\^)\{?\+?(\d+)\}?", re.IGNORECASE)
_POWER = re.compile(r"(\d+) ?(?:\^|\*\*) ?[{(]? ?(\d+)")
_FACTORIAL = re.compile(r"(\d+) ?!")
_TOWER = re.compile(r"\^ ?\{?[^{}^]*\^")
MAX_FORMULA = 200
"""Characters of an answer in which powers are looked for; the patterns are quadratic in it."""
_HUGE = 10**12
"""Digits that stand for any larger number of them."""


@dataclass(frozen=True, slots=True)
class GoldAnswer:
    text: str
    """In plain digits where it is an integer, else as it was."""
    key: str
    """Equal exactly for answers that say the same."""
    rule: str | None
    """The rule that drops it, or None."""
    reason: str


def judge_answer(text: str, config: CurationConfig) -> GoldAnswer:
    """What an answer says, and which rule drops it: the first that applies."""
    if _PLAIN_INTEGER.fullmatch(text) and len(text) <= config.max_answer_digits:
        return GoldAnswer(text, text, None, "")
    boxed = _BOXED.fullmatch(text.strip())
    flat = answers.flatten(answers.clean((boxed[1] if boxed else text)[: answers.MAX_CHARS]))
    integer = _INTEGER.fullmatch(flat)
    digits = max(_num_digits(flat), answers.longest_digit_run(text))
    if digits > config.max_answer_digits and (integer or _is_number_like(flat)):
        return GoldAnswer(text, text, "too_large", _too_large_reason(digits, config))
    if integer:
        plain = _plain(integer)
        return GoldAnswer(plain, plain, None, "")
    reason = why_not_checkable(text)
    if reason is not None:
        return GoldAnswer(text, flat or text, "not_checkable", reason.removeprefix(_PREFIX))
    key = _key(flat) or text
    if config.integer_answers:
        return GoldAnswer(text, key, "not_an_integer", f"the answer is {shorter(text)}")
    return GoldAnswer(text, key, None, "")


_PREFIX = "answer not checkable: "


def _plain(integer: re.Match[str]) -> str:
    digits = re.sub("[, ]", "", integer[2]).lstrip("0") or "0"
    return f"-{digits}" if integer[1] == "-" and digits != "0" else digits


def _key(flat: str) -> str:
    """One key for the spellings of a number: 1/2 and 0.5; 12 and 12 apples."""
    number = answers.read_number(flat, with_any_unit=True)
    if number is None:
        return flat.lower()
    base = f" {number.unit}" if number.unit.startswith("base") else ""
    return f"{number.value}{'%' if number.is_percent else ''}{base}"


def _num_digits(flat: str) -> int:
    """Digits of the largest number that an answer writes or asks for: 10^{300} has 301."""
    digits = answers.longest_digit_run(flat)
    if len(flat) > MAX_FORMULA:
        return digits
    for match in _SCIENTIFIC.finditer(flat):
        digits = max(digits, _bounded(match[1]) + 1)
    for match in _POWER.finditer(flat):
        base, exponent = _bounded(match[1]), _bounded(match[2])
        digits = max(digits, int(exponent * math.log10(max(base, 1))) + 1)
    for match in _FACTORIAL.finditer(flat):
        digits = max(digits, int(math.lgamma(_bounded(match[1]) + 1) / math.log(10)) + 1)
    return _HUGE if _TOWER.search(flat) else min(digits, _HUGE)


def _bounded(digits: str) -> int:
    return int(digits) if len(digits) <= 12 else _HUGE


def _is_number_like(flat: str) -> bool:
    """No prose: digits, symbols, and words of mathematics at most."""
    return not answers.words(flat)


def _too_large_reason(digits: int, config: CurationConfig) -> str:
    many = f"{digits:,}" if digits < _HUGE else "more than a trillion"
    return f"a number of {many} digits, more than {config.max_answer_digits}"
