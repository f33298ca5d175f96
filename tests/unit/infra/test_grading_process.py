from __future__ import annotations

from infra.grading_process import grade_with_deadline
from rstar2.types import VerdictKind


def test_mathematics_is_done_in_the_child():
    verdict = grade_with_deadline("\\sqrt{8}", "2\\sqrt{2}", 30.0)
    assert verdict.kind is VerdictKind.CORRECT


def test_overrun_is_undecided():
    verdict = grade_with_deadline("x^" * 60 + "x", "5", 0.2)
    assert verdict.kind is VerdictKind.UNDECIDED
    assert verdict.reason == "not decided within 0.2 s"
