"""Scores a policy on problems it never trained on: the same rollouts and grading as in training.

Reads problem sets, writes a rollouts part and one `evaluation` manifest per name.
"""

from __future__ import annotations

from dataclasses import asdict

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from rstar2.agent_loop import Limits
from rstar2.problems import has_prefix
from rstar2.rollout_files import read_problems
from rstar2.statistics import score
from rstar2.types import ArtifactRef, Group, Problem, Score
from tasks.ledger import Ledger
from tasks.promotion import artifact_key
from tasks.resources import Resources
from tasks.rollouts import sample_groups, store_groups

STAGE = "evaluation"


@task(name="evaluate", task_run_name="evaluate {name}", cache_policy=NO_CACHE)
def evaluate(
    resources: Resources,
    *,
    name: str,
    checkpoint: ArtifactRef,
    problem_set: ArtifactRef,
    num_problems: int | None,
) -> tuple[Score, ...]:
    """avg@k of the live policy with intervals, whole and by kind of problem; committed once.

    On the first `num_problems` (None: all, 0: nothing is measured).
    """
    if num_problems == 0:
        return ()
    known = resources.ledger.find("evaluation", stage=STAGE, name=name)
    if known is not None:
        return tuple(Score(**row) for row in known.values["scores"])
    problems = read_problems(resources.ledger.store.local_path(problem_set))[:num_problems]
    groups = sample_groups(
        resources,
        problems,
        limits=evaluation_limits(resources),
        num_rollouts=resources.config.evaluation.k,
        prefix=f"{STAGE}/{name}",
    )
    scores = scores_by_kind(problems, groups)
    key = resources.ledger.key(STAGE, name)
    resources.ledger.commit(
        "evaluation",
        stage=STAGE,
        name=name,
        parts={"rollouts": store_groups(resources, groups, key), "problems": problem_set},
        values={
            "name": name,
            "checkpoint": asdict(checkpoint),
            "scores": [asdict(row) for row in scores],
        },
    )
    return scores


def evaluation_limits(resources: Resources) -> Limits:
    settings = resources.config.evaluation
    return Limits(
        max_response_tokens=settings.max_response_tokens,
        max_turns=settings.max_turns,
        temperature=settings.temperature,
        top_p=1.0,
    )


def scores_by_kind(problems: tuple[Problem, ...], groups: list[Group]) -> tuple[Score, ...]:
    """One score for each top-level source, then one for each source two levels deep."""
    sources = {problem.problem_id: problem.source for problem in problems}
    prefixes = sorted(
        {"/".join(source.split("/")[:depth]) for source in sources.values() for depth in (1, 2)}
    )
    return tuple(
        score(prefix, [g for g in groups if has_prefix(sources[g.problem_id], prefix)])
        for prefix in prefixes
    )


def show_scores(ledger: Ledger) -> None:
    """The evaluation table of the whole run, one row for each checkpoint and kind."""
    rows = [
        {
            "after": name,
            "problems": row.name,
            "avg@k": round(row.mean, 3),
            "95% interval": f"{row.low:.3f} to {row.high:.3f}",
            "truncated": round(row.truncation_rate, 3),
            "tokens": round(row.mean_response_tokens, 1),
            "attempts": row.num_attempts,
        }
        for name, scores in ledger.scores().items()
        for row in scores
    ]
    key = artifact_key(ledger.run, STAGE)
    create_table_artifact(table=rows, key=key, description="Held-out scores with 95% intervals")
