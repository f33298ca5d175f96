"""The rules by which problems are left out before training: their names, their order, their settings.

Reads and writes nothing; `data_catalog.curation` applies them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from rstar2.config_section import Count, Section

RULES = {
    "malformed": "no question or no answer that can be read",
    "exact_duplicate": "an earlier row has the same question and answer",
    "conflicting_answers": "rows with this question disagree on the answer",
    "near_duplicate": "an earlier row words the same question otherwise",
    "too_large": "the answer is a number too large to check",
    "not_checkable": "no verifier could judge an attempt against the answer",
    "not_an_integer": "the answer is no integer",
    "reference_policy": "the reference policy was not right often enough",
    "contaminated": "an evaluation question has the same words in a row",
}
"""What each rule says, in the order in which they apply: a row falls to the first that fits."""


class CurationConfig(Section):
    """Which rows of the problem files are left out before anything is trained on (report §4.2)."""

    near_duplicates: bool = True
    """Leave out rewordings as well as repetitions; two numbers never make one problem."""
    max_added_words: Annotated[int, Field(ge=0, le=50)] = 15
    """Of a phrase that makes no other problem, as in `here is one for you:`."""
    integer_answers: bool = True
    """Rules judge equivalent expressions wrongly too often (report §4.2)."""
    max_answer_digits: Annotated[int, Field(ge=1, le=400)] = 50
    """Larger numbers stall verifiers (report §4.2); an attempt is compared digit by digit."""
    min_correct: Annotated[int, Field(ge=0)] = 2
    """Where a reference policy tried the problems: right at least so often …"""
    of_attempts: Count = 16
    """… of so many attempts; other numbers of attempts in proportion (report §4.2: 2 of 16)."""
    ngram_words: Annotated[int, Field(ge=4, le=50)] = 8
    """So many words in a row that an evaluation question has too (report §5.1)."""

    @model_validator(mode="after")
    def _check(self) -> CurationConfig:
        if self.min_correct > self.of_attempts:
            raise ValueError(
                f"min_correct = {self.min_correct} of of_attempts = {self.of_attempts}: expected at "
                "most as many; lower the first or raise the second"
            )
        return self
