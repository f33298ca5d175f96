"""Shared words of an evaluation question are found exactly, and turns of phrase are left alone."""

from __future__ import annotations

import random

from data_catalog.curation.contamination import EvaluationWords
from data_catalog.curation.spelling import phrase_words, spell

PHRASE = "where m and n are relatively prime positive integers"
QUESTIONS = (
    f"A frog hops along nine lily pads in a row and rests. The chance is m/n, {PHRASE}. Find m+n.",
    f"Two wizards guard seven doors of the old tower at night. The sum is m/n, {PHRASE}. Find m+n.",
    "What is 2 + 2?",
)


def found(question: str, num_words: int = 8) -> int | None:
    contamination = EvaluationWords(QUESTIONS, num_words).find(spell(question))
    return None if contamination is None else contamination.question


def test_eight_words_in_a_row_are_a_contamination() -> None:
    assert found("Once, two wizards guard seven doors of the old house. How many doors?") == 1


def test_seven_words_in_a_row_are_none() -> None:
    assert found("Once, two wizards guard seven doors of the new house. How many doors?") is None


def test_case_punctuation_and_latex_do_not_hide_it() -> None:
    assert found("A FROG hops, along nine\nlily pads in a row -- how far?") == 0


def test_a_turn_of_phrase_of_several_evaluation_questions_is_no_contamination() -> None:
    assert found(f"Ann throws three dice. Her luck equals m/n, {PHRASE}. What is m?") is None


def test_a_short_evaluation_question_is_found_as_a_whole_only() -> None:
    assert found("What is $2+2$?") == 2
    assert found("Ann asks: what is 2 + 2?") is None


def test_a_question_that_stands_in_two_evaluation_sets_still_counts() -> None:
    words = EvaluationWords((QUESTIONS[1], QUESTIONS[1].upper()), 8)
    assert words.find(spell("Two wizards guard seven doors of the old tower.")) is not None


def test_the_search_finds_what_comparing_every_place_finds() -> None:
    chance = random.Random(5)
    words = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu") for b in ("pel", "ros", "tam")]
    evaluation = [" ".join(chance.choices(words, k=30)) for _ in range(40)]
    for num_words in (4, 5, 8):
        index = EvaluationWords(evaluation, num_words)
        grams = {
            tuple(q.split()[i : i + num_words]) for q in evaluation for i in range(31 - num_words)
        }
        for _ in range(200):
            spelling = spell(" ".join(chance.choices(words, k=chance.randint(1, 40))))
            row = phrase_words(spelling.tokens)
            shared = [tuple(row[i : i + num_words]) for i in range(len(row) - num_words + 1)]
            assert list(index._shared(row)) == [gram for gram in shared if gram in grams]
