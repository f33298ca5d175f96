"""Profiles: every one that ships is valid, and a wrong one says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rstar2.config import ConfigError, RecipeConfig
from rstar2.profiles import config_difference, config_hash, load_config, profile_names


@pytest.mark.parametrize("profile", profile_names())
def test_every_shipped_profile_is_valid(profile: str) -> None:
    assert load_config(profile).profile == profile


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sed=3", "sed: unknown key (seen: 3); did you mean seed?"),
        ("gates.rl-1.treshold=0.1", "unknown key (seen: 0.1); did you mean threshold?"),
        ("stages.rl-2.problems.a=1", "expected one of answer_column, num_problems"),
        ("seed=x", "seed: Input should be a valid integer"),
        ("seed", "expected key.path=value, as in seed=3"),
        ("num_threads.x=1", "num_threads is a value, not a table"),
        ("rollout.temperature=0", "rollout.temperature: Input should be greater than 0 (seen: 0)"),
        ("stages.rl-1.group_size=1", "a group baseline needs at least 2"),
        ("stages.rl-1.num_rollouts=2", "set num_rollouts to 2 x group_size"),
        ("stages.rl-9.group_size=4", "write one table [gates.NAME] for each [stages.NAME]"),
        ("stages.rl-2.filter_problems=true", "leave it on for one such stage"),
        ("filter.drop_at=9", "can never be reached with num_rollouts"),
        ("rollout.engine=sglang", 'needs rollout.servers = ["http://host:port"]'),
    ],
)
def test_a_wrong_override_names_field_value_and_remedy(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("smoke", [override])
    assert message in str(caught.value)


def test_an_unknown_profile_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="unknown profile 'lapto': expected one of laptop, smoke"):
        load_config("lapto")


def test_broken_toml_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("seed = \n")
    with pytest.raises(ConfigError, match=r"mine\.toml: not valid TOML"):
        load_config(str(tmp_path / "mine.toml"))


def test_a_profile_of_ones_own_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[stages.only]\n[gates.only]\n")
    assert load_config(str(tmp_path / "mine.toml")).profile == "mine"


def test_an_override_reaches_one_field() -> None:
    config = load_config("smoke", ["gates.rl-1.threshold=0.08"])
    assert config.gates["rl-1"].threshold == 0.08
    assert config.gates["rl-2"] == load_config("smoke").gates["rl-2"]


def test_stages_keep_the_order_of_the_profile(tmp_path: Path) -> None:
    tables = "".join(f"[stages.{n}]\n[gates.{n}]\n" for n in ("warm", "hot", "cold"))
    (tmp_path / "mine.toml").write_text(tables)
    config = load_config(str(tmp_path / "mine.toml"))
    again = RecipeConfig.model_validate_json(config.model_dump_json())
    assert list(again.stages) == ["warm", "hot", "cold"]


def test_where_a_run_is_kept_is_not_part_of_what_it_computes() -> None:
    here, there = load_config("smoke"), load_config("smoke", ["storage=elsewhere"])
    assert config_hash(here) == config_hash(there)
    assert config_hash(here) != config_hash(load_config("smoke", ["seed=1"]))


def test_a_difference_is_a_line_with_both_values() -> None:
    old = load_config("smoke").model_dump(mode="json")
    new = load_config("smoke", ["stages.rl-1.max_turns=5"]).model_dump(mode="json")
    assert config_difference(old, new) == ["stages.rl-1.max_turns: 4 -> 5"]


def test_nouns_and_configuration_load_neither_torch_nor_prefect() -> None:
    code = (
        "import sys, rstar2.types, rstar2.config;"
        "print([m for m in ('torch', 'prefect', 'transformers', 'duckdb') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"
