"""Which answers can be trained on, and which of them say the same."""

from __future__ import annotations

import pytest

from data_catalog.curation.answers import judge_answer
from rstar2.curation import CurationConfig


@pytest.mark.parametrize(
    ("answer", "digits"),
    [
        ("42", "42"),
        ("-7", "-7"),
        ("+7", "7"),
        ("007", "7"),
        ("-0", "0"),
        ("1,000", "1000"),
        ("$1{,}000$", "1000"),
        ("1 000", "1000"),
        ("42.0", "42"),
        (r"\boxed{42}", "42"),
        (r"\(42\)", "42"),
        ("−42", "-42"),
        ("9" * 50, "9" * 50),
    ],
)
def test_an_integer_is_kept_in_plain_digits(answer: str, digits: str) -> None:
    judged = judge_answer(answer, CurationConfig())
    assert (judged.rule, judged.text) == (None, digits)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        ("9" * 51, "too_large"),
        ("9" * 5000, "too_large"),
        ("1e27330467", "too_large"),
        ("10^{100}", "too_large"),
        (r"1.5 \times 10^{80}", "too_large"),
        ("100!", "too_large"),
        ("2^{3^{100}}", "too_large"),
        ("2**1000", "too_large"),
        ("It depends on the weather of the day.", "not_checkable"),
        ("N/A", "not_checkable"),
        ("word " * 1000, "not_checkable"),
        ("1/2", "not_an_integer"),
        ("0.5", "not_an_integer"),
        ("50%", "not_an_integer"),
        ("12 dollars", "not_an_integer"),
        ("27_8", "not_an_integer"),
        ("x+1", "not_an_integer"),
        ("(3, 4)", "not_an_integer"),
        ("3 4", "not_an_integer"),
        ("1,00", "not_an_integer"),
        ("1234,567", "not_an_integer"),
        ("2^5", "not_an_integer"),
        ("Tuesday", "not_an_integer"),
        ("٣", "not_an_integer"),
    ],
)
def test_every_other_answer_falls_to_the_rule_that_says_most(answer: str, rule: str) -> None:
    assert judge_answer(answer, CurationConfig()).rule == rule


def test_without_integers_only_what_can_be_checked_stays() -> None:
    config = CurationConfig(integer_answers=False)
    assert judge_answer("1/2", config).rule is None
    assert judge_answer("1/2", config).text == "1/2"
    assert judge_answer("N/A", config).rule == "not_checkable"


@pytest.mark.parametrize(
    ("one", "other"),
    [("1/2", r"\frac12"), ("0.5", r"$\frac{1}{2}$"), ("12 apples", "12"), ("1,000", "1000.0")],
)
def test_answers_that_say_the_same_have_one_key(one: str, other: str) -> None:
    assert judge_answer(one, CurationConfig()).key == judge_answer(other, CurationConfig()).key


@pytest.mark.parametrize(
    ("one", "other"), [("1/2", "1/3"), ("50", "50%"), ("12", "12_8"), ("12", "-12")]
)
def test_answers_that_differ_have_two_keys(one: str, other: str) -> None:
    assert judge_answer(one, CurationConfig()).key != judge_answer(other, CurationConfig()).key
