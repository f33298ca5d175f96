import json

import pytest

from infra.sandbox.tiers import read_verdicts, tier_of


@pytest.mark.parametrize(
    ("code", "tier"),
    [
        ("print(1 + 1)", "tiny"),
        ("import math", "tiny"),
        ("import numpy as np", "numpy"),
        ("from sympy import *", "sympy"),
        ("import mpmath, numpy", "sympy"),
        ("from scipy.optimize import brentq", "full"),
        ("my_numpy_like = 1", "tiny"),
    ],
)
def test_code_goes_to_the_tier_it_names(code: str, tier: str) -> None:
    assert tier_of(code) == tier


def _record(kind: str, reason: str) -> bytes:
    return json.dumps([kind, reason]).encode() + b"\n"


def test_complete_verdicts_are_read_and_a_torn_one_is_dropped() -> None:
    data = _record("correct", "equal") + _record("incorrect", "other")
    assert read_verdicts(data + data[:9]) == [("correct", "equal"), ("incorrect", "other")]
    assert read_verdicts(b"") == []
