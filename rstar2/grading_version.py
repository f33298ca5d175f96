"""Which verifier judged: the rules of this program and the libraries they call.

Reads the sources of the modules that a verdict depends on. Two verdicts under one version are by the
same rules; a pass rate is stored with it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from functools import cache
from pathlib import Path

RULES = ("answers", "equality", "expressions", "grading", "reward")
"""Modules of this room that decide what an answer is and whether it is right."""
LIBRARIES = ("math-verify", "sympy")


@cache
def grading_version() -> str:
    """As in `rules 3f2a91c0, math-verify 0.9.0, sympy 1.14.0`."""
    digest = hashlib.sha256()
    for name in RULES:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    libraries = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    return ", ".join([f"rules {digest.hexdigest()[:8]}", *libraries])
