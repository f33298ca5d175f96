"""The difficulty filter: samples each problem with the newest policy, drops those outside its band.

Reads the problem set of the stage before. Samples it in chunks, each committed with what was counted
and under which conditions, so that a crash costs one chunk at most; then shows what each band would
keep, and writes the kept problems and every verdict.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from rstar2.agent_loop import Limits
from rstar2.bands import bands_text, count_bands
from rstar2.config import RecipeConfig
from rstar2.difficulty import (
    DifficultyVerdict,
    difficulty_verdicts,
    filter_problems,
    tries_of,
    verdict_row,
)
from rstar2.grading_version import grading_version
from rstar2.rollout_files import read_problems
from rstar2.types import ArtifactRef, Problem, StageResult
from tasks.filter_chunks import Chunk, filter_in_force, measured_tries
from tasks.health import ask_resources
from tasks.ledger import FILTER, Ledger
from tasks.pictures import shown
from tasks.problems import store_problems
from tasks.promotion import artifact_key
from tasks.resources import Resources
from tasks.rollouts import sample_groups, stage_limits, store_groups


@task(name="sample difficulty", task_run_name="sample chunk {chunk.number}", cache_policy=NO_CACHE)
def sample_chunk(resources: Resources, *, start: StageResult, chunk: Chunk) -> str:
    """Commits `filter.num_rollouts` rollouts of every problem of the chunk, and what they came to.

    Returns its line for the log. Sampled under the limits of the stage before, whose problems and
    policy these are.
    """
    ledger, config = resources.ledger, resources.config
    before = resources.losses()
    assert start.problem_set is not None, "the chunk was cut from it"
    problems = read_problems(ledger.store.local_path(start.problem_set))[chunk.first : chunk.stop]
    limits = stage_limits(resources, config.stages[start.stage])
    groups = sample_groups(
        resources,
        problems,
        limits=limits,
        num_rollouts=config.filter.num_rollouts,
        prefix=FILTER,
    )
    tries = [tries_of(group) for group in groups]
    ledger.commit(
        "chunk",
        stage=FILTER,
        step=chunk.number,
        parts={
            "rollouts": store_groups(
                resources, groups, ledger.key(FILTER, f"chunk-{chunk.number:05d}")
            )
        },
        values={
            "tries": [asdict(row) for row in tries],
            "is_last": chunk.is_last,
            "measured": _conditions(config, start, limits),
            "losses": asdict(resources.losses().since(before)),
            "resources": [asdict(health) for health in ask_resources(resources)],
        },
    )
    num_solved = sum(row.num_correct == row.num_rollouts for row in tries)
    return (
        f"{FILTER} chunk {chunk.number:>3} | problems {chunk.first + 1:,} to {chunk.stop:,} | "
        f"always solved {num_solved / len(tries):.1%}"
    )


def _conditions(config: RecipeConfig, start: StageResult, limits: Limits) -> dict[str, object]:
    """What a pass rate holds for: policy, sampler, seed, verifier."""
    return {
        "checkpoint": asdict(start.checkpoint),
        "temperature": limits.temperature,
        "top_p": limits.top_p,
        "max_response_tokens": limits.max_response_tokens,
        "max_turns": limits.max_turns,
        "seed": config.seed,
        "verifier": grading_version(),
    }


@task(name="show bands", cache_policy=NO_CACHE)
def show_bands(ledger: Ledger, config: RecipeConfig) -> str:
    """Puts what each band would keep on the run's page; returns it for the log."""
    tries, settings = measured_tries(ledger), filter_in_force(ledger, config)
    rows = [
        {
            "band": row.name,
            "applied": "yes" if row.is_configured else "",
            "kept": row.num_kept,
            "of them undecided": row.num_undecided,
            "dropped": row.num_dropped,
        }
        for row in count_bands(tries, settings)
    ]
    with shown("what each band would keep"):
        create_table_artifact(
            table=rows,
            key=artifact_key(ledger.run, FILTER, "bands"),
            description="Difficulty filter: what each band would keep",
        )
    return f"{FILTER}: what each band would keep\n{bands_text(tries, settings)}"


@task(name="decide difficulty", cache_policy=NO_CACHE)
def decide_difficulty(ledger: Ledger, config: RecipeConfig, *, start: StageResult) -> ArtifactRef:
    """Commits a verdict for every problem, with what sampling lost, and returns the kept ones."""
    assert start.problem_set is not None, "its problems were sampled"
    problems = read_problems(ledger.store.local_path(start.problem_set))
    settings = filter_in_force(ledger, config)
    verdicts = difficulty_verdicts(measured_tries(ledger), settings)
    kept = filter_problems(problems, verdicts)
    ref = store_problems(ledger, kept, ledger.key(FILTER, "problems.parquet"))
    lowest, highest = settings.band
    ledger.commit(
        "filter",
        stage=FILTER,
        parts={"problems": ref},
        values={
            "checkpoint": asdict(start.checkpoint),
            "band": {"min_correct": lowest, "max_correct": highest},
            "verdicts": [verdict_row(verdict) for verdict in verdicts],
            "losses": asdict(ledger.step_losses(FILTER, "chunk")),
        },
    )
    _show(ledger, problems, verdicts)
    return ref


def _show(
    ledger: Ledger, problems: tuple[Problem, ...], verdicts: tuple[DifficultyVerdict, ...]
) -> None:
    """A table of kept and dropped problems by source, for the run's page."""
    sources = {problem.problem_id: problem.source for problem in problems}
    counts = Counter((sources[v.tries.problem_id], v.decision) for v in verdicts)
    rows = [
        {"source": source, "decision": decision, "problems": number}
        for (source, decision), number in sorted(counts.items())
    ]
    key = artifact_key(ledger.run, FILTER)
    with shown("the difficulty filter"):
        create_table_artifact(
            table=rows, key=key, description="Difficulty filter: kept and dropped"
        )
