"""What a profile would do and need: arithmetic on a `RecipeConfig`, nothing is run or measured.

Reads `config.json` of the base model's folder where it is not the tiny one. Every figure is an
upper bound or a mean under the assumptions that the plan carries with it; it promises no hours,
since those depend on the machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

from rstar2.config import (
    ConfigError,
    EvaluationConfig,
    ModelConfig,
    RecipeConfig,
    StageConfig,
    TinyModel,
)
from rstar2.profiles import base_folder
from rstar2.retention import NUM_NEWEST

ENGINE_BYTES = 4
"""Of a value in the embedded engine, whose weights, keys and values are float32."""
BYTES_PER_TOKEN = 4 + 4 + 1
"""Of a stored rollout: id, behaviour logprob, mask."""
ASSUMED_PROMPT_TOKENS = {"full": 768, "bare": 64}
"""Tokens of a prompt by chat style, as an allowance in the KV cache."""
MEAN_RESPONSE_SHARE = 0.6
"""Mean response length over its limit, for sizes on disk: an allowance, not a measurement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    num_parameters: int
    num_layers: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """One RL stage. Token figures are upper bounds: every response at its limit."""

    stage: str
    num_problems_per_step: int
    num_rollouts_per_step: int
    """Of the first draw: problems x 2G."""
    num_rollouts_per_step_max: int
    """With every refill round used."""
    num_kept_per_step: int
    """Problems x G, what is trained on."""
    num_response_tokens_per_step_max: int
    num_trained_tokens_per_step_max: int
    num_updates_per_step: int
    num_steps_min: int
    num_steps_max: int
    num_rollouts_max: int
    """Over the whole stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """Bytes in the process that holds engine and trainer."""

    weights: int
    """The trainer's, the engine's, and the float32 copy that the engine computes with."""
    optimizer: int
    """Two moments in the type of the weights."""
    gradients: int
    kv_cache: int
    """Every row of the engine at the longest limit of a stage or the evaluation, in float32."""

    @property
    def total(self) -> int:
        return self.weights + self.optimizer + self.gradients + self.kv_cache


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationPlan:
    """Rollouts on held-out problems. Of a file, at most so many: it may hold fewer problems."""

    num_rollouts_between: int
    """Each time: before and after SFT, and after every stage."""
    num_times_between: int
    num_rollouts_during: int
    """In all stages together, for the gates' evaluation rules."""
    num_rollouts_final: int
    """At the end, on every held-out problem."""

    @property
    def total(self) -> int:
        between = self.num_rollouts_between * self.num_times_between
        return between + self.num_rollouts_during + self.num_rollouts_final


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtefactPlan:
    """Bytes in the storage at the maximum of steps."""

    rollouts: int
    """Of the stages, of the evaluations, and of the filter where their number is known."""
    batches: int
    checkpoints: int
    num_checkpoints: int
    """Those that stay: the newest and the best of each stage, the newest of SFT."""

    @property
    def total(self) -> int:
        return self.rollouts + self.batches + self.checkpoints


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    profile: str
    model: ModelShape
    num_sft_steps: int
    stages: tuple[StagePlan, ...]
    num_filter_rollouts_max: int | None
    """0 without a filter; None where the problems come from a file, whose rows decide."""
    evaluation: EvaluationPlan
    memory: MemoryPlan
    artefacts: ArtefactPlan
    assumptions: tuple[str, ...]


def make_plan(config: RecipeConfig) -> Plan:
    """The plan that follows from the configuration. Raises `ConfigError` for an unreadable model."""
    shape = model_shape(config.model)
    stages = tuple(_stage_plan(config, name, stage) for name, stage in config.stages.items())
    return Plan(
        profile=config.profile,
        model=shape,
        num_sft_steps=config.sft.num_steps if config.sft else 0,
        stages=stages,
        num_filter_rollouts_max=_num_filter_rollouts(config),
        evaluation=_evaluation_plan(config),
        memory=_memory_plan(config, shape),
        artefacts=ArtefactPlan(
            rollouts=_stored_bytes(_sampled_tokens(config, stages)),
            batches=_stored_bytes(
                sum(p.num_trained_tokens_per_step_max * p.num_steps_max for p in stages)
            ),
            checkpoints=_num_checkpoints(config) * _checkpoint_bytes(config, shape),
            num_checkpoints=_num_checkpoints(config),
        ),
        assumptions=_assumptions(config),
    )


def model_shape(model: ModelConfig) -> ModelShape:
    """Of the tiny model, or read from the folder's `config.json`."""
    if model.base == "tiny":
        return _tiny_shape(model.tiny)
    path = base_folder(model.base) / "config.json"
    try:
        return _folder_shape(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"model.base = {model.base!r}: {path} could not be read ({error!r}): expected "
            "'tiny', or the folder of a Qwen3 or Llama model with its config.json"
        ) from None


def _tiny_shape(tiny: TinyModel) -> ModelShape:
    keys = {
        "hidden_size": tiny.hidden_size,
        "num_hidden_layers": tiny.num_layers,
        "num_attention_heads": tiny.num_heads,
        "num_key_value_heads": tiny.num_kv_heads,
        "head_dim": tiny.head_dim,
        "intermediate_size": tiny.intermediate_size,
        "vocab_size": tiny.vocab_size,
    }
    return _folder_shape({**keys, "model_type": "qwen3", "tie_word_embeddings": True})


def _folder_shape(keys: dict[str, object]) -> ModelShape:
    """From the keys of transformers' `config.json`: attention, gated MLP, RMS norms, embeddings."""
    hidden, layers, heads, wide, vocabulary = (
        _integer(keys, name)
        for name in (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "vocab_size",
        )
    )
    kv_heads = _integer(keys, "num_key_value_heads") if "num_key_value_heads" in keys else heads
    head_dim = _integer(keys, "head_dim") if keys.get("head_dim") else hidden // heads
    query_norms = 2 * head_dim if keys.get("model_type") == "qwen3" else 0
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads) + query_norms
    layer = attention + 3 * hidden * wide + 2 * hidden
    embeddings = vocabulary * hidden * (1 if keys.get("tie_word_embeddings") else 2)
    return ModelShape(
        num_parameters=embeddings + layers * layer + hidden,
        num_layers=layers,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
    )


def _integer(keys: dict[str, object], name: str) -> int:
    value = keys[name]
    if not isinstance(value, int):
        raise TypeError(f"{name} = {value!r}, expected an integer")
    return value


def _stage_plan(config: RecipeConfig, name: str, stage: StageConfig) -> StagePlan:
    gate = config.gates[name]
    sampled = stage.num_problems_per_step * stage.num_rollouts
    kept = stage.num_problems_per_step * stage.group_size
    with_refills = sampled * (1 + stage.max_refill_rounds)
    return StagePlan(
        stage=name,
        num_problems_per_step=stage.num_problems_per_step,
        num_rollouts_per_step=sampled,
        num_rollouts_per_step_max=with_refills,
        num_kept_per_step=kept,
        num_response_tokens_per_step_max=with_refills * stage.max_response_tokens,
        num_trained_tokens_per_step_max=kept * stage.max_response_tokens,
        num_updates_per_step=config.trainer.num_updates_per_step,
        num_steps_min=gate.min_steps,
        num_steps_max=gate.max_steps,
        num_rollouts_max=with_refills * gate.max_steps,
    )


def _filtered_stage(config: RecipeConfig) -> tuple[StageConfig, StageConfig] | None:
    """The stage whose problems the filter sees, under whose limits it samples, and the one after."""
    pairs = pairwise(config.stages.values())
    return next(((before, stage) for before, stage in pairs if stage.filter_problems), None)


def _num_filter_rollouts(config: RecipeConfig) -> int | None:
    found = _filtered_stage(config)
    if found is None:
        return 0
    problems = found[0].problems
    is_generated = problems.source == "arithmetic"
    return problems.num_problems * config.filter.num_rollouts if is_generated else None


def _num_held_out(evaluation: EvaluationConfig) -> int:
    is_generated = evaluation.problems == "arithmetic"
    return evaluation.num_problems + (evaluation.num_unseen_problems if is_generated else 0)


def _evaluation_plan(config: RecipeConfig) -> EvaluationPlan:
    settings = config.evaluation
    every_problem = _num_held_out(settings)
    between = min(settings.num_problems_between_stages, every_problem)
    num_during = sum(
        config.gates[name].max_steps // stage.evaluate_every_steps
        for name, stage in config.stages.items()
        if stage.evaluate_every_steps
    )
    return EvaluationPlan(
        num_rollouts_between=between * settings.k,
        num_times_between=len(config.stages) + 2 * (config.sft is not None) if between else 0,
        num_rollouts_during=num_during * (between or every_problem) * settings.k,
        num_rollouts_final=every_problem * settings.k,
    )


def _memory_plan(config: RecipeConfig, shape: ModelShape) -> MemoryPlan:
    width = _bytes_per_value(config)
    limits = [stage.max_response_tokens for stage in config.stages.values()]
    longest = max(*limits, config.evaluation.max_response_tokens)
    tokens = longest + ASSUMED_PROMPT_TOKENS[config.chat.style]
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * ENGINE_BYTES
    return MemoryPlan(
        weights=shape.num_parameters * (2 * width + ENGINE_BYTES),
        optimizer=2 * shape.num_parameters * width,
        gradients=shape.num_parameters * width,
        kv_cache=config.rollout.max_rows * tokens * per_token,
    )


def _sampled_tokens(config: RecipeConfig, stages: tuple[StagePlan, ...]) -> int:
    """Response tokens of all rollouts that a run stores, each at its limit."""
    total = sum(plan.num_response_tokens_per_step_max * plan.num_steps_max for plan in stages)
    total += _evaluation_plan(config).total * config.evaluation.max_response_tokens
    found, num_rollouts = _filtered_stage(config), _num_filter_rollouts(config)
    return total + (num_rollouts or 0) * (found[0].max_response_tokens if found else 0)


def _num_checkpoints(config: RecipeConfig) -> int:
    """What `rstar2.retention` leaves when every stage went to its maximum of steps."""
    total = 0
    if config.sft:
        total += min(-(-config.sft.num_steps // config.sft.checkpoint_every_steps), NUM_NEWEST)
    for name, stage in config.stages.items():
        num_steps, every = config.gates[name].max_steps, stage.checkpoint_every_steps
        is_end_extra = num_steps % every != 0  # the end of a stage is stored whatever the rhythm
        total += min(num_steps // every, NUM_NEWEST + 1) + is_end_extra
    return total


def _checkpoint_bytes(config: RecipeConfig, shape: ModelShape) -> int:
    """Weights and two moments."""
    return 3 * shape.num_parameters * _bytes_per_value(config)


def _stored_bytes(num_tokens: int) -> int:
    return round(num_tokens * MEAN_RESPONSE_SHARE) * BYTES_PER_TOKEN


def _bytes_per_value(config: RecipeConfig) -> int:
    return 2 if config.model.dtype == "bfloat16" else 4


def _assumptions(config: RecipeConfig) -> tuple[str, ...]:
    return (
        "tokens: every response at its stage's limit, every refill round used",
        "steps: the gate's maximum; a stage that promotes earlier needs less",
        f"KV cache: {config.rollout.max_rows} rows at the longest limit, with "
        f"{ASSUMED_PROMPT_TOKENS[config.chat.style]} tokens for the prompt",
        f"artefacts: responses at {MEAN_RESPONSE_SHARE:.0%} of the limit, {BYTES_PER_TOKEN} bytes "
        f"a token, uncompressed; of checkpoints the newest {NUM_NEWEST} and the best of a stage stay",
        "memory: one process with engine and trainer; activations and the libraries are not in it",
    )
