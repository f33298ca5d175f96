"""Whether two questions with the same answer are one problem in other words.

Two ways of rewording are known, both exact: a phrase of its own that says nothing about the problem was
added (`Here is one for my class:`), or one long word was misspelt. Numbers, formulas and the words that
turn a problem around must be the same, in the same order; what is only similar stays. Reads and writes
nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from data_catalog.curation.spelling import CRITICAL, Spelling, content

MIN_WORDS = 8
"""Shorter questions have too few words to tell a rewording from another problem."""
MIN_MISSPELT = 6
"""Letters of a word in which one wrong letter makes no other word."""
MAX_KNOWN = 4096
"""Questions that an index holds; later ones are looked up in it but no longer added."""

Tokens = tuple[str, ...]


class Rewordings:
    """An index over the questions of one answer and content; add them shortest first."""

    def __init__(self, max_added_words: int) -> None:
        self._max_added = max_added_words
        self._known: dict[Tokens, int] = {}
        self._with_gap: defaultdict[int, list[tuple[int, Tokens]]] = defaultdict(list)

    def find_or_add(self, row: int, spelling: Spelling) -> tuple[int, str] | None:
        """The row of which this question is a rewording, and how; None where it is new."""
        if len(spelling.tokens) < MIN_WORDS:
            return None
        found = self._with_a_phrase_less(spelling) or self._with_a_slip(spelling.tokens)
        if found is None and len(self._known) < MAX_KNOWN:
            self._known[spelling.tokens] = row
            for place in _long_words(spelling.tokens):
                self._with_gap[_gap(spelling.tokens, place)].append((row, spelling.tokens))
        return found

    def _with_a_phrase_less(self, spelling: Spelling) -> tuple[int, str] | None:
        for start, stop in _phrases(spelling, self._max_added):
            rest = spelling.tokens[:start] + spelling.tokens[stop:]
            if rest in self._known:
                phrase = " ".join(spelling.tokens[start:stop])
                return self._known[rest], f"with the phrase {phrase!r}"
        return None

    def _with_a_slip(self, tokens: Tokens) -> tuple[int, str] | None:
        for place in _long_words(tokens):
            for row, known in self._with_gap.get(_gap(tokens, place), ()):
                word, spelt = known[place], tokens[place]
                is_same = (
                    known[:place] == tokens[:place] and known[place + 1 :] == tokens[place + 1 :]
                )
                if is_same and _one_slip(word, spelt):
                    return row, f"{spelt!r} for {word!r}"
        return None


def _phrases(spelling: Spelling, max_words: int) -> Iterator[tuple[int, int]]:
    """Every run of clauses that could have been added: short, and without any content."""
    breaks = sorted(spelling.breaks)
    for index, start in enumerate(breaks):
        for stop in breaks[index + 1 :]:
            is_short = (
                stop - start <= max_words and len(spelling.tokens) - stop + start >= MIN_WORDS
            )
            if not is_short or content(spelling.tokens[start:stop]):
                break
            yield start, stop


def _long_words(tokens: Tokens) -> Iterator[int]:
    return (
        place
        for place, token in enumerate(tokens)
        if len(token) >= MIN_MISSPELT and token.isalpha() and token not in CRITICAL
    )


def _gap(tokens: Tokens, place: int) -> int:
    """The same for questions that differ in this word at most; whoever finds one compares them."""
    return hash((place, tokens[:place], tokens[place + 1 :]))


def _one_slip(word: str, other: str) -> bool:
    """One letter wrong, missing or too many, or two neighbours exchanged."""
    shorter, longer = sorted((word, other), key=len)
    start = next(
        (i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), len(shorter)
    )
    if len(shorter) != len(longer):
        return len(longer) - len(shorter) == 1 and shorter[start:] == longer[start + 1 :]
    rest, other_rest = word[start:], other[start:]
    return rest[1:] == other_rest[1:] or (
        rest[:2] == other_rest[1::-1] and rest[2:] == other_rest[2:]
    )
