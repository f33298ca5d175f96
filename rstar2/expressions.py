"""LaTeX and plain-text mathematics as sympy expressions, and whether one may be worked out.

Parses with math-verify, decimals made exact. Reads strings, returns expressions that nothing has
worked out yet; writes nothing. Loads sympy. Does not compare (`equality`). Parsing may run for
ever: called only in a process that can be killed.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import math_verify
import sympy

Tree = Any
"""A sympy expression, relation, set or matrix: sympy has no types."""
MAX_BITS = 100_000.0
"""Of any number that evaluating an expression may make; a tower of powers has more."""
_SMALL_BITS = 1000.0
"""Numbers of so many bits are worked out to see how large they are."""
_LATEX = math_verify.LatexExtractionConfig(
    boxed_match_priority=0,
    # Without `units`: it takes the variable of `2 m` for a metre.
    normalization_config=math_verify.parser.NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all"
    ),
)
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_AND = re.compile(r"\\text[a-z]* ?\{ ?(?:and|or) ?\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|;")
_INNERMOST = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")
_UNFINISHED = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)


def parse(text: str) -> Tree | None:
    """The expression that a cleaned LaTeX text is, decimals exact; None where it is none."""
    logging.getLogger("math_verify.parser").setLevel(logging.ERROR)
    found = math_verify.parse(
        f"\\boxed{{{_to_latex(text)}}}",
        [_LATEX],
        fallback_mode="no_fallback",
        parsing_timeout=0,
    )
    return found[0] if found and isinstance(found[0], sympy.Basic | sympy.MatrixBase) else None


def num_repeats(text: str, value: Tree) -> int:
    """Elements that a list names again: `12, 12` is not 12. A set in braces may repeat itself."""
    if not isinstance(value, sympy.FiniteSet) or r"\{" in text:
        return 0
    text, num_found = _AND.sub(",", _to_latex(text)), 1
    while num_found:
        text, num_found = _INNERMOST.subn("", text)
    return max(0, len(re.findall(r",[, ]*", text)) + 1 - len(value))


def is_too_large(value: Tree) -> bool:
    """Whether working an expression out would make a number of more than `MAX_BITS`."""
    return _num_bits(value) > MAX_BITS


def is_unfinished(value: Tree) -> bool:
    """Whether an integral, sum, product, limit or derivative stands where its value should."""
    return isinstance(value, sympy.Basic) and value.has(*_UNFINISHED)


def _num_bits(value: Tree) -> float:
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
        return max(inner[1], float(inner[0] * _size(value.exp, inner[1])))
    if isinstance(value, sympy.exp | sympy.factorial | sympy.gamma | sympy.factorial2):
        size = _size(value.args[0], inner[0])
        return float(size * max(inner[0], 1.5))
    if isinstance(value, sympy.binomial):
        return _size(value.args[0], inner[0])
    return max(inner, default=4.0)


def _size(value: Tree, bits: float) -> float:
    """An upper bound of the absolute value of an expression of so many bits."""
    if isinstance(value, sympy.Symbol):
        return 4.0
    if bits <= _SMALL_BITS and not value.free_symbols:
        value = value.doit().evalf(30)
        return float(max(1, min(abs(value), 10**18))) if value.is_real else 4.0
    return float(2.0 ** min(bits, 60.0))


def is_too_large_text(text: str) -> bool:
    """What parsing would work out (binomials) or choke on (`x^x^x`, not LaTeX) is seen here."""
    is_binomial = "binom" in text and re.search(r"\d{5}|[\^!]", text) is not None
    return is_binomial or re.search(r"\^ ?(?:[^{}\\ ]|\\[a-z]+) ?\^", text) is not None


def _to_latex(text: str) -> str:
    """Plain-text spellings (sqrt(2), pi, 2**3, a*b) as LaTeX, decimals as exact fractions, and
    thousands without their commas, but for those inside brackets: they part a pair."""
    if re.search(r"[(\[]|\\\{", text) is None:
        text = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
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
