"""What each band of the difficulty filter would keep of measured problems: shown before one is applied.

Pure. Counts verdicts of `rstar2.difficulty`; samples nothing and decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rstar2.difficulty import Tries, difficulty_verdicts
from rstar2.filter_config import FilterConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class BandCounts:
    """One band over the measured problems."""

    name: str
    """As in `drop 8 of 8`, `0 < p < 1`, `2 to 6 of 8`."""
    is_configured: bool
    """It is the one that is applied."""
    num_kept: int
    num_undecided: int
    """Of the kept ones: too few attempts were decided to tell whether the band holds them."""
    num_dropped: int


def count_bands(tries: Sequence[Tries], config: FilterConfig) -> tuple[BandCounts, ...]:
    """The bands that people ask about, and the configured one, from the widest to the narrowest."""
    bands = {*_usual_bands(config.num_rollouts), config.band}
    ordered = sorted(bands, key=lambda band: (band[0] - band[1], band))
    alike = Counter(replace(row, problem_id="") for row in tries)
    return tuple(_counts(alike, config, band) for band in ordered)


def band_name(config: FilterConfig) -> str:
    """What the configured band is called."""
    (lowest, highest), most = config.band, config.num_rollouts
    if (lowest, highest) == (1, most - 1):
        return "0 < p < 1"
    if lowest == 0 and highest == most - 1:
        return f"drop {most} of {most}"
    if lowest == 1 and highest == most:
        return f"drop 0 of {most}"
    return f"{lowest} to {highest} of {most}"


def bands_text(tries: Sequence[Tries], config: FilterConfig) -> str:
    """The counts as aligned lines, and how many problems were solved how often."""
    rows = [["band", "kept", "of them undecided", "dropped"]]
    for row in count_bands(tries, config):
        numbers = (row.num_kept, row.num_undecided, row.num_dropped)
        mark = "* " if row.is_configured else "  "
        rows.append([mark + row.name, *(f"{number:,}" for number in numbers)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join([*lines, f"* as configured. {_solved_how_often(tries)}"])


def _usual_bands(num_rollouts: int) -> set[tuple[int, int]]:
    """The report's, its mirror, both, and the middle half; of few rollouts only those that exist."""
    quarter = -(-num_rollouts // 4)
    bands = {
        (0, num_rollouts - 1),
        (1, num_rollouts),
        (1, num_rollouts - 1),
        (quarter, num_rollouts - quarter),
    }
    return {(lowest, highest) for lowest, highest in bands if lowest <= highest}


def _counts(alike: Counter[Tries], config: FilterConfig, band: tuple[int, int]) -> BandCounts:
    """`alike`: how many problems came to the same counts, since 42,000 come to a few dozen."""
    other = config.model_copy(update={"min_correct": band[0], "max_correct": band[1]})
    verdicts = {v: alike[v.tries] for v in difficulty_verdicts(list(alike), other)}
    num_kept = sum(number for verdict, number in verdicts.items() if verdict.decision == "keep")
    return BandCounts(
        name=band_name(other),
        is_configured=band == config.band,
        num_kept=num_kept,
        num_undecided=sum(number for verdict, number in verdicts.items() if verdict.is_undecided),
        num_dropped=alike.total() - num_kept,
    )


def _solved_how_often(tries: Sequence[Tries]) -> str:
    counts = Counter(row.num_correct for row in tries if row.num_decided == row.num_rollouts)
    rest = len(tries) - counts.total()
    seen = [f"{number}: {counts[number]:,}" for number in sorted(counts)]
    seen += [f"not fully decided: {rest:,}"] if rest else []
    return f"Problems by times solved: {', '.join(seen) or 'none'}"
