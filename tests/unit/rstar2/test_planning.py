"""The plan's arithmetic, on figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2.config import ConfigError, ModelConfig, RecipeConfig
from rstar2.planning import make_plan, model_shape
from rstar2.profiles import load_config


def small(**stage: int) -> RecipeConfig:
    settings = {
        "num_problems_per_step": 4,
        "num_rollouts": 6,
        "group_size": 3,
        "max_refill_rounds": 1,
        "max_response_tokens": 10,
        **stage,
    }
    return RecipeConfig.model_validate(
        {
            "profile": "small",
            "stages": {"rl-1": settings},
            "gates": {"rl-1": {"min_steps": 2, "max_steps": 5}},
            "trainer": {"num_updates_per_step": 2},
            "rollout": {"max_rows": 16},
            "chat": {"style": "bare"},
        }
    )


def test_a_step_is_counted_from_problems_rollouts_and_refills() -> None:
    stage = make_plan(small()).stages[0]
    assert stage.num_rollouts_per_step == 24
    assert stage.num_rollouts_per_step_max == 48
    assert stage.num_kept_per_step == 12
    assert stage.num_response_tokens_per_step_max == 480
    assert stage.num_trained_tokens_per_step_max == 120
    assert (stage.num_steps_min, stage.num_steps_max) == (2, 5)
    assert stage.num_rollouts_max == 240


def test_the_tiny_model_has_the_parameters_that_it_is_built_with() -> None:
    assert model_shape(ModelConfig()).num_parameters == 347_952


def test_memory_holds_weights_two_moments_gradients_and_every_row() -> None:
    memory = make_plan(small()).memory
    assert memory.weights == 347_952 * 4
    assert memory.optimizer == 347_952 * 8
    assert memory.kv_cache == 16 * (10 + 64) * 2 * 3 * 2 * 24 * 4
    assert memory.total == sum(
        (memory.weights, memory.optimizer, memory.gradients, memory.kv_cache)
    )


def test_a_stored_model_is_read_from_its_config(tmp_path: Path) -> None:
    keys = {
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "vocab_size": 10,
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(keys))
    attention, mlp, norms, embeddings = 8 * 4 * 6, 3 * 8 * 16, 2 * 8, 2 * 10 * 8
    shape = model_shape(ModelConfig(base=str(tmp_path)))
    assert shape.num_parameters == embeddings + attention + mlp + norms + 8


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json could not be read"):
        model_shape(ModelConfig(base=str(tmp_path)))


def test_the_laptop_profile_has_a_plan() -> None:
    plan = make_plan(load_config("laptop"))
    assert [stage.stage for stage in plan.stages] == ["rl-1", "rl-2", "rl-3"]
    assert plan.artefacts.total > 0
