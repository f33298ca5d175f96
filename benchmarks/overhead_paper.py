"""One step of the report's size without its GPUs: 512 problems, 32 generated rollouts of each.

The tasks of a step against a real Prefect server, ledger, storage and catalogue; sampling, training and
sync are tasks that take no time. Subtracted is what RoC and the batch take on the same groups in
memory. The checkpoint is left out: its bytes are the trainer's affair.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from rstar2.batching import build_samples
from rstar2.config import RecipeConfig
from rstar2.profiles import load_config
from rstar2.protocols import TrainMetrics
from rstar2.roc import resample_on_correct
from rstar2.rollout_files import read_batch, read_problems
from rstar2.types import (
    ArtifactRef,
    Batch,
    Completion,
    FinishReason,
    Group,
    PolicySpan,
    Problem,
    Rollout,
    RolloutStatus,
    TokenIds,
    ToolCall,
    ToolResult,
    ToolStatus,
    Turn,
    read_only,
)
from tasks.batches import build_batch
from tasks.ledger import Ledger, open_ledger, start_run
from tasks.metrics import Progress, step_metrics_of
from tasks.problems import prepare_problems
from tasks.promotion import decide
from tasks.resources import Resources
from tasks.rollouts import Collected, derived_seed, store_groups

STAGE = "rl-1"
BARE = "RoC and batch, in memory"
SHAPE = {"num_problems_per_step": 512, "num_rollouts": 32, "group_size": 16, "min_groups": 1}
"""Report §4.3."""
NUM_TURNS = 4
"""Three with a call, as in 45,000 calls a step (report §3.1) over 16,384 rollouts, and the answer."""
PROMPT_TOKENS, OBSERVATION_TOKENS, VOCABULARY = 500, 100, 150_000


class Groups:
    """No dataclass and no tuple: Prefect would walk into every array."""

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[Group]) -> None:
        self.rows = rows


class Clock:
    """Wall and CPU seconds of this process, by what they were spent on."""

    __slots__ = ("_cpu", "_wall", "cpu_seconds", "wall_seconds")

    def __init__(self) -> None:
        self.wall_seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def note(self, name: str) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.wall_seconds[name], self.cpu_seconds[name] = wall - self._wall, cpu - self._cpu
        self._wall, self._cpu = wall, cpu

    def figures(self) -> dict[str, float]:
        """By part, and in all: what comes on top of RoC and batch in memory."""
        by_part = {f"{name}, CPU seconds": seconds for name, seconds in self.cpu_seconds.items()}
        return by_part | {
            "orchestration, wall seconds": self._on_top(self.wall_seconds),
            "orchestration, CPU seconds": self._on_top(self.cpu_seconds),
        }

    def _on_top(self, seconds: dict[str, float]) -> float:
        """The batch task does RoC and batch a second time: they are taken off twice."""
        return sum(seconds.values()) - 2 * seconds[BARE]


@task(name="collect groups", cache_policy=NO_CACHE)
def collected(resources: Resources, *, step: int, groups: Groups) -> Collected:
    """What the task does beside sampling: it stores the groups."""
    key = resources.ledger.key(STAGE, f"step-{step:05d}")
    return Collected(rollouts=store_groups(resources, groups.rows, key), num_rounds=1, seconds=0.0)


@task(name="train step", cache_policy=NO_CACHE)
def trained(resources: Resources, *, batch: ArtifactRef) -> TrainMetrics:
    """Checks the stored batch as the trainer does, and trains nothing."""
    read_batch(resources.ledger.store.local_path(batch))
    return TrainMetrics(
        loss=0.0, grad_norm=1.0, clip_fraction=0.0, behaviour_kl=0.0, entropy=0.3, num_tokens=1
    )


@task(name="sync weights", cache_policy=NO_CACHE)
def synced(resources: Resources, *, version: int) -> float:
    return 0.0


def paper_seconds(folder: Path, *, mean_response_tokens: int) -> dict[str, float]:
    """Seconds by part, of the second step of a run: its catalogue holds the first one already."""
    shape = [f"stages.{STAGE}.{name}={value}" for name, value in SHAPE.items()]
    problems = f"stages.{STAGE}.problems.num_problems={SHAPE['num_problems_per_step']}"
    config = load_config("laptop", [f"storage={folder / 'paper'}", problems, *shape])
    figures: dict[str, float] = {}
    with open_ledger(config.storage, "paper") as ledger:
        start_run(ledger, config, {})
        for step in (1, 2):
            figures = one_step(_resources(ledger, config), step, mean_response_tokens)
    return {"mean response tokens": float(mean_response_tokens), **figures}


@flow(name="one paper-size step", validate_parameters=False)
def one_step(resources: Resources, step: int, mean_response_tokens: int) -> dict[str, float]:
    """Seconds of each part of the step, RoC and batch in memory taken off."""
    ledger, config = resources.ledger, resources.config
    problem_set = prepare_problems(ledger, config, stage=STAGE)
    problems = read_problems(ledger.store.local_path(problem_set))
    groups = Groups(_generated(problems, step, mean_response_tokens))
    progress = Progress(ledger.run, STAGE, config.gates[STAGE].max_steps)
    clock = Clock()
    _bare(groups.rows, config, step)
    clock.note(BARE)
    stored = collected(resources, step=step, groups=groups)
    clock.note("rollouts stored")
    built = build_batch(
        resources, stage=STAGE, step=step, rollouts=stored.rollouts, policy_version=step - 1
    )
    clock.note("batch built and stored")
    metrics_of_training = trained(resources, batch=built.batch)
    sync_seconds = synced(resources, version=step)
    clock.note("batch read; train, sync as tasks")
    metrics = step_metrics_of(
        resources,
        stage=STAGE,
        step=step,
        collected=stored,
        built=built,
        trained=metrics_of_training,
        sync_seconds=sync_seconds,
        evaluation_score=None,
    )
    decision = decide(resources, stage=STAGE, metrics=metrics)
    clock.note("metrics and gate")
    values = {
        "metrics": asdict(metrics),
        "kept_rollout_ids": built.kept_rollout_ids,
        "dropped": built.dropped,
        "gate": asdict(decision),
    }
    parts = {"rollouts": stored.rollouts, "batch": built.batch}
    ledger.commit("step", stage=STAGE, step=step, parts=parts, values=values)
    clock.note("commit")
    ledger.publish(force=True)
    clock.note("catalogue published")
    progress.show(step)
    clock.note("progress bar")
    return clock.figures()


def _resources(ledger: Ledger, config: RecipeConfig) -> Resources:
    """Ledger and configuration are all that these tasks use: no engine, trainer or sandbox."""
    return Resources(
        config=config,
        ledger=ledger,
        chat=None,  # type: ignore[arg-type]
        sandbox=None,  # type: ignore[arg-type]
        execute=None,  # type: ignore[arg-type]
        pool=None,  # type: ignore[arg-type]
        trainer=None,
        loop=None,  # type: ignore[arg-type]
    )


def _bare(groups: Sequence[Group], config: RecipeConfig, step: int) -> Batch:
    """What a loop without orchestration does between sampling and training."""
    settings = config.stages[STAGE]
    kept = [
        resample_on_correct(
            group,
            group_size=settings.group_size,
            rule=settings.roc,
            seed=derived_seed(config.seed, STAGE, step, group.problem_id),
        )
        for group in groups
    ]
    samples = build_samples([group for group in kept if group is not None])
    return Batch(stage=STAGE, step=step, policy_version=step - 1, samples=samples)


def _generated(problems: Sequence[Problem], step: int, mean_tokens: int) -> list[Group]:
    chance = np.random.default_rng(step)
    num_rollouts = SHAPE["num_rollouts"]
    return [
        Group(
            problem_id=problem.problem_id,
            rollouts=tuple(
                _rollout(
                    problem, f"{STAGE}/{step}/{problem.problem_id}/{n}", n, chance, mean_tokens
                )
                for n in range(num_rollouts)
            ),
        )
        for problem in problems
    ]


def _rollout(
    problem: Problem, rollout_id: str, index: int, chance: np.random.Generator, mean_tokens: int
) -> Rollout:
    """Half of a group's are correct; lengths are exponential about the mean."""
    sampled = max(1, int(chance.exponential(mean_tokens / NUM_TURNS)))
    turns = [_turn(chance, sampled, has_call=n + 1 < NUM_TURNS) for n in range(NUM_TURNS)]
    is_correct = index % 2 == 0
    return Rollout(
        rollout_id=rollout_id,
        problem_id=problem.problem_id,
        prompt_token_ids=_tokens(chance, PROMPT_TOKENS),
        turns=tuple(turns),
        status=RolloutStatus.COMPLETED,
        answer=problem.answer if is_correct else "0",
        num_answer_tags=1,
        reward=float(is_correct),
    )


def _turn(chance: np.random.Generator, num_tokens: int, *, has_call: bool) -> Turn:
    """Tokens need no meaning; a call's code and output are of ordinary length."""
    span = PolicySpan(policy_version=0, start=0, stop=num_tokens)
    completion = Completion(
        token_ids=_tokens(chance, num_tokens),
        logprobs=read_only(-chance.random(num_tokens), np.float32),
        finish_reason=FinishReason.STOP,
        policy_versions=(span,),
    )
    if not has_call:
        return Turn(
            completion=completion,
            tool_calls=(),
            tool_results=(),
            observation_token_ids=_tokens(chance, 0),
        )
    code = "print(sum(n * n for n in range(1000) if n % 7 == 3))\n" * 8
    return Turn(
        completion=completion,
        tool_calls=(ToolCall(name="python", arguments={"code": code, "input": ""}),),
        tool_results=(ToolResult(status=ToolStatus.OK, stdout="47571", seconds=0.3),),
        observation_token_ids=_tokens(chance, OBSERVATION_TOKENS),
    )


def _tokens(chance: np.random.Generator, count: int) -> TokenIds:
    return read_only(chance.integers(VOCABULARY, size=count, dtype=np.int32), np.int32)
