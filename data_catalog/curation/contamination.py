"""Whether a question repeats words of an evaluation question: n words in a row, compared exactly.

Holds the n-grams of the evaluation sets, never those of the rows, so its memory does not grow with
what is curated. A formula counts as one word. Words that several evaluation questions share and that
hold no number (`where m and n are relatively prime positive integers`) are a turn of phrase: they
count only where they make up half of an evaluation question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from data_catalog.curation.spelling import Spelling, phrase_words, spell

Gram = tuple[str, ...]
MIN_SHARE = 0.5
"""Of an evaluation question's n-grams, where all that a row shares with it is turns of phrase."""


@dataclass(frozen=True, slots=True)
class Contamination:
    question: int
    """Position of the evaluation question."""
    words: str
    """What they share."""


class EvaluationWords:
    """The n-grams of evaluation questions. Questions shorter than n words count as a whole."""

    def __init__(self, questions: Iterable[str], num_words: int) -> None:
        self._num_words = num_words
        self._whole: dict[Gram, int] = {}
        self._found_in: dict[Gram, tuple[int, ...]] = {}
        self._num_grams: dict[int, int] = {}
        for number, question in enumerate(questions):
            self._add(number, spell(question).tokens)
        self._pairs = {pair for gram in self._found_in for pair in pairwise(gram)}

    def _add(self, number: int, tokens: tuple[str, ...]) -> None:
        if tokens in self._whole:
            return
        self._whole[tokens] = number
        grams = set(_grams(phrase_words(tokens), self._num_words))
        self._num_grams[number] = len(grams)
        for gram in grams:
            self._found_in[gram] = (*self._found_in.get(gram, ()), number)

    def find(self, spelling: Spelling) -> Contamination | None:
        """The evaluation question whose words the question repeats, or None."""
        if spelling.tokens in self._whole:
            return Contamination(self._whole[spelling.tokens], "the whole question")
        shared = list(self._shared(phrase_words(spelling.tokens)))
        for gram in shared:
            numbers = self._found_in[gram]
            if len(numbers) == 1 or _has_digit(gram):
                return Contamination(numbers[0], " ".join(gram))
        return self._mostly_phrases(shared) if shared else None

    def _mostly_phrases(self, shared: Sequence[Gram]) -> Contamination | None:
        """The evaluation question of which a row has every other turn of phrase."""
        counts = Counter(number for gram in shared for number in self._found_in[gram])
        ((number, count),) = counts.most_common(1)
        if count < MIN_SHARE * self._num_grams[number]:
            return None
        return Contamination(number, " ".join(shared[0]))

    def _shared(self, words: Sequence[str]) -> Iterator[Gram]:
        """The n-grams of `words` that an evaluation question has too, in order.

        Every n-gram holds one of the pairs at each (n - 1)-th place: where that pair is in no
        evaluation question, the n - 1 n-grams around it need no look.
        """
        num_words, step = self._num_words, self._num_words - 1
        for place in range(step - 1, len(words) - 1, step):
            if (words[place], words[place + 1]) not in self._pairs:
                continue
            for start in range(place - step + 1, min(place, len(words) - num_words) + 1):
                gram = tuple(words[start : start + num_words])
                if gram in self._found_in:
                    yield gram


def _grams(words: Sequence[str], num_words: int) -> Iterator[Gram]:
    return (tuple(words[i : i + num_words]) for i in range(len(words) - num_words + 1))


def _has_digit(gram: Gram) -> bool:
    return any(character.isdigit() for word in gram for character in word)
