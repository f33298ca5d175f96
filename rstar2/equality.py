"""Whether two mathematical expressions are equal: exactly, never nearly.

Reads sympy expressions, returns a boolean; writes nothing. The comparison is ours because
math-verify's rounds (it takes 0.333333 for 1/3 and 1/2006! for 1/2004!). May run for ever and may
raise what sympy raises (`SYMPY_ERRORS`): called only in a process that can be killed.

Two scalars are equal when they are the same rational, or when they agree to many digits at every
one of several fixed points at which both are real (variables are real; an identity that holds
wherever both sides are real counts, so sqrt(1/n) is 1/sqrt(n)). Sets ignore order, tuples do not.
Equations are equal when they differ by a constant factor only, denominators cleared.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from mpmath.libmp.libhyper import NoConvergence  # type: ignore[import-untyped]
from sympy.core.relational import Relational
from sympy.polys.polyerrors import BasePolynomialError

from rstar2.expressions import Tree

DIGITS = 200
"""Decimal digits to which irrational constants are compared; 60 where there are variables."""
SYMPY_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    BasePolynomialError,
    NoConvergence,
)
"""Sympy raises whatever its depths raise; which of these an input meets is not documented."""
_POINTS = 6
_TINY = sympy.Float(10) ** -40
"""Values below may be zero in disguise: only a proof decides."""
_FLIPPED = {
    sympy.Lt: sympy.Gt,
    sympy.Gt: sympy.Lt,
    sympy.Le: sympy.Ge,
    sympy.Ge: sympy.Le,
    sympy.Eq: sympy.Eq,
    sympy.Ne: sympy.Ne,
}


def same(gold: Tree, answer: Tree) -> bool:
    """Whether two parsed answers are equal, by the kind of thing they are."""
    gold, answer = _unwrap_assignments(gold, answer)
    if _is_relation(gold) or _is_relation(answer):
        return _same_relation(gold, answer)
    if isinstance(gold, sympy.MatrixBase) or isinstance(answer, sympy.MatrixBase):
        return _same_matrix(gold, answer)
    if isinstance(gold, sympy.Set | sympy.Tuple) or isinstance(answer, sympy.Set | sympy.Tuple):
        return _same_collection(gold, answer)
    return identical(gold, answer)


def identical(gold: Tree, answer: Tree) -> bool:
    """Whether two scalars are equal, exactly."""
    a, b = _evaluate(gold), _evaluate(answer)
    if not isinstance(a, sympy.Expr) or not isinstance(b, sympy.Expr):
        return bool(a == b)
    if a.has(sympy.nan, sympy.zoo, sympy.oo) or b.has(sympy.nan, sympy.zoo, sympy.oo):
        return bool(a == b) and not a.has(sympy.nan, sympy.zoo)
    if (a.is_Rational and b.is_Rational) or a == b:
        return bool(a == b)
    return (_same_at_points if a.free_symbols | b.free_symbols else _same_constants)(a, b)


def _same_constants(a: Tree, b: Tree) -> bool:
    values = a.evalf(DIGITS), b.evalf(DIGITS)
    if not all(map(_is_finite_number, values)):
        return bool(sympy.simplify(a - b) == 0)
    if max(map(abs, values)) < _TINY:
        return bool((a - b).equals(0))
    return _close(*values)


def _same_at_points(a: Tree, b: Tree) -> bool:
    """Agreement at fixed points. Points at which both are real decide; if none is, all decide."""
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    pairs = [pair for point in _points(symbols) if (pair := _values(a, b, point)) is not None]
    real = [pair for pair in pairs if all(_is_real(value) for value in pair)]
    deciding = real or pairs
    if len(deciding) < 2 or all(max(map(abs, pair)) < _TINY for pair in deciding):
        return bool(sympy.simplify(a - b) == 0)
    return all(_close(*pair) for pair in deciding)


def _points(symbols: Sequence[Tree]) -> list[dict[Tree, Tree]]:
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


def _values(a: Tree, b: Tree, point: dict[Tree, Tree]) -> tuple[Tree, Tree] | None:
    values = tuple(expression.subs(point).evalf(60) for expression in (a, b))
    if not all(_is_finite_number(value) for value in values):
        return None
    return values[0], values[1]


def _is_finite_number(value: Tree) -> bool:
    """Of a real and an imaginary part in digits: no variable, unknown function or infinity left."""
    return all(isinstance(part, sympy.Float | sympy.Rational) for part in value.as_real_imag())


def _is_real(value: Tree) -> bool:
    real, imaginary = value.as_real_imag()
    return bool(abs(imaginary) <= abs(real) * sympy.Float(10) ** -40)


def _close(a: Tree, b: Tree) -> bool:
    """Equal to all the digits that both carry, but for the last tenth."""
    digits = DIGITS if min(_precision(a), _precision(b)) > 3 * DIGITS else 60
    scale = max(abs(a), abs(b))
    return bool(abs(a - b) <= scale * sympy.Float(10, 10) ** -(digits * 9 // 10))


def _precision(value: Tree) -> int:
    """Bits of the least exact number in a value."""
    return min((number._prec for number in value.atoms(sympy.Float)), default=4 * DIGITS)


def _same_collection(gold: Tree, answer: Tree) -> bool:
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


def _same_elements(gold: Sequence[Tree], answer: Sequence[Tree]) -> bool:
    """Whether the elements can be paired off; each is used once."""
    left = list(answer)
    for element in gold:
        partner = next((other for other in left if same(element, other)), None)
        if partner is None:
            return False
        left.remove(partner)
    return not left


def _as_tuple_like(value: Tree, other: Tree) -> Tree:
    """`(1, 2)` is read as an open interval where it can be one; beside a tuple it is a tuple."""
    if isinstance(value, sympy.Interval) and isinstance(other, sympy.Tuple) and value.is_open:
        return sympy.Tuple(value.start, value.end)
    return value


def _as_set(value: Tree) -> Tree:
    return value if isinstance(value, sympy.Set) else sympy.FiniteSet(value)


def _same_matrix(gold: Tree, answer: Tree) -> bool:
    if not isinstance(gold, sympy.MatrixBase) or not isinstance(answer, sympy.MatrixBase):
        return False
    return gold.shape == answer.shape and all(map(identical, gold.flat(), answer.flat()))


def _is_relation(value: Tree) -> bool:
    return isinstance(value, Relational | sympy.And | sympy.Or)


def _is_assignment(value: Tree) -> bool:
    """`x = 5`, `f(x) = x + 1`, or a true statement about numbers (`2 + 3 = 5`)."""
    if not isinstance(value, sympy.Eq):
        return False
    if isinstance(value.lhs, sympy.Symbol) or value.lhs.is_Function:
        return True
    return not value.lhs.free_symbols and same(value.lhs, value.rhs)


def _unwrap_assignments(gold: Tree, answer: Tree) -> tuple[Tree, Tree]:
    """The right side of an assignment where the other is none: `x = 5` is 5."""
    if _is_assignment(answer) and not _is_relation(gold):
        return gold, answer.rhs
    if _is_assignment(gold) and not _is_relation(answer):
        return gold.rhs, answer
    return gold, answer


def _same_relation(gold: Tree, answer: Tree) -> bool:
    if isinstance(gold, Relational) and isinstance(answer, Relational):
        if isinstance(gold.rhs, sympy.Set) or isinstance(answer.rhs, sympy.Set):
            both = isinstance(gold, sympy.Eq) and isinstance(answer, sympy.Eq)
            return both and bool(gold.lhs == answer.lhs) and same(gold.rhs, answer.rhs)
        is_same_side = type(gold) is type(answer) and bool(gold.lhs == answer.lhs)
        return (is_same_side and same(gold.rhs, answer.rhs)) or _proportional(gold, answer)
    sets = [_solution_set(value) for value in (gold, answer)]
    return None not in sets and _same_collection(sets[0], sets[1])


def _solution_set(value: Tree) -> Tree:
    """Of an inequality in one variable, or of `x \\in S`; a set is its own."""
    if isinstance(value, sympy.Set):
        return value
    if isinstance(value, sympy.Eq) and isinstance(value.rhs, sympy.Set):
        return value.rhs if isinstance(value.lhs, sympy.Symbol) else None
    if not _is_relation(value) or len(value.free_symbols) != 1:
        return None
    # math-verify's own `And` keeps the order of a chain and knows no sets.
    parts = value.args if isinstance(value, sympy.And) else [value]
    return sympy.Intersection(*[part.as_set() for part in parts])


def _proportional(gold: Relational, answer: Relational) -> bool:
    """Whether the differences of both sides have a constant ratio of the right sign."""
    a, b = _evaluate(gold.lhs - gold.rhs), _evaluate(answer.lhs - answer.rhs)
    if isinstance(gold, sympy.Eq | sympy.Ne):
        a, b = (sympy.together(side).as_numer_denom()[0] for side in (a, b))
    if a.is_zero or b.is_zero or a.free_symbols != b.free_symbols:
        return False
    symbols = sorted(a.free_symbols, key=str)
    pairs = [_values(a, b, point) for point in _points(symbols)]
    ratios = [(pair[0] / pair[1]).evalf(50) for pair in pairs if pair and pair[1] != 0]
    if len(ratios) < 2 or not all(_close(ratio, ratios[0]) for ratio in ratios):
        return False
    expected = type(gold) if ratios[0].is_positive else _FLIPPED[type(gold)]
    return isinstance(gold, sympy.Eq | sympy.Ne) or type(answer) is expected


def _evaluate(value: Tree) -> Tree:
    """Lazy parts worked out, variables real by name alone, math-verify's `i` the imaginary unit."""
    if not isinstance(value, sympy.Basic):
        return value
    value = value.replace(sympy.UnevaluatedExpr, lambda inner: inner)
    names = {symbol: sympy.Symbol(symbol.name, real=True) for symbol in value.free_symbols}
    names[sympy.Symbol("i", real=False)] = sympy.I
    return value.xreplace(names).doit()
