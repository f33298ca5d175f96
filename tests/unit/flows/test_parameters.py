"""What the server is told of each deployment's parameters: one pattern each, which it can list."""

from __future__ import annotations

import re

import pytest

from flows.by_hand import (
    difficulty_filter_by_hand,
    evaluation_by_hand,
    ingest_by_hand,
    rl_stage_by_hand,
)
from flows.deployments import deployments
from flows.recipe import recipe

FLOWS = [recipe, rl_stage_by_hand, difficulty_filter_by_hand, evaluation_by_hand, ingest_by_hand]


def pattern(flow: object, parameter: str) -> str:
    return str(flow.parameters.properties[parameter]["pattern"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_no_parameter_is_a_union(flow: object) -> None:
    properties = flow.parameters.properties  # type: ignore[attr-defined]
    assert all("anyOf" not in schema for schema in properties.values())


@pytest.mark.parametrize(
    ("parameter", "value", "is_allowed"),
    [
        ("profile", "laptop", True),
        ("profile", "mine/other.toml", True),
        ("profile", "lptop", False),
        ("run", "", True),
        ("run", "demo-2", True),
        ("run", "2-demo", False),
        ("run", "a b", False),
    ],
)
def test_the_recipe_s_patterns(parameter: str, value: str, is_allowed: bool) -> None:
    assert bool(re.search(pattern(recipe, parameter), value)) is is_allowed


@pytest.mark.parametrize(
    ("value", "is_allowed"), [("rl-1", True), ("rl-3", True), ("stage9", False), ("", False)]
)
def test_a_stage_by_hand_is_one_of_the_rl_stages(value: str, is_allowed: bool) -> None:
    assert bool(re.search(pattern(rl_stage_by_hand, "stage"), value)) is is_allowed


def test_the_checkout_serves_the_recipe_and_its_parts() -> None:
    assert [f"{d.flow_name}/{d.name}" for d in deployments()] == [
        "rstar2/full-recipe",
        "rl-stage/by-hand",
        "difficulty-filter/by-hand",
        "evaluation/by-hand",
        "ingest/by-hand",
    ]
