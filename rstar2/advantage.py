"""Group advantages (report E7): the rewards of the G kept rollouts, centred and scaled.

Pure. The report names neither the kind of standard deviation nor a floor. Ours is that of the
population: E7 describes the G numbers at hand and estimates nothing, and the scale of an advantage
then depends on the share of successes alone, not on G.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MIN_STANDARD_DEVIATION = 1e-4
"""Under the divisor. Rewards that differ by rounding only then stay near zero, while the least
deviation of 0/1 rewards, 1/sqrt(G) about, lies far above it."""


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """`(r - mean) / std` of each reward, in order; zeros where all are equal."""
    if len(rewards) < 2 or not all(map(math.isfinite, rewards)):
        raise ValueError(
            f"advantages of rewards {list(rewards)!r}: expected two or more finite rewards; a "
            "group baseline compares a rollout with others (set group_size to 2 or more)"
        )
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    variance = math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)
    scale = max(math.sqrt(variance), MIN_STANDARD_DEVIATION)
    return [(reward - mean) / scale for reward in rewards]
