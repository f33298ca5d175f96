"""Answer checks that other verifiers decided wrongly, with the verdict that is right here."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from infra.grading_process import grade_with_deadline
from rstar2.grading import count_answer_tags, extract_answer, grade_mathematics
from rstar2.reward import NO_ANSWER, apply_verdict
from rstar2.types import Rollout, RolloutStatus, Verdict, VerdictKind, read_only

CORRECT, INCORRECT = VerdictKind.CORRECT, VerdictKind.INCORRECT


def verdict_on(gold: str, output: str, answer_tags="optional") -> VerdictKind:
    answer = extract_answer(output, answer_tags)
    return (grade_mathematics(gold, answer) if answer is not None else NO_ANSWER).kind


def tower(height: int) -> str:
    return "x^" * height + "x"


@pytest.mark.parametrize(
    ("gold", "output", "expected"),
    [
        pytest.param(r"\frac{1}{\sqrt{n}}", r"\boxed{\sqrt{1/n}}", CORRECT, id="A1"),
        pytest.param(r"\dfrac{\pi}{2}", "pi/2", INCORRECT, id="A2-no-box"),
        pytest.param(r"\dfrac{\pi}{2}", r"\boxed{pi/2}", CORRECT, id="A2-plain-text"),
        pytest.param(r"-2\pi", "-2*pi", INCORRECT, id="A2-negative-no-box"),
        pytest.param(r"-2\pi", r"\boxed{-2*pi}", CORRECT, id="A2-negative-plain-text"),
        pytest.param(r"\frac{1}{3}", r"\boxed{0.333333}", INCORRECT, id="A4"),
        pytest.param(r"\frac{1}{3}", r"\boxed{0." + "3" * 60 + "}", INCORRECT, id="A4-long"),
        pytest.param("0.25", r"\boxed{\frac14}", CORRECT, id="A4-exact-decimal"),
        pytest.param(r"\frac{1}{2004!}", r"\boxed{\frac{1}{2006!}}", INCORRECT, id="A6"),
        pytest.param(
            r"\frac{2^{2005}+1}{3\cdot2^{2006}}",
            r"\boxed{\frac{1}{3\cdot2^{2006}}}",
            INCORRECT,
            id="A8",
        ),
        pytest.param(
            r"\frac{2^{2005}+1}{3\cdot2^{2006}}", r"\boxed{\frac16}", INCORRECT, id="A8-limit"
        ),
        pytest.param(
            r"\frac{2^{2005}+1}{3\cdot2^{2006}}",
            r"\boxed{\frac16+\frac{1}{3\cdot2^{2006}}}",
            CORRECT,
            id="A8-rearranged",
        ),
        pytest.param("3", r"\boxed{3 \text{ or } 4}", INCORRECT, id="A9"),
        pytest.param("3", r"\boxed{3, 4}", INCORRECT, id="A9-list"),
        pytest.param("3", r"\boxed{x=3 \text{ or } x=4}", INCORRECT, id="A9-equations"),
        pytest.param(
            "7",
            r"\boxed{8} <answer>\boxed{8}</answer> The answer is 7.",
            INCORRECT,
            id="A11",
        ),
        pytest.param("3", r"\boxed{3", INCORRECT, id="A12"),
        pytest.param("7", r"\boxed{3} wait, actually \boxed{7}", CORRECT, id="A13"),
        pytest.param(
            "7", r"\boxed{3}. Hmm, that is not right. Redo: \boxed{7}", CORRECT, id="A13-redo"
        ),
        pytest.param("204", "<answer>204</answer>", INCORRECT, id="A15"),
        pytest.param("204", "The answer is 204.", INCORRECT, id="A15-prose"),
        pytest.param("204", r"\boxed{The answer is 204}", INCORRECT, id="A16"),
        pytest.param("5", r"\boxed{5^{th}}", INCORRECT, id="A17"),
        pytest.param("1234", r"\boxed{1,234}", CORRECT, id="A19-comma"),
        pytest.param("1000000", r"\boxed{1{,}000{,}000}", CORRECT, id="A19-braces"),
        pytest.param("12345", r"\boxed{12 345}", CORRECT, id="A19-space"),
        pytest.param("12345", r"\boxed{12\,345}", CORRECT, id="A19-thin-space"),
        pytest.param("1000000", r"\boxed{1,000,000}", CORRECT, id="A19-twice"),
        pytest.param("1234", r"\boxed{{1,234}}", CORRECT, id="A19-in-braces"),
        pytest.param("1234", r"\boxed{1,\!234}", CORRECT, id="A19-negative-space"),
        pytest.param("-1234.5", r"\boxed{-1,234.5}", CORRECT, id="A19-decimals"),
        pytest.param("617", r"\boxed{\frac{1,234}{2}}", CORRECT, id="A19-in-a-fraction"),
        pytest.param(r"1234\pi", r"\boxed{1,234\pi}", CORRECT, id="A19-with-a-factor"),
        pytest.param("(1000,2000)", r"\boxed{(1{,}000,2{,}000)}", CORRECT, id="A19-tuple"),
        pytest.param("1234567", r"\boxed{1234{,}567}", INCORRECT, id="A19-long-first-group"),
        pytest.param("100200", r"\boxed{100, 200}", INCORRECT, id="A19-list"),
        pytest.param("100200", r"\boxed{100,~200}", INCORRECT, id="A19-list-tie"),
        pytest.param("100200", r"\boxed{100,\;200}", INCORRECT, id="A19-list-spacing"),
        pytest.param("100200", "\\boxed{100,\u00a0200}", INCORRECT, id="A19-list-no-break"),
        pytest.param("100200", r"\boxed{100, 200 \text{ cm}}", INCORRECT, id="A19-list-unit"),
        pytest.param("100, 200", r"\boxed{100200}", INCORRECT, id="A19-list-as-gold"),
        pytest.param("100, 200", r"\boxed{200, 100}", CORRECT, id="A19-list-reordered"),
        pytest.param("100, 200, 300", r"\boxed{\{100,200,300\}}", CORRECT, id="A19-list-set"),
        pytest.param("1000", r"\boxed{1, 000}", INCORRECT, id="A19-comma-and-space"),
        pytest.param("100", r"\boxed{1,00}", INCORRECT, id="A19-two-digits"),
        pytest.param("10000", r"\boxed{1,0000}", INCORRECT, id="A19-four-digits"),
        pytest.param("100200", r"\boxed{(100,200)}", INCORRECT, id="A19-pair"),
        pytest.param("(100,200)", r"\boxed{(100, 200)}", CORRECT, id="A19-pair-spaced"),
        pytest.param("(100,200)", r"\boxed{100200}", INCORRECT, id="A19-pair-as-gold"),
        pytest.param("1,2", r"\boxed{1, 2}", CORRECT, id="A19-short-list"),
        pytest.param("12", r"\boxed{12, 12}", INCORRECT, id="A9-same-twice"),
        pytest.param("12", r"\boxed{12,12}", INCORRECT, id="A9-same-twice-close"),
        pytest.param("12", r"\boxed{12 \text{ or } 12}", INCORRECT, id="A9-same-twice-or"),
        pytest.param("2", r"\boxed{2, \frac{4}{2}}", INCORRECT, id="A9-same-value-twice"),
        pytest.param("12", r"\boxed{x=12, x=12}", INCORRECT, id="A9-same-equation-twice"),
        pytest.param("1000", r"\boxed{1,000, 1,000}", INCORRECT, id="A9-same-thousand-twice"),
        pytest.param("1, 2", r"\boxed{1, 2, 2}", INCORRECT, id="A9-list-with-a-repeat"),
        pytest.param("1, 2, 3", r"\boxed{1, 2, \text{ and } 3}", CORRECT, id="A9-list-and"),
        pytest.param("1, 1, 2", r"\boxed{1, 2, 1}", CORRECT, id="A9-repeat-as-gold"),
        pytest.param("(1,2),(1,3)", r"\boxed{(1,3),(1,2)}", CORRECT, id="A9-list-of-pairs"),
        pytest.param(r"\{12\}", r"\boxed{\{12, 12\}}", CORRECT, id="A9-a-set-has-no-repeats"),
        pytest.param("-5", "\\boxed{\u22125}", CORRECT, id="A20"),
        pytest.param("5", "\\boxed{\u22125}", INCORRECT, id="A20-sign-kept"),
        pytest.param(r"50\%", r"\boxed{50}", CORRECT, id="A22-unit"),
        pytest.param("0.5", r"\boxed{50\%}", CORRECT, id="A22-factor"),
        pytest.param("50", r"\boxed{50\%}", CORRECT, id="A22-sign-in-answer"),
        pytest.param(r"50\%", r"\boxed{0.5\%}", INCORRECT, id="A22-two-percentages"),
        pytest.param("(1,2)", r"\boxed{(2,1)}", INCORRECT, id="A23"),
        pytest.param("(2,1)", r"\boxed{\left(2,\frac22\right)}", CORRECT, id="A23-equal"),
        pytest.param(r"\{1,2\}", r"\boxed{\{2,1\}}", CORRECT, id="A24"),
        pytest.param(r"\{1,2\}", r"\boxed{(1,2)}", INCORRECT, id="A24-tuple"),
        pytest.param("2x+4y-3=0", r"\boxed{y=-\frac12x+\frac34}", CORRECT, id="A26"),
        pytest.param("3x-y+13=0", "3x+4y+14=0", INCORRECT, id="A27-no-box"),
        pytest.param("3x-y+13=0", r"\boxed{3x+4y+14=0}", INCORRECT, id="A27"),
        pytest.param("$4$", r"$4\sqrt(2)$", INCORRECT, id="A29-no-box"),
        pytest.param("$4$", r"\boxed{4\sqrt(2)}", INCORRECT, id="A29"),
        pytest.param("$4$", r"\boxed{$4\sqrt{2}$}", INCORRECT, id="A29-dollars"),
        pytest.param("1", r"\boxed{9^{9^{9^{9}}}}", INCORRECT, id="A32-tower"),
        pytest.param("1", r"\boxed{(10^{10})!}", INCORRECT, id="A32-factorial"),
        pytest.param("1", r"\boxed{5^(5^(5^(5^5)))}", INCORRECT, id="A32-plain-tower"),
        pytest.param("1", rf"\boxed{{{tower(50)}}}", INCORRECT, id="A32-slow-parse"),
        pytest.param("B", r"\boxed{B}", CORRECT, id="A38"),
        pytest.param("B", r"\boxed{\text{(B)}}", CORRECT, id="A38-text"),
        pytest.param("B", r"\boxed{C}", INCORRECT, id="A38-other"),
    ],
)
def test_verdict(gold, output, expected):
    assert verdict_on(gold, output) is expected


def test_a15_required_tags_without_a_box_have_no_answer():
    assert extract_answer("<answer>204</answer>", "required") is None


def test_right_but_untagged_is_no_answer_and_a_format_fault():
    text = r"so it is \boxed{204}"
    assert extract_answer(text, "required") is None
    assert count_answer_tags(text) == 0


def test_g4_single_turn_with_one_answer_has_one_tag():
    assert count_answer_tags(r"<reason>easy</reason><answer>\boxed{4}</answer>") == 1


def test_g5_mentioned_tag_counts_and_hides_no_answer():
    text = r"I must put it in `<answer>` tags. <answer>\boxed{4}</answer>"
    assert count_answer_tags(text) == 2
    assert extract_answer(text, "required") == "4"


def test_a32_endless_check_meets_its_deadline():
    verdict = grade_with_deadline(tower(60), "5", 1.0)
    assert verdict.kind is VerdictKind.UNDECIDED
    assert "1 s" in verdict.reason


def test_a34_thread_gives_the_verdict_of_the_main_thread():
    verdicts = []
    pair = (r"\sqrt{8}", r"2\sqrt{2}")
    thread = threading.Thread(target=lambda: verdicts.append(grade_mathematics(*pair)))
    thread.start()
    thread.join()
    assert verdicts == [grade_mathematics(*pair)]
    assert verdicts[0].kind is CORRECT


def test_a35_answer_is_never_executed(tmp_path: Path):
    target = tmp_path / "touched"
    answer = f'__import__("os").system("touch {target}")'
    assert grade_mathematics("7", answer).kind is INCORRECT
    assert grade_mathematics("x", answer).kind is INCORRECT
    assert not target.exists()


def test_a36_undecided_has_no_reward_rather_than_zero():
    rollout = Rollout(
        rollout_id="r",
        problem_id="p",
        prompt_token_ids=read_only([1], np.int32),
        turns=(),
        status=RolloutStatus.COMPLETED,
        answer="4",
        num_answer_tags=1,
    )
    unknown = Verdict(kind=VerdictKind.UNDECIDED, reason="the checking process died")
    assert apply_verdict(rollout, unknown).reward is None
