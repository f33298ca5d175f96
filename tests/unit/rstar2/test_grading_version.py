from __future__ import annotations

import ast
import re
from pathlib import Path

import rstar2.grading
from rstar2.grading_version import RULES, grading_version

NOUNS = "types"


def test_the_version_names_rules_and_libraries() -> None:
    assert re.fullmatch(r"rules [0-9a-f]{8}, math-verify [\d.]+, sympy [\d.]+", grading_version())


def test_the_rules_are_all_that_grading_imports_of_this_room() -> None:
    """Else a verdict could change under the same version."""
    room = Path(rstar2.grading.__file__).parent
    imported = set(RULES)
    for name in RULES:
        for node in ast.walk(ast.parse((room / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "rstar2":
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("rstar2."):
                imported.add(str(node.module).removeprefix("rstar2."))
    assert imported - {NOUNS} == set(RULES)
