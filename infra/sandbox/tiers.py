"""Tiers of warm interpreters: what each has loaded, which one a source goes to, how it is warmed.

Reads and writes nothing. What a fork costs depends on the files that are mapped, not on Python, so
code that names no package goes to the smallest tier. Routing is a guess from the text and may be
wrong at no harm: a package that is not loaded is imported in the child, slowly.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys

_FULL = re.compile(r"\b(scipy|pandas|networkx)\b")
_SYMPY = re.compile(r"\b(sympy|mpmath)\b")
_NUMPY = re.compile(r"\bnumpy\b")

_TINY_MODULES = (
    "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools",
    "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string",
    "threading", "time", "typing",
)  # fmt: skip
_NUMPY_MODULES = ("numpy", "numpy.linalg", "numpy.random", "numpy.fft")
_SYMPY_MODULES = ("sympy", "mpmath", "sympy.solvers", "sympy.ntheory", "sympy.combinatorics")
_FULL_MODULES = ("scipy.special", "scipy.linalg", "scipy.optimize")


def tier_of(code: str) -> str:
    """The tier whose warm packages the source names."""
    if _FULL.search(code):
        return "full"
    if _SYMPY.search(code):
        return "sympy"
    return "numpy" if _NUMPY.search(code) else "tiny"


def import_common() -> None:
    """Imports what every tier holds. Called before anything else is imported: see `_ignore`."""
    register, os.register_at_fork = os.register_at_fork, _ignore
    try:
        for name in _TINY_MODULES:
            importlib.import_module(name)
    finally:
        os.register_at_fork = register


def preload(tier: str) -> None:
    """Imports and exercises what the tier promises. `full` takes scipy only where installed."""
    if tier in ("numpy", "sympy", "full"):
        for name in _NUMPY_MODULES:
            importlib.import_module(name)
        _warm_numpy()
    if tier in ("sympy", "full"):
        for name in _SYMPY_MODULES:
            importlib.import_module(name)
        _warm_sympy()
    if tier == "full" and importlib.util.find_spec("scipy") is not None:
        for name in _FULL_MODULES:
            importlib.import_module(name)
    if tier == "verify":
        _warm_verifier()


def _ignore(**_: object) -> None:
    """In place of `os.register_at_fork`: `random` and `threading` would work in every child of the
    zygote, at a third of what its fork costs. The harness does what a call needs of it."""


def loaded() -> list[str]:
    """Which of the large packages this interpreter holds."""
    return [name for name in ("numpy", "sympy", "scipy", "math_verify") if name in sys.modules]


def check_pairs(pairs: tuple[tuple[str, str], ...], verdict_fd: int) -> None:
    """Verify tier, in the child: one verdict record per pair, written as soon as it is known.

    May hang or die in any pair: the parent sees which one by counting the records.
    """
    from rstar2.grading import grade_mathematics

    for gold, answer in pairs:
        try:
            verdict = grade_mathematics(gold, answer)
            record = (str(verdict.kind), verdict.reason[:500])
        except (Exception, RecursionError) as error:  # noqa: BLE001  any fault is "undecided"
            record = ("undecided", f"the checker failed: {type(error).__name__}")
        os.write(verdict_fd, json.dumps(record).encode() + b"\n")


def read_verdicts(data: bytes) -> list[tuple[str, str]]:
    """The complete records of `check_pairs`; a torn last one is dropped."""
    records = (json.loads(line) for line in data.split(b"\n")[:-1])
    return [(kind, reason) for kind, reason in records]


def _warm_numpy() -> None:
    import numpy

    matrix = numpy.array([[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 4.0]])
    numpy.random.seed(0)
    repr((matrix @ matrix, numpy.linalg.det(matrix), numpy.linalg.solve(matrix, matrix[0])))
    repr((numpy.random.rand(2), numpy.random.default_rng(0).random(2), numpy.arange(5).sum()))
    repr((numpy.linalg.eigvalsh(matrix), numpy.fft.fft(matrix[0]), numpy.sqrt(matrix).mean()))


def _warm_sympy() -> None:
    import sympy

    x, y = sympy.symbols("x y")
    n = sympy.Symbol("n", positive=True, integer=True)
    work = (
        sympy.solve(x**3 - 6 * x**2 + 11 * x - 6, x),
        sympy.solve([x + y - 3, x - y - 1], [x, y]),
        sympy.factor(x**4 - 1),
        sympy.expand((x + y) ** 5),
        sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2),
        sympy.integrate(x * sympy.exp(x), x),
        sympy.diff(sympy.sin(x) * x**2, x),
        sympy.limit(sympy.sin(x) / x, x, 0),
        sympy.summation(n, (n, 1, 10)),
        sympy.factorint(360360),
        sympy.isprime(1_000_003),
        sympy.Rational(1, 3) + sympy.sqrt(2),
        sympy.Matrix([[1, 2], [3, 4]]).det(),
        sympy.N(sympy.pi, 20),
    )
    repr(work)


_WARM_PAIRS = (
    ("\\frac{3}{4}", "0.75x"), ("x+1", "1+x"), ("\\sqrt{8}", "2\\sqrt{2}"),
    ("\\frac{1}{\\sqrt{n}}", "\\sqrt{1/n}"), ("y=2x+1", "2x-y+1=0"), ("\\{1,2\\}", "\\{2,3\\}"),
    ("(x-1)(x+1)", "x^2-1"), ("\\frac{\\pi}{2}", "\\pi/3"), ("(1,2)", "(2,1)"),
    ("[0,1)", "(0,1]"), ("(-\\infty,2]\\cup[3,\\infty)", "(-\\infty,2]"), ("x>2", "2<x"),
    ("\\sin(2x)", "2\\sin x\\cos x"), ("\\ln 8", "3\\ln 2"), ("\\log_2 9", "2\\log_2 3"),
    ("e^{x+y}", "e^x e^y"), ("\\binom{5}{2}", "11"), ("3+4i", "4i+3"), ("5!", "121"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}"),
    ("\\frac{x^2-1}{x-1}", "x+1"), ("2^{10}\\cdot 3", "3073"), ("|x|", "-x"), ("a_1+b", "b+a_1"),
    ("\\sqrt[3]{16}", "2\\sqrt[3]{2}"), ("\\pm 2", "2,-2"), ("90^\\circ", "\\pi/2"),
    ("\\frac{1+\\sqrt{5}}{2}", "1.618"), ("10\\%", "0.11"), ("x=1,y=2", "(1,3)"),
)  # fmt: skip
"""Of every common form once: a form that was never compared costs its child a tenth of a second."""


def _warm_verifier() -> None:
    from rstar2.grading import grade_mathematics

    for gold, answer in _WARM_PAIRS:
        grade_mathematics(gold, answer)
