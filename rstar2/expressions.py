"""Whether two mathematical expressions are equal: exactly, never nearly.

Reads LaTeX with math-verify's parser and compares with its own rules, because math-verify rounds
(it takes 0.333333 for 1/3 and 1/2006! for 1/2004!). Writes nothing. Loads sympy. May run for ever:
called only in a process that can be killed (`grading.grade_mathematics`).

Two scalars are equal when they are the same rational, or when they agree to many digits at every
one of several fixed points at which both are real (variables are real; an identity that holds
wherever both sides are real counts, so sqrt(1/n) is 1/sqrt(n)). Sets ignore order, tuples do not.
Equations are equal when they have the same solutions up to a constant factor.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import math_verify
import sympy
from sympy.core.relational import Relational

from rstar2.types import Verdict, VerdictKind

MAX_BITS = 100_000.0
"""Of any number that evaluating an answer may make; a tower of powers has more."""
DIGITS = 200
"""Decimal digits to which irrational values are compared."""
_LATEX = math_verify.LatexExtractionConfig(
    boxed_match_priority=0,
    # Without `units`: it takes the variable of `2 m` for a metre.
    normalization_config=math_verify.parser.NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all"
    ),
)
_UNFINISHED = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)
_POINTS = 6
# Sympy raises whatever its depths raise; which of these an input meets is not documented.
_SYMPY_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
_FLIPPED = {
    sympy.Lt: sympy.Gt,
    sympy.Gt: sympy.Lt,
    sympy.Le: sympy.Ge,
    sympy.Ge: sympy.Le,
    sympy.Eq: sympy.Eq,
    sympy.Ne: sympy.Ne,
}


def grade_expressions(gold: str, answer: str) -> Verdict:
    """The verdict on two cleaned texts. A gold answer that cannot be read is `undecided`."""
    if _is_too_large_text(answer) and not _is_too_large_text(gold):
        return _verdict(VerdictKind.INCORRECT, "the answer is too large to evaluate")
    gold_tree = parse(gold)
    if gold_tree is None or _num_bits(gold_tree) > MAX_BITS:
        return _verdict(VerdictKind.UNDECIDED, f"the gold answer cannot be checked: {gold[:60]!r}")
    answer_tree = parse(answer)
    if answer_tree is None:
        return _verdict(VerdictKind.INCORRECT, "the answer cannot be read as mathematics")
    if _num_bits(answer_tree) > MAX_BITS:
        return _verdict(VerdictKind.INCORRECT, "the answer is too large to evaluate")
    if _has(answer_tree, _UNFINISHED) and not _has(gold_tree, _UNFINISHED):
        return _verdict(VerdictKind.INCORRECT, "the answer is not worked out")
    try:
        is_same = same(gold_tree, answer_tree)
    except _SYMPY_ERRORS as error:
        name = type(error).__name__
        return _verdict(VerdictKind.UNDECIDED, f"the comparison failed: {name}: {str(error)[:80]}")
    if is_same:
        return _verdict(VerdictKind.CORRECT, "equal expressions")
    return _verdict(VerdictKind.INCORRECT, "different expressions")


def parse(text: str) -> sympy.Basic | sympy.MatrixBase | None:
    """The expression that a cleaned LaTeX text is, decimals exact; None where it is none."""
    logging.getLogger("math_verify.parser").setLevel(logging.ERROR)
    found = math_verify.parse(
        f"\\boxed{{{_to_latex(text)}}}",
        [_LATEX],
        fallback_mode="no_fallback",
        parsing_timeout=0,
    )
    return found[0] if found and isinstance(found[0], sympy.Basic | sympy.MatrixBase) else None


def same(gold: object, answer: object) -> bool:
    """Whether two parsed answers are equal, by the kind of thing they are."""
    gold, answer = _unwrap_assignments(gold, answer)
    if _is_relation(gold) or _is_relation(answer):
        return _same_relation(gold, answer)
    if isinstance(gold, sympy.MatrixBase) or isinstance(answer, sympy.MatrixBase):
        return _same_matrix(gold, answer)
    if isinstance(gold, sympy.Set | sympy.Tuple) or isinstance(answer, sympy.Set | sympy.Tuple):
        return _same_collection(gold, answer)
    return identical(gold, answer)


def identical(gold: object, answer: object) -> bool:
    """Whether two scalars are equal, exactly."""
    a, b = _evaluate(gold), _evaluate(answer)
    if not isinstance(a, sympy.Expr) or not isinstance(b, sympy.Expr):
        return bool(a == b)
    if a.has(sympy.nan, sympy.zoo, sympy.oo) or b.has(sympy.nan, sympy.zoo, sympy.oo):
        return bool(a == b) and not a.has(sympy.nan, sympy.zoo)
    if (a.is_Rational and b.is_Rational) or a == b:
        return bool(a == b)
    if a.is_zero or b.is_zero or not (a.free_symbols or b.free_symbols):
        return _same_constants(a, b)
    return _same_at_points(a, b)


def _same_constants(a: sympy.Expr, b: sympy.Expr) -> bool:
    if a.free_symbols or b.free_symbols:
        return bool(sympy.simplify(a - b) == 0)
    values = a.evalf(DIGITS), b.evalf(DIGITS)
    if max(map(abs, values)) < sympy.Float(10) ** -(DIGITS // 2):
        return bool((a - b).equals(0))
    return _close(*values)


def _same_at_points(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Agreement at fixed points. Points at which both are real decide; if none is, all decide."""
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    pairs = [_values(a, b, point) for point in _points(symbols)]
    pairs = [pair for pair in pairs if pair is not None]
    if len(pairs) < 2:
        return bool(sympy.simplify(a - b) == 0)
    real = [pair for pair in pairs if all(_is_real(value) for value in pair)]
    return all(_close(*pair) for pair in real or pairs)


def _points(symbols: Sequence[sympy.Symbol]) -> list[dict[sympy.Symbol, sympy.Rational]]:
    """Small fixed rationals of both signs, all different."""
    points = []
    for number in range(_POINTS):
        sign = -1 if number % 3 == 2 else 1
        values = {
            symbol: sign * sympy.Rational(17 + 10 * number + 7 * index, 13 + 4 * number)
            for index, symbol in enumerate(symbols)
        }
        points.append(values)
    return points


def _values(
    a: sympy.Expr, b: sympy.Expr, point: dict[sympy.Symbol, sympy.Rational]
) -> tuple[sympy.Expr, sympy.Expr] | None:
    values = tuple(expression.subs(point).evalf(60) for expression in (a, b))
    if any(value.free_symbols or value.has(sympy.nan, sympy.zoo, sympy.oo) for value in values):
        return None
    return values[0], values[1]


def _is_real(value: sympy.Expr) -> bool:
    real, imaginary = value.as_real_imag()
    return bool(abs(imaginary) <= abs(real) * sympy.Float(10) ** -40)


def _close(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Equal to all the digits that both carry, but for the last tenth."""
    digits = DIGITS if min(_precision(a), _precision(b)) > 3 * DIGITS else 60
    scale = max(abs(a), abs(b))
    return bool(abs(a - b) <= scale * sympy.Float(10, 10) ** -(digits * 9 // 10))


def _precision(value: sympy.Expr) -> int:
    """Bits of the least exact number in a value."""
    return min((number._prec for number in value.atoms(sympy.Float)), default=4 * DIGITS)


def _same_collection(gold: object, answer: object) -> bool:
    gold, answer = _as_tuple_like(gold, answer), _as_tuple_like(answer, gold)
    if isinstance(gold, sympy.Tuple) and isinstance(answer, sympy.Tuple):
        return len(gold) == len(answer) and all(map(same, gold.args, answer.args))
    if isinstance(gold, sympy.Tuple) or isinstance(answer, sympy.Tuple):
        return False
    if isinstance(gold, sympy.Interval) and isinstance(answer, sympy.Interval):
        return (
            (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
            and identical(gold.start, answer.start)
            and identical(gold.end, answer.end)
        )
    gold, answer = _as_set(gold), _as_set(answer)
    if isinstance(gold, sympy.FiniteSet) and isinstance(answer, sympy.FiniteSet):
        return _same_elements(gold.args, answer.args)
    if isinstance(gold, sympy.Union) and isinstance(answer, sympy.Union):
        return _same_elements(gold.args, answer.args)
    return bool(gold == answer)


def _same_elements(gold: Sequence[object], answer: Sequence[object]) -> bool:
    """Whether the elements can be paired off; each is used once."""
    left = list(answer)
    for element in gold:
        partner = next((other for other in left if same(element, other)), None)
        if partner is None:
            return False
        left.remove(partner)
    return not left


def _as_tuple_like(value: object, other: object) -> object:
    """`(1, 2)` is read as an open interval where it can be one; beside a tuple it is a tuple."""
    if isinstance(value, sympy.Interval) and isinstance(other, sympy.Tuple) and value.is_open:
        return sympy.Tuple(value.start, value.end)
    return value


def _as_set(value: object) -> object:
    return value if isinstance(value, sympy.Set) else sympy.FiniteSet(value)


def _same_matrix(gold: object, answer: object) -> bool:
    if not isinstance(gold, sympy.MatrixBase) or not isinstance(answer, sympy.MatrixBase):
        return False
    return gold.shape == answer.shape and all(map(identical, gold.flat(), answer.flat()))


def _is_relation(value: object) -> bool:
    return isinstance(value, Relational | sympy.And | sympy.Or)


def _is_assignment(value: object) -> bool:
    """`x = 5`, `f(x) = x + 1`, or a true statement about numbers (`2 + 3 = 5`)."""
    if not isinstance(value, sympy.Eq):
        return False
    if isinstance(value.lhs, sympy.Symbol) or value.lhs.is_Function:
        return True
    return not value.lhs.free_symbols and same(value.lhs, value.rhs)


def _unwrap_assignments(gold: object, answer: object) -> tuple[object, object]:
    """The right side of an assignment where the other is none: `x = 5` is 5."""
    if _is_assignment(answer) and not _is_relation(gold):
        return gold, answer.rhs  # type: ignore[attr-defined]
    if _is_assignment(gold) and not _is_relation(answer):
        return gold.rhs, answer  # type: ignore[attr-defined]
    return gold, answer


def _same_relation(gold: object, answer: object) -> bool:
    if isinstance(gold, Relational) and isinstance(answer, Relational):
        if isinstance(gold.rhs, sympy.Set) or isinstance(answer.rhs, sympy.Set):
            return bool(gold.lhs == answer.lhs) and same(gold.rhs, answer.rhs)
        return _proportional(gold, answer)
    sets = [_solution_set(value) for value in (gold, answer)]
    return None not in sets and _same_collection(*sets)


def _solution_set(value: object) -> object:
    """Of an inequality in one variable; a set is its own."""
    if isinstance(value, sympy.Set):
        return value
    if not _is_relation(value) or len(value.free_symbols) != 1:  # type: ignore[attr-defined]
        return None
    # math-verify's own `And` keeps the order of a chain and knows no sets.
    parts = value.args if isinstance(value, sympy.And) else [value]
    return sympy.Intersection(*[part.as_set() for part in parts])  # type: ignore[attr-defined]


def _proportional(gold: Relational, answer: Relational) -> bool:
    """Whether the differences of both sides have a constant ratio of the right sign."""
    a, b = _evaluate(gold.lhs - gold.rhs), _evaluate(answer.lhs - answer.rhs)
    if isinstance(gold, sympy.Eq | sympy.Ne):
        a, b = (sympy.together(side).as_numer_denom()[0] for side in (a, b))
    if a.is_zero or b.is_zero or a.free_symbols != b.free_symbols:
        return False
    symbols = sorted(a.free_symbols, key=str)
    pairs = [_values(a, b, point) for point in _points(symbols)]
    ratios = [(x / y).evalf(50) for x, y in filter(None, pairs) if y != 0]
    if len(ratios) < 2 or not all(_close(ratio, ratios[0]) for ratio in ratios):
        return False
    expected = type(gold) if ratios[0].is_positive else _FLIPPED[type(gold)]
    return isinstance(gold, sympy.Eq | sympy.Ne) or type(answer) is expected


def _evaluate(value: object) -> object:
    """Lazy parts worked out, and math-verify's symbol for the imaginary unit made one."""
    if not isinstance(value, sympy.Basic):
        return value
    value = value.replace(sympy.UnevaluatedExpr, lambda inner: inner)
    value = value.subs(sympy.Symbol("i", real=False), sympy.I)
    return value.doit()


def _has(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, sympy.Basic) and value.has(*kinds)


def _num_bits(value: object) -> float:
    """An upper bound, in bits, of the numbers that evaluating an expression makes."""
    if isinstance(value, sympy.MatrixBase):
        return max(map(_num_bits, value.flat()), default=1.0)
    if not isinstance(value, sympy.Basic):
        return 1.0
    if isinstance(value, sympy.Rational):
        return float(max(abs(value.p), value.q).bit_length())
    inner = [_num_bits(argument) for argument in value.args]
    if isinstance(value, sympy.Add | sympy.Mul):
        return sum(inner)
    if isinstance(value, sympy.Pow):
        return max(inner[1], inner[0] * _size(value.exp, inner[1]))
    if isinstance(value, sympy.exp | sympy.factorial | sympy.gamma | sympy.factorial2):
        size = _size(value.args[0], inner[0])
        return size * max(inner[0], 1.5)
    if isinstance(value, sympy.binomial):
        return _size(value.args[0], inner[0])
    return max(inner, default=4.0)


def _size(value: sympy.Basic, bits: float) -> float:
    """An upper bound of the absolute value of an expression of so many bits."""
    if isinstance(value, sympy.Rational):
        return max(1.0, float(min(abs(value), 10**18)))
    return 2.0 ** min(bits, 60.0)


def _is_too_large_text(text: str) -> bool:
    """Binomials are worked out while parsing, so their size is judged on the text."""
    return "binom" in text and re.search(r"\d{5}|[\^!]", text) is not None


def _to_latex(text: str) -> str:
    """Plain-text spellings (sqrt(2), pi, 2**3, a*b) as LaTeX, and decimals as exact fractions."""
    text = text.replace("**", "^").replace("*", r"\cdot ")
    text = re.sub(r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi ", text)
    text = re.sub(r"(?<![\\A-Za-z])sqrt(?![A-Za-z])", r"\\sqrt", text)
    text = _bracket_to_brace(text, r"\sqrt")
    text = _bracket_to_brace(text, "^")
    return re.sub(r"(?<![\d.])(\d*)\.(\d+)", _exact_decimal, text)


def _exact_decimal(match: re.Match[str]) -> str:
    whole, decimals = match.groups()
    return rf"\frac{{{int(whole + decimals)}}}{{1{'0' * len(decimals)}}}"


def _bracket_to_brace(text: str, command: str) -> str:
    """`\\sqrt(x)` as `\\sqrt{x}`: the parser knows braces only."""
    start = text.find(command + "(")
    while start >= 0:
        opening = start + len(command)
        depth = 0
        for index in range(opening, len(text)):
            depth += (text[index] == "(") - (text[index] == ")")
            if depth == 0:
                text = f"{text[:opening]}{{{text[opening + 1 : index]}}}{text[index + 1 :]}"
                break
        start = text.find(command + "(", opening)
    return text


def _verdict(kind: VerdictKind, reason: str) -> Verdict:
    return Verdict(kind=kind, reason=reason)
