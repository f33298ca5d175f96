"""The phases of the crash matrix lead through functions that exist: it hits them by name."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def places() -> list[tuple[str, str]]:
    sys.path.append(str(ROOT / "benchmarks"))
    from crash_bench import PHASES

    sys.path.remove(str(ROOT / "benchmarks"))
    return sorted({(path, names) for phase in PHASES.values() for path, names, _ in phase})


@pytest.mark.parametrize(("path", "names"), places())
def test_a_place_of_a_phase_exists(path: str, names: str) -> None:
    files = [file for file in ROOT.glob(f"{path}*") if file.suffix == ".py"]
    defined = {
        node.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert set(names.split("|")) <= defined
