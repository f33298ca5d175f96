from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rstar2.reward import NO_ANSWER, apply_verdict, known_verdict
from rstar2.types import Rollout, RolloutStatus, Verdict, VerdictKind, read_only

ROLLOUT = Rollout(
    rollout_id="r",
    problem_id="p",
    prompt_token_ids=read_only([1], np.int32),
    turns=(),
    status=RolloutStatus.COMPLETED,
    answer="4",
    num_answer_tags=1,
)


def verdict(kind: VerdictKind) -> Verdict:
    return Verdict(kind=kind, reason="because")


@pytest.mark.parametrize(
    ("kind", "reward"),
    [(VerdictKind.CORRECT, 1.0), (VerdictKind.INCORRECT, 0.0), (VerdictKind.UNDECIDED, None)],
)
def test_verdict_becomes_the_reward(kind, reward):
    graded = apply_verdict(ROLLOUT, verdict(kind))
    assert graded.reward == reward
    assert graded.verdict_reason == "because"


def test_no_answer_earns_nothing_whatever_the_verdict():
    graded = apply_verdict(replace(ROLLOUT, answer=None), verdict(VerdictKind.UNDECIDED))
    assert graded.reward == 0.0


def test_failed_rollout_has_no_reward():
    failed = replace(ROLLOUT, status=RolloutStatus.FAILED)
    assert apply_verdict(failed, verdict(VerdictKind.CORRECT)).reward is None


@pytest.mark.parametrize("status", ["truncated_length", "truncated_turns"])
def test_truncated_rollout_earns_nothing_whatever_the_verdict(status):
    truncated = replace(ROLLOUT, status=RolloutStatus(status))
    assert apply_verdict(truncated, verdict(VerdictKind.CORRECT)).reward == 0.0


def test_answer_of_a_completed_rollout_must_be_graded():
    assert known_verdict(ROLLOUT) is None


def test_missing_answer_needs_no_grading():
    assert known_verdict(replace(ROLLOUT, answer=None)) is NO_ANSWER
