"""RoC, resample on correct: of the 2G rollouts of a group, the G that are trained on.

Keeps the cleaner successes and all kinds of failure (report §2.2.3), instead of putting tool errors
or format faults into the reward. Reads groups, gives smaller groups; seeded, and blind to the order
in which rollouts arrived. Decides nothing about groups without signal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from rstar2.types import Group, Rollout

RELEASED_CODE_MINIMUM = 2
"""The released code keeps at least so many of each class, where the group has them."""


def penalties(rollout: Rollout) -> tuple[float, float]:
    """`(p_err, p_format)` of a rollout (report E4, E5).

    p_err: 0.5 without a tool call, else errors / calls, judged by the status of each call and never
    by words in its output. p_format: 1 without an `<answer>`, else the tags too many per turn, at
    most 1; the first turn and a truncated last one are turns. Only sampled text is counted, and of
    it every `<answer>`, also one named in prose or never closed (`grading.count_answer_tags`).
    """
    p_err = rollout.tool_error_rate if rollout.num_tool_calls else 0.5
    if rollout.num_answer_tags < 1:
        return p_err, 1.0
    return p_err, min(1.0, (rollout.num_answer_tags - 1) / max(1, rollout.num_turns))


def resample_on_correct(group: Group, *, group_size: int, rule: str, seed: int) -> Group | None:
    """The group with exactly `group_size` of its decided rollouts, ordered by rollout id.

    None where fewer are decided. A group keeps at least one of each class (reward 1, reward 0) that
    it had, so a group with signal stays one. Rules:

    - `paper`: failures uniformly; successes without replacement with probability proportional to
      1 / (p_err + p_format). Where that sum is exactly 0 we take the limit of the formula: clean
      successes come first, uniformly among themselves, and the others fill what is left by the
      formula. No smoothing constant, which the report does not have, bends the other ratios.
    - `released-code`: lowest penalty first, failures in order; its own counts.
    - `random`: uniform in both classes, with the counts of `paper`. A control.

    The result is a function of the set of rollouts, the problem id and `seed`.
    """
    decided = sorted(group.decided, key=lambda rollout: rollout.rollout_id)
    if len(decided) < group_size:
        return None
    positives = [r for r in decided if r.reward]
    negatives = [r for r in decided if not r.reward]
    count = released_code_counts if rule == "released-code" else paper_counts
    num_positives, num_negatives = count(len(positives), len(negatives), group_size)
    draw = _generator(group.problem_id, seed)
    if rule == "paper":
        kept = _draw_inverse(positives, num_positives, draw)
    elif rule == "random":
        kept = _draw_uniform(positives, num_positives, draw)
    elif rule == "released-code":
        kept = sorted(positives, key=_total_penalty)[:num_positives]
    else:
        raise ValueError(f"RoC rule {rule!r}: expected paper, released-code or random")
    if rule == "released-code":
        kept += negatives[:num_negatives]
    else:
        kept += _draw_uniform(negatives, num_negatives, draw)
    kept.sort(key=lambda rollout: rollout.rollout_id)
    return Group(problem_id=group.problem_id, rollouts=tuple(kept))


def paper_counts(num_positives: int, num_negatives: int, group_size: int) -> tuple[int, int]:
    """How many `(positives, negatives)` to keep of n = their sum; adds up to G exactly.

    Negatives: the whole part of their G/n share, which is half of them, rounded down, at n = 2G
    (report §2.2.3). Positives: the remainder. Where that would leave none of the negatives, one is
    kept: the report does not say so, but without it the group would lose its signal.
    """
    total = _check_counts(num_positives, num_negatives, group_size)
    negatives = num_negatives * group_size // total
    if num_positives and num_negatives:
        negatives = max(1, negatives)
    return group_size - negatives, negatives


def released_code_counts(
    num_positives: int, num_negatives: int, group_size: int
) -> tuple[int, int]:
    """The counts of the released code, made to add up to G for every n (there: n = 2G only).

    Each class keeps its G/n share, halves rounded to even, but at least two (half of G where G is
    below four), or all it has; the other class fills the rest.
    """
    total = _check_counts(num_positives, num_negatives, group_size)
    minimum = min(RELEASED_CODE_MINIMUM, group_size // 2)
    negatives = round(Fraction(num_negatives * group_size, total))
    lowest = max(min(minimum, num_negatives), group_size - num_positives)
    highest = min(num_negatives, group_size - min(minimum, num_positives))
    negatives = min(max(negatives, lowest), highest)
    return group_size - negatives, negatives


def _check_counts(num_positives: int, num_negatives: int, group_size: int) -> int:
    total = num_positives + num_negatives
    if group_size < 2 or total < group_size:
        raise ValueError(
            f"RoC cannot keep {group_size} of {num_positives} positive, {num_negatives} negative "
            "rollouts: it needs a group size of at least 2 and as many decided rollouts"
        )
    return total


def _total_penalty(rollout: Rollout) -> float:
    return sum(penalties(rollout))


def _generator(problem_id: str, seed: int) -> np.random.Generator:
    """Its own stream for each problem, so that one seed a step does not draw groups alike."""
    digest = hashlib.sha256(problem_id.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def _draw_inverse(
    rollouts: Sequence[Rollout], num_kept: int, generator: np.random.Generator
) -> list[Rollout]:
    """Without replacement, proportional to 1 / penalty: a race of exponential clocks.

    A clock of rate 1/p rings at p x Exp(1); the first k to ring are such a draw, and p = 0 rings at
    once, which is the limit of the formula. The clocks themselves break those ties.
    """
    clocks = generator.exponential(size=len(rollouts)).tolist()
    race = [
        (clock * _total_penalty(rollout), clock, index)
        for index, (rollout, clock) in enumerate(zip(rollouts, clocks, strict=True))
    ]
    return [rollouts[index] for _, _, index in sorted(race)[:num_kept]]


def _draw_uniform(
    rollouts: Sequence[Rollout], num_kept: int, generator: np.random.Generator
) -> list[Rollout]:
    return [rollouts[index] for index in generator.permutation(len(rollouts))[:num_kept]]
