"""A published catalogue and a way to ask it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_catalog.queries import open_catalog

Ask = Callable[[str], list[tuple[object, ...]]]


@pytest.fixture
def catalog_path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.duckdb"


@pytest.fixture
def ask(catalog_path: Path) -> Ask:
    def run(sql: str) -> list[tuple[object, ...]]:
        with open_catalog(catalog_path) as connection:
            return connection.execute(sql).fetchall()

    return run
