"""Profiles: every one that ships is valid, and a wrong one says what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rstar2.config import ConfigError, RecipeConfig
from rstar2.profiles import (
    NOT_IDENTITY,
    config_difference,
    config_hash,
    load_config,
    override_config,
    problem_overrides,
    profile_names,
)


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
        ("stages.evaluation.max_turns=4", "stage 'evaluation': expected small letters, digits and"),
        ("stages.RL4.max_turns=4", "stage 'RL4': expected small letters, digits and dashes"),
        ("filter.drop_at=9", "drop_at = 9 can never be reached with num_rollouts = 2"),
        ("filter.drop_at=x", "drop_at = 'x': expected 1 or more; better, write max_correct"),
        ("filter.max_correct=3", "max_correct = 3 can never be reached with num_rollouts = 2"),
        ("filter.min_correct=-1", "filter.min_correct: Input should be greater than or equal to 0"),
        (
            "filter.min_correct=2",
            "filter: min_correct = 2 lies above max_correct = 1 (num_rollouts - 1): no problem could "
            "be kept; lower min_correct or raise max_correct",
        ),
        ("filter={min_correct=2, max_correct=1}", "min_correct = 2 lies above max_correct = 1: no"),
        ("filter={drop_at=2, max_correct=1}", "say the same in two ways; leave drop_at out"),
        ("rollout.engine=sglang", "rollout.engine: unknown key (seen: 'sglang')"),
        ("trainer.kind=deepspeed", "trainer.kind: unknown key (seen: 'deepspeed')"),
        ("stages.rl-1.min_groups=5", "min_groups = 5 lies above num_problems_per_step = 4"),
        ("stages.rl-1.shares={a=0.6, b=0.6}", "shares sum to 1.200: expected at most 1.0"),
        ("gates.rl-1.rules=[]", "rules = []: a gate without a rule has nothing to decide by; "),
        ("gates.rl-1.rules=[]", "one or more of truncation_settled, no_collapse, reward_flat"),
        (
            "gates.rl-1.min_steps=4",
            "gates.rl-1: min_steps = 4 lies above max_steps = 3: no rule could promote the stage; "
            "set min_steps to at most max_steps",
        ),
        (
            "gates.rl-1.window=4",
            "gates.rl-1: window = 4 lies above max_steps = 3: the stage would end before its first "
            "window is full; set window to at most max_steps",
        ),
        (
            'gates.rl-3.rules=["evaluation_saturated"]',
            "gates.rl-3.rules names evaluation_saturated, but stages.rl-3.evaluate_every_steps = 0: "
            "there is no score to decide by; set stages.rl-3.evaluate_every_steps to 1 or more, or "
            "take the rule out",
        ),
    ],
)
def test_a_wrong_override_names_field_value_and_remedy(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("smoke", [override])
    assert message in str(caught.value)


EVALUATED = [
    'gates.rl-1.rules=["no_collapse", "evaluation_flat"]',
    "gates.rl-1.max_steps=20",
    "stages.rl-1.evaluate_every_steps=5",
]


def test_an_evaluation_rule_is_taken_where_the_stage_evaluates_often_enough() -> None:
    gate = load_config("smoke", EVALUATED).gates["rl-1"]
    assert gate.evaluation_rules == ("evaluation_flat",)


def test_an_evaluation_rule_whose_scores_come_after_the_last_step_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("smoke", [*EVALUATED, "gates.rl-1.max_steps=19"])
    assert "the last of them is at step 20, after max_steps = 19" in str(caught.value)


def test_only_the_first_stage_waits_for_a_person_at_its_maximum_of_steps(tmp_path: Path) -> None:
    tables = "".join(f"[stages.{n}]\n[gates.{n}]\n" for n in ("warm", "hot", "cold"))
    (tmp_path / "mine.toml").write_text(tables)
    path = str(tmp_path / "mine.toml")
    gates = load_config(path).gates
    assert [gate.at_max_steps for gate in gates.values()] == ["hold", "promote", "promote"]
    written = load_config(
        path, ["gates.warm.at_max_steps=promote", "gates.cold.at_max_steps=hold"]
    ).gates
    assert [gate.at_max_steps for gate in written.values()] == ["promote", "promote", "hold"]


def test_the_laptop_holds_after_its_first_stage_only() -> None:
    gates = load_config("laptop").gates
    assert [gate.at_max_steps for gate in gates.values()] == ["hold", "promote", "promote"]


def test_an_unknown_profile_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="unknown profile 'lapto': expected one of laptop, smoke"):
        load_config("lapto")


def test_broken_toml_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("seed = \n")
    with pytest.raises(ConfigError, match=r"mine\.toml: not valid TOML"):
        load_config(str(tmp_path / "mine.toml"))


def test_a_users_file_is_found_whatever_is_in_its_name() -> None:
    path = '/data/the "new" set\\é.jsonl'
    config = load_config("smoke", problem_overrides("smoke", path))
    assert config.evaluation.problems == config.stages["rl-2"].problems.source == path


def test_a_profile_that_is_no_text_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"profile = '\xff'\n")
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


@pytest.mark.parametrize(
    "override",
    [
        "storage=elsewhere",
        "hold_days=1",
        "sandbox.address=unix:///tmp/a",
        "sandbox.num_slots=7",
        "sandbox.remembers_pure_calls=false",
    ],
)
def test_what_no_result_depends_on_is_no_part_of_the_identity(override: str) -> None:
    here, there = load_config("smoke"), load_config("smoke", [override])
    assert config_hash(here) == config_hash(there)
    assert changes(here, there) == []


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "num_threads=2",
        "sandbox.cpu_seconds=2.0",
        "sandbox.wall_seconds=9.0",
        "sandbox.memory_mib=64",
        "sandbox.output_bytes=100",
        "sandbox.verify_seconds=1.0",
        "sandbox.min_rung=A",
        "gates.rl-1.threshold=0.8",
    ],
)
def test_what_results_depend_on_is_part_of_the_identity(override: str) -> None:
    here, there = load_config("smoke"), load_config("smoke", [override])
    assert config_hash(here) != config_hash(there)
    (line,) = changes(here, there)
    assert line.startswith(override.split("=")[0])


def changes(old: RecipeConfig, new: RecipeConfig) -> list[str]:
    return config_difference(old.model_dump(mode="json"), new.model_dump(mode="json"))


def test_every_setting_outside_the_identity_exists() -> None:
    assert set(NOT_IDENTITY) <= flattened(load_config("smoke").model_dump(mode="json"))


def flattened(tree: Mapping[str, object], prefix: str = "") -> set[str]:
    found = set()
    for key, value in tree.items():
        inner = flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else set()
        found |= inner or {f"{prefix}{key}"}
    return found


def test_the_order_of_the_stages_is_part_of_the_identity(tmp_path: Path) -> None:
    configs = []
    for number, names in enumerate((("a", "b"), ("b", "a"))):
        tables = "".join(f"[stages.{n}]\n[gates.{n}]\nat_max_steps='hold'\n" for n in names)
        (tmp_path / f"{number}.toml").write_text(tables)
        configs.append(load_config(str(tmp_path / f"{number}.toml")))
    assert config_hash(configs[0]) != config_hash(configs[1])
    assert changes(*configs) == ["stages: ['a', 'b'] -> ['b', 'a']"]


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


def test_problems_and_their_columns_become_overrides_of_every_stage_and_the_evaluation() -> None:
    columns = ["question=problem", "answer=solution.final"]
    overrides = problem_overrides("smoke", "hub:owner/set:train", columns)
    config = load_config("smoke", overrides)
    for settings in (config.stages["rl-1"].problems, config.evaluation):
        assert settings.question_column == "problem"
        assert settings.answer_column == "solution.final"
    assert config.stages["rl-3"].problems.source == "hub:owner/set:train"
    assert config.evaluation.problems == "hub:owner/set:train"


@pytest.mark.parametrize("entry", ["prompt=problem", "question", "question="])
def test_a_mapping_of_something_else_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="expected question=COLUMN or answer=COLUMN"):
        problem_overrides("smoke", "a.jsonl", [entry])


def test_a_mapping_without_a_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="add --problems FILE"):
        problem_overrides("smoke", None, ["question=problem"])


@pytest.mark.parametrize(
    ("overrides", "band"),
    [
        ([], (0, 7)),
        (["filter.drop_at=8"], (0, 7)),
        (["filter.drop_at=6"], (0, 5)),
        (["filter.min_correct=1"], (1, 7)),
        (["filter.min_correct=2", "filter.max_correct=6"], (2, 6)),
        (["filter.num_rollouts=16"], (0, 15)),
        (["filter.max_correct=8"], (0, 8)),
    ],
)
def test_the_filter_keeps_a_band(overrides: list[str], band: tuple[int, int]) -> None:
    config = load_config("laptop", overrides)
    assert config.filter.band == band
    assert override_config(config, []) == config


def test_a_run_is_continued_whichever_way_its_band_was_written() -> None:
    old = load_config("laptop", ["filter.drop_at=8"]).model_dump(mode="json")
    assert config_difference(old, load_config("laptop").model_dump(mode="json")) == []
