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

    A window is `window` steps with a decided rollout, as in the gate. Only full windows count: one
    lucky step is no best. None where there is none yet.
    """
    rewards = {metrics.step: metrics.reward for metrics in series if metrics.num_decided}
    last = {metrics.step for metrics in series}

    def means(step: int) -> list[float]:
        seen = [rewards[s] for s in sorted(rewards) if s <= step][-window:]
        return [sum(seen) / window] if len(seen) == window else []

    full = {step: mean for step in saved if step in last for mean in means(step)}
    return max(full, key=lambda step: (full[step], -step), default=None)


def kept_steps(series: Sequence[StepMetrics], saved: Sequence[int], *, window: int) -> set[int]:
    """The saved steps whose checkpoints stay after the last step of `series`."""
    best = best_step(series, saved, window=window)
    return {*sorted(saved)[-NUM_NEWEST:], *([] if best is None else [best])}
