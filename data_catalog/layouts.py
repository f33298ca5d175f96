"""Which column is the question and which the answer: of the sets that are published, and of one's own.

A table of the layouts in which the report's problem sets are published, each with the card it was taken
from. None of them was run on the real file: it was written from the card, and is tested on rows written
in that layout. Reads and writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_QUESTION, DEFAULT_ANSWER = "question", "answer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where a row keeps its question, its answer and the name of where it comes from."""

    question: str
    answer: str
    """A column `a.b` is the field `b` of the column `a`."""
    origin: str = "source"
    """A text by which the problems are told apart; the file's name where there is none."""
    label: str = ""
    """Stands for the origin where that differs from problem to problem."""
    needs: frozenset[str] = frozenset()
    """Further columns by which the layout is recognised."""


LAYOUTS: tuple[Layout, ...] = (
    # opencompass/AIME2025, and one's own: https://huggingface.co/datasets/opencompass/AIME2025
    Layout(question=DEFAULT_QUESTION, answer=DEFAULT_ANSWER),
    # The released code of the report and verl write `prompt` as a list of messages:
    # https://github.com/microsoft/rStar/tree/main/data_preprocess
    # BytedTsinghua-SIA/DAPO-Math-17k is one such file, each problem repeated about 100 times:
    # https://huggingface.co/datasets/BytedTsinghua-SIA/DAPO-Math-17k
    # open-r1/DAPO-Math-17k-Processed has the same columns with `prompt` as text:
    # https://huggingface.co/datasets/open-r1/DAPO-Math-17k-Processed
    Layout(question="prompt", answer="reward_model.ground_truth", origin="data_source"),
    # nvidia/OpenMathReasoning (AoPS), a row for each generated solution; `expected_answer` of a proof
    # is `n/a`: https://huggingface.co/datasets/nvidia/OpenMathReasoning
    Layout(question="problem", answer="expected_answer", origin="problem_source"),
    # MathArena/project_euler: https://huggingface.co/datasets/MathArena/project_euler publishes the
    # problems without answers; the rows are read once `answer` is filled in.
    Layout(
        question="problem",
        answer="answer",
        label="project-euler",
        needs=frozenset({"problem_idx", "source"}),
    ),
    # https://huggingface.co/datasets/HuggingFaceH4/MATH-500 and …/aime_2024,
    # https://huggingface.co/datasets/MathArena/hmmt_feb_2025
    Layout(question="problem", answer="answer"),
    # https://huggingface.co/datasets/Maxwell-Jia/AIME_2024
    Layout(question="Problem", answer="Answer"),
)


def find_layout(columns: Sequence[str]) -> Layout | None:
    """The first layout whose columns are all there."""
    seen = set(columns)
    for layout in LAYOUTS:
        if {top_level(layout.question), top_level(layout.answer), *layout.needs} <= seen:
            return layout
    return None


def top_level(column: str) -> str:
    """The column of the file in which `column` lies."""
    return column.split(".")[0]


def field(row: Mapping[str, Any], column: str) -> Any:
    """The value of a column, also where its name goes into other columns; None where it is missing."""
    if column in row:
        return row[column]
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


# DAPO-Math-17k wraps each problem in a request for a last line `Answer:`, which is not our format.
_DAPO = re.compile(
    r"Solve the following math problem step by step\.[^\n]*\n\n(?P<problem>.*)\n\n"
    r'Remember to put your answer on its own line after "Answer:"\.?',
    re.DOTALL,
)


def question_text(value: object) -> object:
    """The problem itself: of a list of messages the last one of the user, without DAPO's wrapping.

    What is no such list and no text comes back as it is.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        texts = [
            message.get("content")
            for message in value
            if isinstance(message, Mapping) and message.get("role") == "user"
        ]
        value = texts[-1] if texts else value
    wrapped = _DAPO.fullmatch(value.strip()) if isinstance(value, str) else None
    return wrapped["problem"] if wrapped else value
