from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2.grading import count_answer_tags, extract_answer, grade_exact, grade_mathematics
from rstar2.types import VerdictKind

CORRECT, INCORRECT = VerdictKind.CORRECT, VerdictKind.INCORRECT


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>\\boxed{4}</answer>", "4"),
        ("<answer>so \\boxed{\\frac{1}{2}} it is</answer>", "\\frac{1}{2}"),
        ("<answer>\\boxed{3} no, \\boxed{4}</answer>", "4"),
        ("<answer>\\boxed{3}</answer> hm <answer>\\boxed{4}</answer>", "4"),
        ("<answer>\\boxed{4}</answer> or \\boxed{5}", "4"),
        ("\\boxed{5} <answer>4</answer>", None),
        ("in <answer> tags: <answer>\\boxed{4}</answer>", "4"),
        ("<answer>\\boxed{4}", None),
        ("<answer>\\boxed{4</answer>", None),
        ("<answer>\\boxed{\\{1,2\\}}</answer>", "\\{1,2\\}"),
        ("<answer>\\boxed{4}, as I \\boxed it</answer>", "4"),
        ("<answer>\\boxed{4} \\boxed\n</answer>", "4"),
        ("<answer>\\boxed{4} \\boxed{5</answer>", None),
        ("<answer>\\boxed 4</answer>", None),
        ("\\boxed{4}", None),
    ],
)
def test_required_tags_read_the_last_box_in_the_last_answer(text, answer):
    assert extract_answer(text, "required") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{3} wait, actually \\boxed{4}", "4"),
        ("\\boxed{4", None),
        ("\\boxed{\\boxed{4}}", "4"),
        ("\\boxed {4}", "4"),
        ("no box", None),
        ("\\boxed{5} <answer>\\boxed{4}</answer>", "4"),
        ("\\boxed{5} <answer>4</answer>", None),
        ("\\boxed{5} and an <answer> never closed", None),
    ],
)
def test_optional_tags_read_the_last_box_where_there_is_no_tag(text, answer):
    assert extract_answer(text, "optional") == answer


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("<answer>4</answer>", 1),
        ("<answer>4</answer><answer>4</answer>", 2),
        ("I use `<answer>` tags. <answer>4</answer>", 2),
        ("<answer>4<answer>4</answer>", 2),
        ("<answer>4", 1),
        ("</answer>4", 0),
    ],
)
def test_every_answer_tag_counts_closed_or_not(text, count):
    assert count_answer_tags(text) == count


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("4", "4"),
        ("4", "4.0"),
        ("4", "+4"),
        ("4", "$4$"),
        ("4", "4."),
        ("4", "004"),
        ("-4", "- 4"),
        ("1000", "1{,}000"),
        ("1000", "1\\,000"),
        ("1000", "1,\\!000"),
        ("1/2", "\\dfrac{1}{2}"),
        ("1/2", "0.5"),
        ("-1/2", "\\frac{-1}{2}"),
        ("3.5", "3\\frac12"),
        ("18", "\\$18"),
        ("18", "18 \\text{ dollars}"),
        ("10 \\text{ students}", "10"),
        ("90^\\circ", "90"),
        ("30 \\text{ cm}^2", "30\\text{ cm}^{2}"),
        ("27_8", "27"),
        ("1/3", "0.\\overline{3}"),
        ("1/6", "0.1\\overline{6}"),
        ("60", "60\\%"),
        ("\\text{east}", "East"),
    ],
)
def test_text_and_exact_numbers_decide_that_it_is_right(gold, answer):
    verdict = grade_exact(gold, answer)
    assert verdict is not None
    assert verdict.kind is CORRECT


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("4", "5"),
        ("4", "-4"),
        ("4", ""),
        ("34", "3\\quad 4"),
        ("5 \\text{ cm}", "5 \\text{ m}"),
        ("27_8", "27_9"),
        ("5", "5 \\text{ million}"),
        ("12", "1" * 401),
        ("12", "(" * 30 + "12" + ")" * 30),
        ("\\text{listen}", "silent"),
        ("no", "on"),
        ("1000", "1.000"),
        ("50\\%", "0.05"),
    ],
)
def test_text_and_exact_numbers_decide_that_it_is_wrong(gold, answer):
    verdict = grade_exact(gold, answer)
    assert verdict is not None
    assert verdict.kind is INCORRECT


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("\\sqrt{8}", "2\\sqrt2"),
        ("2\\pi", "2\\pi \\text{ inches}"),
        ("5", "x = 5"),
        ("x = 5", "5"),
        ("10", "\\binom{5}{2}"),
        ("2^{1024}", "2^{2^{10}}"),
        ("-1", "e^{i\\pi}"),
        ("2+3i", "3i+2"),
        ("0", "\\sqrt2\\sqrt3-\\sqrt6"),
        ("|x|", "\\sqrt{x^2}"),
        ("(x+1)^2", "x^2+2x+1"),
        ("x>2", "2<x"),
        ("x>2", "(2,\\infty)"),
        ("1<x<2", "(1,2)"),
        ("(1,2)\\cup(3,4)", "(3,4)\\cup(1,2)"),
        ("x^2+y^2=1", "y^2=1-x^2"),
        ("xy=2", "y=\\frac{2}{x}"),
        ("f(x)=x^2+2x", "f(x)=x(x+2)"),
        ("x=1, x=2", "1, 2"),
        ("\\pm 2", "2, -2"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{bmatrix}1\\\\ \\frac42\\end{bmatrix}"),
    ],
)
def test_mathematics_decides_that_it_is_right(gold, answer):
    assert grade_mathematics(gold, answer).kind is CORRECT


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("\\sqrt{2}", "1.41421356237"),
        ("2\\pi", "6.28"),
        ("0", "10^{-400}"),
        ("x", "|x|"),
        ("x", "y"),
        ("2", "2 m"),
        ("3", "\\pm 3"),
        ("8", "7=8"),
        ("5", "x+1=5"),
        ("x = 5", "y = 5"),
        ("x \\ge 0", "x > 0"),
        ("x > 0", "x < 0"),
        ("[1,2)", "(1,2)"),
        ("(2,1)", "1, 2"),
        ("3", "3, 4"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}2\\\\1\\end{pmatrix}"),
        ("5", "\\sum_{k=1}^{1000000000}\\frac{1}{k!}"),
        ("5", "\\binom{10^9}{5\\cdot10^8}"),
        ("5", "x^x^x^x"),
        ("5", "2^{999999}"),
        ("7", "\\frac10"),
        ("7", "\\foo{"),
    ],
)
def test_mathematics_decides_that_it_is_wrong(gold, answer):
    assert grade_mathematics(gold, answer).kind is INCORRECT


@pytest.mark.parametrize("gold", ["", "\\foo{", "9^{9^{9^{9}}}"])
def test_gold_answer_that_cannot_be_checked_is_undecided(gold):
    verdict = grade_mathematics(gold, "x + 1")
    assert verdict.kind is VerdictKind.UNDECIDED
    assert "gold" in verdict.reason


def test_long_gold_answer_is_right_when_written_alike():
    assert grade_mathematics("9^{9^{9^{9}}}", "9^{9^{9^{9}}}").kind is CORRECT


@given(st.text(max_size=60), st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_the_exact_path_raise(gold, answer):
    grade_exact(gold, answer)
    extract_answer(answer, "optional")


@given(st.lists(st.sampled_from(["1", "0", ",", " ", ".", "/", "-", "\\frac", "{", "}", "%", "_"])))
@settings(max_examples=300, deadline=None)
def test_no_number_makes_the_exact_path_raise(parts):
    grade_exact("1", "".join(parts))


def test_exact_path_loads_neither_sympy_nor_torch():
    code = (
        "import sys; from rstar2.grading import grade_exact; grade_exact('1', '2'); "
        "assert not {'sympy', 'torch', 'prefect', 'math_verify'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
