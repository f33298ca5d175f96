"""Which checkpoints of a running stage are kept: the newest, and the best so far. Pure.

The best is the one at the end of the window of steps with the highest mean reward. It is what a
stage is left with when its reward collapses, so it may not have been deleted before.
"""

from __future__ import annotations

from collections.abc import Sequence

from rstar2.step_metrics import StepMetrics

NUM_NEWEST = 2
"""One to resume from, one more in case that one is damaged."""


def best_step(series: Sequence[StepMetrics], saved: Sequence[int], *, window: int) -> int | None:
    """Of the saved steps the one that ends the best window; the earliest of equals.

    Only full windows count: one lucky step is no best. None where there is none yet.
    """
    rewards = {metrics.step: metrics.reward for metrics in series}

    def mean_until(step: int) -> float:
        return sum(rewards[s] for s in range(step - window + 1, step + 1)) / window

    full = [s for s in saved if s >= window and s in rewards]
    return max(full, key=lambda step: (mean_until(step), -step), default=None)


def kept_steps(series: Sequence[StepMetrics], saved: Sequence[int], *, window: int) -> set[int]:
    """The saved steps whose checkpoints stay after the last step of `series`."""
    best = best_step(series, saved, window=window)
    return {*sorted(saved)[-NUM_NEWEST:], *([] if best is None else [best])}
