"""A series of numbers as one line of text: the plot of a terminal and of a flow run's page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rstar2.step_metrics import StepMetrics

BLOCKS = "▁▂▃▄▅▆▇█"
MAX_WIDTH = 60


def sparkline(values: Sequence[float]) -> str:
    """`0.12 ▁▂▅█ 0.63`: first value, the course between its own extremes, last value."""
    if not values:
        return "(none)"
    shown = _thinned(values)
    low, high = min(shown), max(shown)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    course = "".join(BLOCKS[round((value - low) * scale)] for value in shown)
    return f"{values[0]:.2f} {course} {values[-1]:.2f}"


def sparklines(series: Sequence[StepMetrics]) -> list[str]:
    """What a gate looks at, one line each: reward, truncation rate, solved rate."""
    courses = {
        "reward": [m.reward for m in series],
        "truncated": [m.truncation_rate for m in series],
        "solved": [m.solved_rate for m in series],
    }
    return [f"{name:10} {sparkline(values)}" for name, values in courses.items()]


def _thinned(values: Sequence[float]) -> list[float]:
    """At most `MAX_WIDTH` means of neighbours."""
    width = min(len(values), MAX_WIDTH)
    edges = [n * len(values) // width for n in range(width + 1)]
    parts = [values[start:end] for start, end in pairwise(edges)]
    return [sum(part) / len(part) for part in parts]
