from __future__ import annotations

from rstar2.sparkline import MAX_WIDTH, sparkline


def test_a_series_is_drawn_between_its_extremes() -> None:
    assert sparkline([0.0, 0.25, 1.0]) == "0.00 ▁▃█ 1.00"


def test_a_flat_series_is_a_flat_line() -> None:
    assert sparkline([0.25, 0.25]) == "0.25 ▁▁ 0.25"


def test_no_value_is_said() -> None:
    assert sparkline([]) == "(none)"


def test_a_long_series_fits_a_line() -> None:
    assert len(sparkline([float(n) for n in range(1000)]).split()[1]) == MAX_WIDTH
