"""A rewording is found where the answer is the same; what is only similar is another problem."""

from __future__ import annotations

import random

import pytest

from data_catalog.curation.rewording import MIN_WORDS, Rewordings
from data_catalog.curation.spelling import spell

QUESTION = "Tom has 17 apples and buys 25 more at the market. How many apples are there altogether?"


def how(one: str, other: str) -> str | None:
    index = Rewordings(max_added_words=15)
    assert index.find_or_add(1, spell(one)) is None
    found = index.find_or_add(2, spell(other))
    return None if found is None else found[1]


@pytest.mark.parametrize(
    "other",
    [
        f"Here is a problem for my class: {QUESTION}",
        f"Hello there, {QUESTION}",
        f"{QUESTION} Good luck with it!",
        "Tom has 17 apples and buys 25 more at the market. I hope you like this. How many apples are "
        "there altogether?",
        QUESTION.replace("altogether", "altogther"),
        QUESTION.replace("market", "markte"),
    ],
)
def test_an_added_phrase_or_a_slip_is_a_rewording(other: str) -> None:
    assert how(QUESTION, other)


@pytest.mark.parametrize(
    "other",
    [
        QUESTION.replace("17", "18"),
        QUESTION.replace("apples", "pears"),
        QUESTION.replace("Tom", "Tim"),
        QUESTION.replace("market", "harbour"),
        QUESTION.replace("25 more", "25 fewer"),
        f"Tom has no brother. {QUESTION}",
        f"Tom eats two of them. {QUESTION}",
        f"Assume that Tom is honest. {QUESTION}",
        QUESTION.replace("buys", "then quickly buys"),
        QUESTION.replace("17", "17 + 1"),
        f"{QUESTION} {'And so on and so forth. ' * 4}",
    ],
)
def test_other_words_are_another_problem(other: str) -> None:
    assert how(QUESTION, other) is None


def test_short_questions_are_never_reworded() -> None:
    assert how("Find the sum.", "Hello there, find the sum.") is None


def test_each_of_many_is_found_among_all_that_begin_like_it() -> None:
    chance = random.Random(3)
    things = ("river", "stone", "garden", "window", "silver", "market", "travel", "winter")
    index = Rewordings(max_added_words=15)
    known: dict[int, str] = {}
    for row in range(300):
        words = chance.choices(things, k=chance.randint(MIN_WORDS, 20))
        question = f"There are 12 things: {' '.join(words)}."
        if index.find_or_add(row, spell(question)) is None:
            known[row] = question
    for row, question in known.items():
        for other in (f"Hello there, {question}", f"{question} Good luck with it!"):
            found = index.find_or_add(-1, spell(other))
            assert found is not None
            assert found[0] == row
