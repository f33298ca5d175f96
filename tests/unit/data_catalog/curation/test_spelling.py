"""What is one question in two spellings, and what is another question."""

from __future__ import annotations

import random

import pytest

from data_catalog.curation.spelling import phrase_words, spell

QUESTION = (
    r"Let $x \leq 3$ and $y = x^{2} + \dfrac{1}{2}$. Find, in cm, the sum of 1,000 such numbers."
)


@pytest.mark.parametrize(
    "other",
    [
        r" let  $x \leq 3$ and $y = x^{2} + \dfrac{1}{2}$.  find, in cm, the sum of 1,000 such numbers ",
        r"Let \(x \le 3\) and \(y = x^2 + \frac{1}{2}\). Find, in cm, the sum of 1000 such numbers!",
        r"LET $x \leqslant 3$ and $y=x^2+\tfrac12$; find in cm the sum of $1{,}000$ such numbers?",
        r"Let x ≤ 3 and y = x² + \frac12. Please find, in cm, the sum of 1,000 such numbers.",
        r"Let $x \le 3$ and $y = x^{2} + \frac{1}{2}$. Could you kindly find, in cm, the sum of 1,000 "
        r"such numbers? Thank you very much!",
        r"Let $x\,\leq\;3$ and $\displaystyle y = x^{2} + \frac{1}{2}$. Find, in cm, the sum of 1,000 "
        "such numbers.",
    ],
)
def test_another_spelling_is_the_same_question(other: str) -> None:
    assert spell(other).tokens == spell(QUESTION).tokens


@pytest.mark.parametrize(
    "other",
    [
        "Please tell me how many apples Tom has.",
        "Could you please tell me how many apples Tom has?",
        "I would like to know how many apples Tom has",
        "How many apples, if you please, Tom has?",
        "How many apples Tom has? Thanks in advance!",
        "How many apples Tom has? Please reason step by step, and put your final answer within "
        r"\boxed{}.",
    ],
)
def test_a_courtesy_is_no_part_of_a_question(other: str) -> None:
    assert spell(other).tokens == spell("How many apples Tom has").tokens


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Add 17 and 71.", "Add 71 and 17."),
        ("Add 1.5 and 2.", "Add 15 and 2."),
        ("Add 1.5 and 2.", "Add 1, 5 and 2."),
        ("What is 5!", "What is 5?"),
        ("What is $n!$?", "What is $n$?"),
        ("What is 2 + 3?", "What is 2 - 3?"),
        ("What is x^2?", "What is x_2?"),
        ("What is 2 3 and 4?", "What is 23 and 4?"),
        ("How large is {1,234}?", "How large is {1234}?"),
        ("How far is (1,200) from 0?", "How far is (1200) from 0?"),
        ("The ratio is 3:4.", "The ratio is 34."),
        ("The value is -5.", "The value is 5."),
        ("Find f'(2).", "Find f(2)."),
        ("Sum 1, 2, ..., 9.", "Sum 1, 2, 9."),
        ("Is x < 3?", "Is x > 3?"),
        (r"Is $x \le 3$?", r"Is $x < 3$?"),
        ("Is x even?", "Is x odd?"),
        ("Find the area.", "Find the perimeter."),
        ("Tom has 3 apples.", "Tim has 3 apples."),
        ("Find 10% of 50.", "Find 10 of 50."),
        ("Find |x|.", "Find x."),
        ("How many words can you make of 4 letters?", "How many words of 4 letters?"),
    ],
)
def test_what_can_change_the_answer_makes_another_question(one: str, other: str) -> None:
    assert spell(one).tokens != spell(other).tokens


def test_no_two_numbers_are_ever_one_question() -> None:
    """Two thousand questions that differ in one number or one sign only."""
    chance = random.Random(7)
    shapes = (
        "Tom has {} apples, buys {} more and eats {}.",
        "Compute ${}^{{{}}} + \\frac{{{}}}{{7}}$.",
        "The ratio is {}:{}; what is ${} \\cdot 2$?",
        "Take {} from {}, then add {}%!",
    )
    numbers = (
        "7",
        "-7",
        "70",
        "0.7",
        "7.0",
        "07",
        "77",
        "7/2",
        "7!",
        "1,234",
        "1.234",
        "12,34",
        "-0.7",
    )
    spelt = {}
    for _ in range(2000):
        drawn = tuple(chance.choice(numbers) for _ in range(3))
        question = chance.choice(shapes).format(*drawn)
        tokens = spell(question).tokens
        assert spelt.setdefault(tokens, question) == question


def test_punctuation_alone_is_compared_as_it_stands() -> None:
    assert spell("?!").tokens != spell("...").tokens


def test_questions_in_other_scripts_keep_their_words() -> None:
    assert spell("求 3 和 4 的和。").tokens == spell("求3和4的和").tokens
    assert spell("求 3 和 4 的和。").tokens != spell("求 3 和 4 的积。").tokens


def test_a_formula_is_one_word_of_a_phrase_however_it_is_spaced() -> None:
    one = phrase_words(spell("Let $f(x)=x^2+3$ be given").tokens)
    assert one == phrase_words(spell("Let $f(x) = x^{2} + 3$ be given").tokens)
    assert len(one) == 4
