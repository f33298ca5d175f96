"""What the laptop problems can ask and in which words: operations, clauses, operand ranges.

Constants and small pure functions. An operation is asked for by a clause ("multiply 12 by 34"); a
question of two clauses puts "the result" in place of the second one's first number. The numbers
always stand in the order in which the program takes them. Known wordings are trained on, unseen
ones only ever evaluated. Changing any of it makes other problems: it is fixed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

RESULT = "the result"
OPENING = "Please "
THEN = ", then "
FIRST = "first"
CONNECTING_WORDS = (OPENING, THEN, RESULT, FIRST)
"""Isolated by the tokenizer: one-call and two-call questions then share their clauses' tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One thing a single call of the tool can compute."""

    name: str
    num_operands: int
    symbol: str
    """What a call's reason calls it."""
    snippet: str
    """Python with `{a}` and `{b}` for the operands; prints the value."""
    compute: Callable[[int, int], int]
    """The value; the second operand is ignored where there is none."""


def digit_sum(number: int) -> int:
    return sum(int(digit) for digit in str(abs(number)))


OPERATIONS: Mapping[str, Operation] = {
    name: Operation(
        name=name, num_operands=num_operands, symbol=symbol, snippet=snippet, compute=compute
    )
    for name, num_operands, symbol, snippet, compute in (
        ("add", 2, "+", "print({a}+{b})", lambda a, b: a + b),
        ("sub", 2, "-", "print({a}-{b})", lambda a, b: a - b),
        ("mul", 2, "*", "print({a}*{b})", lambda a, b: a * b),
        ("mod", 2, "%", "print({a}%{b})", lambda a, b: a % b),
        ("gcd", 2, "gcd", "import math\nprint(math.gcd({a},{b}))", math.gcd),
        ("dsum", 1, "sum", "print(sum(map(int,str({a}))))", lambda a, _: digit_sum(a)),
        ("square", 1, "pow", "print(pow({a},2))", lambda a, _: a * a),
        ("half", 1, "//", "print({a}//2)", lambda a, _: a // 2),
    )
}
"""The program space of SFT. `square` and `half` are asked for nowhere: without them the count of
numbers alone would name the program of a digit sum."""

ONE_CALL = ("add", "sub", "mul", "mod", "gcd", "dsum")
TWO_CALL = (
    ("mul", "add"),
    ("mul", "sub"),
    ("mul", "mod"),
    ("mul", "dsum"),
    ("add", "mul"),
    ("add", "mod"),
    ("sub", "mul"),
)

KNOWN_CLAUSES: Mapping[str, tuple[str, str]] = {
    "add": ("add {a} and {b}", "find the sum of {a} and {b}"),
    "sub": ("decrease {a} by {b}", "find the difference of {a} and {b}"),
    "mul": ("multiply {a} by {b}", "find the product of {a} and {b}"),
    "mod": ("reduce {a} modulo {b}", "find the remainder of {a} by {b}"),
    "gcd": ("take the gcd of {a} and {b}", "find the common factor of {a} and {b}"),
    "dsum": ("take the digit sum of {a}", "add up the digits of {a}"),
}

UNSEEN_CLAUSES: Mapping[str, tuple[str, str]] = {
    "add": ("work out {a} plus {b}", "increase {a} by {b}"),
    "sub": ("work out {a} minus {b}", "lower {a} by {b}"),
    "mul": ("work out {a} times {b}", "scale {a} by {b}"),
    "mod": ("work out {a} mod {b}", "say what is left of {a} after division by {b}"),
    "gcd": (
        "give the largest number dividing {a} and {b}",
        "give the shared divisor of {a} and {b}",
    ),
    "dsum": ("sum all the digits of {a}", "say what the digits of {a} add up to"),
}


def draw_operands(operations: tuple[str, ...], generator: random.Random) -> tuple[int, ...]:
    """Numbers for one question, of two digits; a quarter of the one-call firsts have three.

    The first number of a difference or a remainder is more than twice the second, so that
    `a % b` never equals `a - b`. Other coincidences are for the caller to reject.
    """
    first = operations[0]
    wide = len(operations) == 1 and generator.random() < 0.25
    if first == "gcd":
        numbers: tuple[int, ...] = _multiples(wide, generator)
    elif first in ("sub", "mod"):
        a = generator.randint(100, 999) if wide else generator.randint(25, 99)
        numbers = (a, generator.randint(11, min((a - 1) // 2, 99)))
    else:
        a = generator.randint(100, 999) if wide else generator.randint(11, 99)
        numbers = (a, generator.randint(11, 99))
    if first == "dsum":
        numbers = numbers[:1]
    if len(operations) == 2 and OPERATIONS[operations[1]].num_operands == 2:
        reached = OPERATIONS[first].compute(numbers[0], numbers[1])
        highest = min(99, (reached - 1) // 2) if operations[1] in ("sub", "mod") else 99
        numbers = (*numbers, generator.randint(11, max(highest, 11)))
    return numbers


def _multiples(wide: bool, generator: random.Random) -> tuple[int, int]:
    """Two numbers with a common divisor above 1."""
    divisor = generator.randint(2, 12)
    low, high = (100, 999) if wide else (11, 99)
    a = generator.randint(-(-low // divisor), high // divisor) * divisor
    b = generator.randint(-(-11 // divisor), 99 // divisor) * divisor
    return a, b


def write_question(
    clauses: tuple[str, ...], operations: tuple[str, ...], numbers: tuple[int, ...]
) -> str:
    """The sentence that asks for `operations` on `numbers` in the given clauses."""
    num_first = OPERATIONS[operations[0]].num_operands
    a, b = (*numbers, 0)[:2]
    sentence = OPENING + clauses[0].format(a=a, b=b)
    if len(operations) == 2:
        sentence += THEN + clauses[1].format(a=RESULT, b=(*numbers, 0)[num_first])
    return sentence + "."
