"""The reward of a rollout (report E3): 1 for a right answer, 0 for anything else, nothing besides.

Reads a rollout and the verdict on its answer; writes nothing. Penalties for tool errors and format
belong to the choice of rollouts (`roc`), never to the reward. An unknown is None, never 0.
"""

from __future__ import annotations

from dataclasses import replace

from rstar2.types import Rollout, RolloutStatus, Verdict, VerdictKind

NO_ANSWER = Verdict(
    kind=VerdictKind.INCORRECT, reason="no \\boxed{} answer where the recipe reads it"
)
"""The verdict on a rollout without an answer; there is nothing to check."""
TRUNCATED = Verdict(kind=VerdictKind.INCORRECT, reason="truncated: the rollout never ended")
"""A truncated rollout earns 0 and stays as a failure: no overlong filtering (report §4.3.1)."""
_REWARDS = {
    VerdictKind.CORRECT: 1.0,
    VerdictKind.INCORRECT: 0.0,
    VerdictKind.UNDECIDED: None,
}


def apply_verdict(rollout: Rollout, verdict: Verdict) -> Rollout:
    """The rollout with its reward and the reason for it.

    A failed rollout has no reward. One that was truncated or has no answer earns 0 whatever the
    verdict says.
    """
    if rollout.status is RolloutStatus.FAILED:
        return replace(rollout, reward=None, verdict_reason="the rollout failed: not graded")
    if (known := known_verdict(rollout)) is not None:
        verdict = known
    return replace(rollout, reward=_REWARDS[verdict.kind], verdict_reason=verdict.reason)


def known_verdict(rollout: Rollout) -> Verdict | None:
    """The verdict that needs no look at an answer, or None where it must be graded."""
    if rollout.status in (RolloutStatus.TRUNCATED_LENGTH, RolloutStatus.TRUNCATED_TURNS):
        return TRUNCATED
    return NO_ANSWER if rollout.answer is None else None
