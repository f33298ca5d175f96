"""The plan's arithmetic, on figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2.config import ConfigError, ModelConfig, RecipeConfig
from rstar2.planning import Plan, make_plan, model_shape
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
            "gates": {"rl-1": {"min_steps": 2, "max_steps": 5, "window": 4}},
            "trainer": {"num_updates_per_step": 2},
            "rollout": {"max_rows": 16},
            "chat": {"style": "bare"},
            "evaluation": {"max_response_tokens": 20},
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
    assert memory.weights == 347_952 * (4 + 4 + 4)
    assert memory.optimizer == 347_952 * 8
    assert memory.kv_cache == 16 * (20 + 64) * 2 * 3 * 2 * 24 * 4
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


def plan_of(*overrides: str) -> Plan:
    return make_plan(load_config("laptop", overrides))


def test_the_filter_samples_the_problems_of_the_stage_before_it() -> None:
    sets = [f"stages.rl-{n}.problems.num_problems={n}00" for n in (1, 2, 3)]
    assert plan_of(*sets).num_filter_rollouts_max == 200 * 8


def test_how_many_problems_a_file_gives_the_filter_is_not_guessed() -> None:
    assert plan_of("stages.rl-2.problems.source=p.jsonl").num_filter_rollouts_max is None
    assert plan_of("stages.rl-3.filter_problems=false").num_filter_rollouts_max == 0


def test_evaluations_are_counted_between_during_and_after_the_stages() -> None:
    """Laptop: 512 + 256 held-out problems; RL-2 has at most 90 steps, RL-3 40."""
    evaluation = plan_of(
        "evaluation.k=2",
        "evaluation.num_problems_between_stages=100",
        "stages.rl-2.evaluate_every_steps=20",
        "stages.rl-3.evaluate_every_steps=10",
    ).evaluation
    assert evaluation.num_rollouts_final == (512 + 256) * 2
    assert (evaluation.num_rollouts_between, evaluation.num_times_between) == (200, 5)
    assert evaluation.num_rollouts_during == (4 + 4) * 200
    assert evaluation.total == 1536 + 1000 + 1600


def test_without_scores_between_stages_those_during_them_are_on_every_held_out_problem() -> None:
    evaluation = plan_of(
        "evaluation.num_problems_between_stages=0", "stages.rl-1.evaluate_every_steps=60"
    ).evaluation
    assert (evaluation.num_times_between, evaluation.num_rollouts_during) == (0, 768)


def test_a_file_has_no_unseen_wordings_to_evaluate() -> None:
    assert plan_of("evaluation.problems=p.jsonl").evaluation.num_rollouts_final == 512


@pytest.mark.parametrize(
    ("every", "num_checkpoints"),
    [
        (1, 2 + 3 + 3 + 3),
        (30, 2 + 2 + 3 + (1 + 1)),  # 60, 90 and 40 steps
        (100, 2 + 1 + 1 + 1),
    ],
)
def test_checkpoints_are_those_that_stay(every: int, num_checkpoints: int) -> None:
    """SFT saves four times and keeps the newest two; a stage keeps its best and its end as well."""
    keys = [f"stages.rl-{n}.checkpoint_every_steps={every}" for n in (1, 2, 3)]
    artefacts = plan_of(*keys).artefacts
    assert artefacts.num_checkpoints == num_checkpoints
    shape = plan_of().model
    assert artefacts.checkpoints == num_checkpoints * shape.num_parameters * 3 * 4


def test_a_shipped_base_is_found_beside_the_profiles() -> None:
    assert make_plan(load_config("smoke")).model.num_layers == 3
