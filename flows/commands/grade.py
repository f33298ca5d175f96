"""`rstar2 grade`: the verdict on one text, as one line of JSON.

Reads a file or standard input. Loads neither prefect nor torch; sympy only in a child process, and
only where text does not decide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from flows.commands.options import read_input


def grade(
    *,
    gold: str,
    text_file: Path | None = None,
    answer_tags: Literal["required", "optional"] = "optional",
    seconds: Annotated[float, Parameter(validator=validators.Number(gt=0))] = 5.0,
) -> None:
    """Checks the answer in a text against a gold answer.

    The answer is the last \\boxed{} inside the last <answer>, or, where the text has no <answer>
    at all, the last \\boxed{} (with --answer-tags required: none). Prints
    {"verdict": "correct" | "incorrect" | "undecided", "reason": ...} and exits 0.

    Example: echo 'so \\boxed{1{,}234}' | rstar2 grade --gold 1234

    Parameters
    ----------
    gold
        The right answer.
    text_file
        Where the text is; standard input without it.
    answer_tags
        "required" is what training asks for: a box outside <answer> earns nothing.
    seconds
        Deadline of the check; after it the verdict is "undecided".
    """
    import json

    from infra.grading_process import grade_with_deadline
    from rstar2.grading import extract_answer
    from rstar2.reward import NO_ANSWER

    answer = extract_answer(read_input(text_file).decode(errors="replace"), answer_tags)
    verdict = grade_with_deadline(gold, answer, seconds) if answer is not None else NO_ANSWER
    print(json.dumps({"verdict": verdict.kind, "reason": verdict.reason}, ensure_ascii=False))
