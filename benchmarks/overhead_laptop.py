"""The laptop recipe's steps as its flow takes them, and as a loop over the same core functions.

Both begin with the shipped tiny base in stage RL-2 of the laptop profile, and must end in the same
weights: then they did the same work. Blocks of both alternate; what opens the stage is not timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
from prefect import flow

from flows.rl_stage import train_until_gate
from rstar2.batching import build_samples
from rstar2.config import RecipeConfig
from rstar2.profiles import load_config
from rstar2.roc import resample_on_correct
from rstar2.rollout_files import read_problems
from rstar2.rounds import groups_of_step
from rstar2.types import ArtifactRef, Batch, Problem
from tasks.ledger import Ledger, open_ledger, start_run
from tasks.problems import prepare_problems
from tasks.resources import Resources, open_resources
from tasks.rollouts import derived_seed, sample_groups, stage_limits
from tasks.sft import prepare_base

STAGE = "rl-2"

Weights = dict[str, torch.Tensor]


@flow(name="orchestrated block", validate_parameters=False)
def orchestrated(resources: Resources, problem_set: ArtifactRef) -> None:
    train_until_gate(resources, STAGE, problem_set)


def laptop_share(folder: Path, *, num_steps: int, num_rounds: int) -> dict[str, float]:
    """Wall and CPU seconds of blocks of both kinds, and the share that is orchestration."""
    gate = f"gates.{STAGE}"
    config = load_config(
        "laptop",
        [
            f"storage={folder / 'laptop'}",
            "model.base=shipped:tiny_base",
            *(f"{gate}.min_steps={num_steps}", f"{gate}.max_steps={num_steps}"),
        ],
    )
    walls: dict[str, list[float]] = {"orchestrated": [], "bare": []}
    cpus: dict[str, list[float]] = {"orchestrated": [], "bare": []}
    for number in range(num_rounds):
        ended = []
        for kind in ("bare", "orchestrated"):
            with _opened(config, f"{kind}-{number}") as (resources, problem_set):
                run = orchestrated if kind == "orchestrated" else _bare_block(num_steps)
                wall, cpu = time.perf_counter(), time.process_time()
                run(resources, problem_set)
                walls[kind].append(time.perf_counter() - wall)
                cpus[kind].append(time.process_time() - cpu)
                ended.append({k: v.clone() for k, v in resources.trainer.state_dict().items()})
        assert all(torch.equal(ended[0][k], ended[1][k]) for k in ended[0]), "not the same work"
    return {
        "steps of a block": num_steps,
        **{f"{kind}, wall seconds": median(seconds) for kind, seconds in walls.items()},
        **{f"{kind}, CPU seconds": median(seconds) for kind, seconds in cpus.items()},
        "share": 1 - sum(walls["bare"]) / sum(walls["orchestrated"]),
        "share of CPU time": 1 - sum(cpus["bare"]) / sum(cpus["orchestrated"]),
    }


@contextmanager
def _opened(config: RecipeConfig, run: str) -> Iterator[tuple[Resources, ArtifactRef]]:
    """A run that is about to begin the stage."""
    with open_ledger(config.storage, run) as ledger:
        start_run(ledger, config, {})
        base, problem_set = _prepared(ledger, config)
        with open_resources(ledger, config, checkpoint=base, trains=True) as resources:
            yield resources, problem_set


@flow(name="prepare", validate_parameters=False)
def _prepared(ledger: Ledger, config: RecipeConfig) -> tuple[ArtifactRef, ArtifactRef]:
    return prepare_base(ledger, config), prepare_problems(ledger, config, stage=STAGE)


def _bare_block(num_steps: int) -> Callable[[Resources, ArtifactRef], None]:
    def block(resources: Resources, problem_set: ArtifactRef) -> None:
        problems = read_problems(resources.ledger.store.local_path(problem_set))
        for step in range(1, num_steps + 1):
            _bare_step(resources, problems, step)

    return block


def _bare_step(resources: Resources, problems: Sequence[Problem], step: int) -> None:
    """Sampling, grading, RoC, optimizer step and weight sync, and nothing else."""
    settings, seed = resources.config.stages[STAGE], resources.config.seed
    groups, _ = groups_of_step(
        problems,
        settings,
        stage=STAGE,
        step=step,
        seed=seed,
        sample=lambda drawn: sample_groups(
            resources,
            drawn,
            limits=stage_limits(resources, settings),
            num_rollouts=settings.num_rollouts,
            prefix=f"{STAGE}/{step}",
        ),
    )
    kept = [
        resample_on_correct(
            group,
            group_size=settings.group_size,
            rule=settings.roc,
            seed=derived_seed(seed, STAGE, step, group.problem_id),
        )
        for group in groups
        if group.has_signal and len(group.decided) >= settings.group_size
    ]
    samples = build_samples([group for group in kept if group is not None])
    batch = Batch(stage=STAGE, step=step, policy_version=step - 1, samples=samples)
    resources.trainer.train_step(batch, learning_rate=settings.learning_rate)
    resources.pool.update_weights(resources.trainer.state_dict(), step)
