"""What each band would keep, over a table of eight tries a problem."""

from __future__ import annotations

import pytest

from rstar2.bands import band_name, bands_text, count_bands
from rstar2.difficulty import Tries
from rstar2.filter_config import FilterConfig

SOLVED = [0, 0, 1, 2, 4, 6, 7, 8, 8, 8]
UNDECIDED = [(7, 7), (0, 6), (4, 5)]
"""Correct and decided of eight."""


def measured() -> list[Tries]:
    pairs = [*((num_correct, 8) for num_correct in SOLVED), *UNDECIDED]
    return [
        Tries(problem_id=f"p{n}", num_correct=num_correct, num_decided=num_decided, num_rollouts=8)
        for n, (num_correct, num_decided) in enumerate(pairs)
    ]


def test_each_usual_band_is_counted_from_the_widest_to_the_narrowest() -> None:
    found = [
        (row.name, row.is_configured, row.num_kept, row.num_undecided, row.num_dropped)
        for row in count_bands(measured(), FilterConfig())
    ]
    assert found == [
        ("drop 8 of 8", True, 10, 1, 3),
        ("drop 0 of 8", False, 11, 1, 2),
        ("0 < p < 1", False, 8, 2, 5),
        ("2 to 6 of 8", False, 5, 2, 8),
    ]


def test_the_configured_band_is_among_them() -> None:
    rows = count_bands(measured(), FilterConfig(min_correct=1, max_correct=4))
    assert [(row.name, row.num_kept) for row in rows if row.is_configured] == [("1 to 4 of 8", 5)]
    assert len(rows) == 5


@pytest.mark.parametrize(
    ("num_rollouts", "names"),
    [
        (1, ["drop 1 of 1", "drop 0 of 1"]),
        (2, ["drop 2 of 2", "drop 0 of 2", "0 < p < 1"]),
        (16, ["drop 16 of 16", "drop 0 of 16", "0 < p < 1", "4 to 12 of 16"]),
    ],
)
def test_of_few_rollouts_only_the_bands_that_exist(num_rollouts: int, names: list[str]) -> None:
    rows = count_bands([], FilterConfig(num_rollouts=num_rollouts))
    assert [row.name for row in rows] == names


def test_a_band_is_called_by_what_people_call_it() -> None:
    assert band_name(FilterConfig(max_correct=8)) == "0 to 8 of 8"
    assert band_name(FilterConfig(min_correct=1, max_correct=7)) == "0 < p < 1"


def test_the_table_is_aligned_and_says_how_often_problems_were_solved() -> None:
    assert bands_text(measured(), FilterConfig(min_correct=1)).splitlines() == [
        "band           kept  of them undecided  dropped",
        "  drop 8 of 8    10                  1        3",
        "  drop 0 of 8    11                  1        2",
        "* 0 < p < 1       8                  2        5",
        "  2 to 6 of 8     5                  2        8",
        "* as configured. Problems by times solved: 0: 2, 1: 1, 2: 1, 4: 1, 6: 1, 7: 1, 8: 3, not "
        "fully decided: 3",
    ]
