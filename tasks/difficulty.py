"""The difficulty filter: samples each problem with the newest policy, drops those always solved.

Reads the problem set of the stage before, writes the kept problems and every verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from infra.health import ResourceHealth
from rstar2.config import RecipeConfig
from rstar2.difficulty import DifficultyVerdict, difficulty_verdicts, filter_problems
from rstar2.rollout_files import read_problems, read_rollouts
from rstar2.types import ArtifactRef, Losses, Problem, StageResult
from tasks.ledger import FILTER, Ledger
from tasks.pictures import shown
from tasks.problems import store_problems
from tasks.promotion import artifact_key
from tasks.resources import Resources
from tasks.rollouts import sample_groups, stage_limits, store_groups


@task(name="sample difficulty", cache_policy=NO_CACHE)
def sample_difficulty(resources: Resources, *, problem_set: ArtifactRef, stage: str) -> ArtifactRef:
    """`filter.num_rollouts` rollouts of every problem under the limits of `stage`."""
    problems = read_problems(resources.ledger.store.local_path(problem_set))
    groups = sample_groups(
        resources,
        problems,
        limits=stage_limits(resources, resources.config.stages[stage]),
        num_rollouts=resources.config.filter.num_rollouts,
        prefix=FILTER,
    )
    return store_groups(resources, groups, resources.ledger.key(FILTER))


@task(name="decide difficulty", cache_policy=NO_CACHE)
def decide_difficulty(
    ledger: Ledger,
    config: RecipeConfig,
    *,
    problem_set: ArtifactRef,
    rollouts: ArtifactRef,
    start: StageResult,
    losses: Losses,
    healths: Sequence[ResourceHealth],
) -> ArtifactRef:
    """Commits a verdict for every problem and returns the kept ones.

    With them what sampling lost, and how its resources were at the end.
    """
    problems = read_problems(ledger.store.local_path(problem_set))
    verdicts = difficulty_verdicts(read_rollouts(ledger.store.local_path(rollouts)), config.filter)
    kept = filter_problems(problems, verdicts)
    ref = store_problems(ledger, kept, ledger.key(FILTER, "problems.parquet"))
    ledger.commit(
        "filter",
        stage=FILTER,
        parts={"rollouts": rollouts, "problems": ref},
        values={
            "checkpoint": asdict(start.checkpoint),
            "verdicts": [asdict(v) | {"pass_rate": v.pass_rate} for v in verdicts],
            "losses": asdict(losses),
            "resources": [asdict(health) for health in healths],
        },
    )
    _show(ledger, problems, verdicts)
    return ref


def _show(
    ledger: Ledger, problems: tuple[Problem, ...], verdicts: tuple[DifficultyVerdict, ...]
) -> None:
    """A table of kept and dropped problems by source, for the run's page."""
    sources = {problem.problem_id: problem.source for problem in problems}
    counts = Counter((sources[v.problem_id], v.decision) for v in verdicts)
    rows = [
        {"source": source, "decision": decision, "problems": number}
        for (source, decision), number in sorted(counts.items())
    ]
    key = artifact_key(ledger.run, FILTER)
    with shown("the difficulty filter"):
        create_table_artifact(
            table=rows, key=key, description="Difficulty filter: kept and dropped"
        )
