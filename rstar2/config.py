"""The configuration of a run: one frozen `RecipeConfig`, a table of settings for each part.

Every field carries its unit and bounds; cross-field checks say the remedy. Unknown keys are errors.
Reads no file (`rstar2.profiles` does) and loads neither torch nor prefect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rstar2.config_section import Count, Rate, Seconds, Section
from rstar2.curation import CurationConfig
from rstar2.filter_config import FilterConfig
from rstar2.gate_config import GateConfig


class ConfigError(ValueError):
    """A profile or an override is wrong. The message names field, value seen and what is allowed."""


class TinyModel(Section):
    """A Qwen3 made from nothing, for the laptop."""

    hidden_size: Count = 96
    num_layers: Count = 3
    num_heads: Count = 4
    num_kv_heads: Count = 2
    head_dim: Count = 24
    intermediate_size: Count = 256
    vocab_size: Count = 448
    rope_theta: float = 10_000.0
    init_std: float = 0.05


class ModelConfig(Section):
    base: str = "tiny"
    """`tiny` (made from `tiny` and `seed`), a folder that `transformers` loads, or `shipped:NAME`."""
    tiny: TinyModel = TinyModel()
    dtype: Literal["float32", "bfloat16"] = "float32"


class ChatConfig(Section):
    """What the policy is shown and what is read from it."""

    style: Literal["full", "bare"] = "full"
    """`full`: the report's system message, tool block and instruction (P-F3). `bare`: the question
    alone, for a model too small to read instructions; turns, calls and answers are the same."""
    answer_tags: Literal["required", "optional"] = "required"
    """`required`: a box outside `<answer>` earns nothing (report E3)."""
    prefill_reason: bool = True
    """Generation prompt ends with `<reason>` (part of the prompt, never trained)."""
    observation_max_tokens: Count = 512
    """A longer tool response is cut in the middle, with a marker."""


class SandboxConfig(Section):
    """Limits of one tool call, and of the node that runs it."""

    address: str = "auto"
    """`auto`: the local daemon is found, or started and left running. Else `unix:///path` of a
    daemon that is somebody else's: used as it is, waited for, never started or ended."""
    num_slots: Count = 2
    """Calls that run at once on the node."""
    cpu_seconds: Annotated[Seconds, Field(le=86_400.0)] = 4.0
    """THE limit: CPU time of a call, enforced by the parent."""
    wall_seconds: Annotated[Seconds, Field(le=86_400.0)] = 20.0
    """Backstop against sleepers, not against a busy machine."""
    memory_mib: Annotated[Count, Field(le=1_048_576)] = 1024
    output_bytes: Annotated[Count, Field(le=4_194_304)] = 262_144
    """Of stdout and of stderr, each: at most what one reply of the daemon can hold."""
    min_rung: Literal["A", "B", "C", "D"] = "B"
    """The weakest isolation accepted (A: root namespaces … D: limits only); weaker refuses."""
    remembers_pure_calls: bool = True
    """A snippet of plain arithmetic is run once and its result used again; it is the same result."""
    verify_seconds: Annotated[Seconds, Field(le=21_600.0)] = 5.0
    """Deadline of one answer check; an overrun is `undecided`, never wrong."""


class RolloutConfig(Section):
    max_rows: Count = 256
    """Conversations decoded at once."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Sampling temperature of training rollouts; the trainer's logprobs use it too."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0


class OptimizerConfig(Section):
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-6
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    """Linear, then constant for RL (report §5.1)."""
    beta1: Rate = 0.9
    beta2: Rate = 0.999
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0


class TrainerConfig(Section):
    micro_batch_tokens: Count = 16_384
    """Padded tokens of one forward pass."""
    clip_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    clip_high: Annotated[float, Field(gt=0.0)] = 0.28
    """Clip-Higher (report §2.2.1)."""
    num_updates_per_step: Count = 1
    """Optimizer updates per step over disjoint group-aligned parts of the batch; 1 is on-policy."""
    max_skipped_steps: Count = 5
    """Non-finite gradients in a row before the run stops."""
    optimizer: OptimizerConfig = OptimizerConfig()


SftSource = Literal["toolace", "apigen-mt", "glaive", "magicoder", "tulu-3", "nemotron-chat"]


class SftConfig(Section):
    """Non-reasoning cold start (report §4.1): format and tool use, not the problems."""

    data: str = "arithmetic"
    """`arithmetic`: generated traces. `mixture`: the public sets named in `mixture`. Else a JSONL file
    of conversations, or of dialogues as `rstar2 sft mix` writes it."""
    num_conversations: Count = 20_000
    """Of `arithmetic`."""
    mixture: Mapping[SftSource, Count] = {
        **{"toolace": 11_000, "apigen-mt": 5_000, "glaive": 101_000, "magicoder": 48_000},
        **{"tulu-3": 30_000, "nemotron-chat": 27_000},
    }
    """Conversations by set (report §4.1: 165K with calls, 30K of instructions, 27K of chat)."""
    paths: Mapping[SftSource, str] = {}
    """Copies of these sets on this machine, each a file or the set's repository; the others come
    from the hub."""
    num_steps: Count = 1400
    batch_tokens: Count = 1250
    """Padded tokens of one optimizer step."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-3
    warmup_steps: Annotated[int, Field(ge=0)] = 30
    schedule: Literal["cosine", "linear_tail"] = "linear_tail"
    """`cosine` to 0, or constant with a linear decay over the last 40 %."""
    beta1: Rate = 0.9
    beta2: Rate = 0.95
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    checkpoint_every_steps: Count = 350
    """A killed SFT continues from the last of these."""


class ProblemsConfig(Section):
    """Where a stage's problems come from."""

    source: str = "arithmetic"
    """`arithmetic` (generated), or a JSONL / Parquet file, a folder of `datasets`, or a set of the
    hub, `hub:OWNER/NAME[/CONFIG]:SPLIT`."""
    num_problems: Count = 480
    """Generated problems per stage set; of a file, all are used."""
    question_column: str = "question"
    answer_column: str = "answer"
    """`a.b` is the field `b` of the column `a`. Where neither default is there, the columns of a
    published set are looked for (`data_catalog.layouts`)."""


class StageConfig(Section):
    """One RL phase."""

    problems: ProblemsConfig = ProblemsConfig()
    shares: Mapping[str, Rate] = {}
    """Share of each step's draws by source prefix (`arithmetic/two-call` = 0.1); the rest of the
    set fills up. Empty: uniform."""
    max_response_tokens: Count = 8192
    """Sampled and observation tokens of a rollout (8K, 12K, 12K in the report)."""
    max_turns: Count = 10
    num_problems_per_step: Count = 512
    num_rollouts: Count = 32
    """2G: sampled per problem."""
    group_size: Count = 16
    """G: kept by RoC."""
    roc: Literal["paper", "released-code", "random"] = "paper"
    """Which of the 2G are kept. `random` is a control: uniform within each class."""
    max_refill_rounds: Annotated[int, Field(ge=0)] = 0
    """Further draws that replace groups without signal; 0 is the report's plain rejection."""
    min_groups: Count = 1
    """A step with fewer groups with signal is thin."""
    max_thin_steps: Count = 10
    """So many steps in a row without any group to train on end the stage with `hold`."""
    reset_optimizer: bool = False
    """Fresh optimizer on entering (report: RL-3)."""
    learning_rate: Annotated[float, Field(gt=0.0)] | None = None
    """Overrides the trainer's for this stage."""
    filter_problems: bool = False
    """The difficulty filter runs before this stage, with the newest policy."""
    evaluate_every_steps: Annotated[int, Field(ge=0)] = 0
    """Evaluation during the stage, for the gate's evaluation rules; 0: none."""
    checkpoint_every_steps: Count = 1

    @model_validator(mode="after")
    def _check(self) -> StageConfig:
        if self.group_size < 2:
            raise ValueError(
                f"group_size = {self.group_size}: a group baseline needs at least 2; set "
                "group_size to 2 or more"
            )
        if self.num_rollouts < self.group_size:
            raise ValueError(
                f"num_rollouts = {self.num_rollouts} is below group_size = {self.group_size}: "
                "RoC keeps G of 2G; set num_rollouts to 2 x group_size"
            )
        if self.min_groups > self.num_problems_per_step:
            raise ValueError(
                f"min_groups = {self.min_groups} lies above num_problems_per_step = "
                f"{self.num_problems_per_step}: every step would be thin; set min_groups to at "
                "most num_problems_per_step"
            )
        if sum(self.shares.values()) > 1.0 + 1e-9:
            raise ValueError(
                f"shares sum to {sum(self.shares.values()):.3f}: expected at most 1.0; lower one"
            )
        return self


class EvaluationConfig(Section):
    problems: str = "arithmetic"
    """`arithmetic` (held out, and in wordings never trained on), or a source as a stage has."""
    question_column: str = "question"
    answer_column: str = "answer"
    """Of a file."""
    num_problems: Count = 512
    """Held out; of a file, at most so many."""
    num_unseen_problems: Annotated[int, Field(ge=0)] = 256
    """`arithmetic`: in wordings that no training stage shows."""
    shares: Mapping[str, Rate] = {"arithmetic/two-call": 0.35}
    """`arithmetic`: share of the held-out problems by kind."""
    k: Count = 1
    """Attempts per problem: avg@k."""
    temperature: Annotated[float, Field(ge=0.0)] = 0.6
    max_response_tokens: Count = 30_000
    max_turns: Count = 30
    num_problems_between_stages: Annotated[int, Field(ge=0)] = 256
    """Scored after SFT and after each stage too, on so many problems; 0: only at the end."""


STAGE_NAME = r"[a-z][a-z0-9-]*"
NOT_STAGES = frozenset({"sft", "difficulty-filter", "evaluation", "held-out", "final"})
"""A run keeps each stage, and these, in a folder of that name."""


class RecipeConfig(Section):
    """A profile: everything that decides what a run computes, and where it is kept."""

    profile: str
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    num_threads: Count = 2
    """CPU threads of torch; pinned, since resumed weights are equal only at equal thread count."""
    storage: str = "runs"
    """A folder, or `s3://bucket/prefix`."""
    hold_days: Annotated[float, Field(gt=0.0, le=365.0)] = 7.0
    """How long a suspended run of a deployment waits for a person, before it counts as failed."""
    model: ModelConfig = ModelConfig()
    chat: ChatConfig = ChatConfig()
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    trainer: TrainerConfig = TrainerConfig()
    sft: SftConfig | None = SftConfig()
    """None: the base model follows instructions already (report: Qwen2.5-32B)."""
    stages: Mapping[str, StageConfig]
    """In order: `rl-1`, `rl-2`, `rl-3`."""
    gates: Mapping[str, GateConfig]
    """One for each stage."""
    filter: FilterConfig = FilterConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    curation: CurationConfig = CurationConfig()
    """How `rstar2 ingest` chooses among the rows of problem files."""

    @model_validator(mode="before")
    @classmethod
    def _promote_later_stages(cls, tree: object) -> object:
        """Fills in the `at_max_steps` of every stage but the first, where nothing is said of it."""
        if not isinstance(tree, Mapping):
            return tree
        stages, gates = tree.get("stages"), tree.get("gates")
        if not isinstance(stages, Mapping) or not isinstance(gates, Mapping):
            return tree
        first = next(iter(stages), None)
        filled = {
            name: {"at_max_steps": "promote", **gate}
            if isinstance(gate, Mapping) and name != first
            else gate
            for name, gate in gates.items()
        }
        return {**tree, "gates": filled}

    @model_validator(mode="after")
    def _check(self) -> RecipeConfig:
        if not self.stages:
            raise ValueError("stages is empty: expected at least one table [stages.rl-1]")
        wrong = [n for n in self.stages if n in NOT_STAGES or not re.fullmatch(STAGE_NAME, n)]
        if wrong:
            raise ValueError(
                f"stage {wrong[0]!r}: expected small letters, digits and dashes, as in rl-1, and "
                f"none of {', '.join(sorted(NOT_STAGES))}, which are other parts of a run"
            )
        if set(self.stages) != set(self.gates):
            raise ValueError(
                f"stages are {sorted(self.stages)} but gates are {sorted(self.gates)}: "
                "write one table [gates.NAME] for each [stages.NAME]"
            )
        filtered = [name for name, stage in self.stages.items() if stage.filter_problems]
        if len(filtered) > 1 or filtered[:1] == list(self.stages)[:1]:
            raise ValueError(
                f"filter_problems is set for {filtered}: the difficulty filter runs once, before a "
                "stage that follows another RL stage; leave it on for one such stage"
            )
        for name, stage in self.stages.items():
            self.gates[name].check_evaluations(name, every=stage.evaluate_every_steps)
        return self
