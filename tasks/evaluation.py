"""Scores a policy on problems it never trained on: the same rollouts and grading as in training.

Reads problem sets, writes a rollouts part and one `evaluation` manifest per name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from rstar2.agent_loop import Limits
from rstar2.problems import has_prefix
from rstar2.rollout_files import read_problems
from rstar2.statistics import score, valid_call_rate
from rstar2.types import ArtifactRef, Group, Problem, Score
from tasks.ledger import EVALUATION, Ledger
from tasks.pictures import shown
from tasks.problems import held_out_problems
from tasks.promotion import artifact_key
from tasks.resources import Resources
from tasks.rollouts import sample_groups, store_groups


@task(name="evaluate", task_run_name="evaluate {name}", cache_policy=NO_CACHE)
def evaluate(
    resources: Resources,
    *,
    name: str,
    checkpoint: ArtifactRef | None,
    problem_set: ArtifactRef,
    num_problems: int | None,
    stage: str = EVALUATION,
    step: int | None = None,
) -> tuple[Score, ...]:
    """avg@k of the live policy with intervals, whole and by kind of problem; committed once.

    On the first `num_problems` (None: all, 0: nothing is measured). `stage` and `step` tell where
    it was taken during a stage; `checkpoint` is None where that step stored none.
    """
    if num_problems == 0:
        return ()
    known = known_scores(resources.ledger, name=name, stage=stage, step=step)
    if known is not None:
        return known
    before = resources.losses()
    problems = read_problems(resources.ledger.store.local_path(problem_set))[:num_problems]
    groups = sample_groups(
        resources,
        problems,
        limits=evaluation_limits(resources),
        num_rollouts=resources.config.evaluation.k,
        prefix=f"{EVALUATION}/{name}",
    )
    scores = scores_by_kind(problems, groups)
    key = resources.ledger.key(EVALUATION, name)
    resources.ledger.commit(
        "evaluation",
        stage=stage,
        step=step,
        name=name,
        parts={"rollouts": store_groups(resources, groups, key), "problems": problem_set},
        values={
            "name": name,
            "checkpoint": asdict(checkpoint) if checkpoint else None,
            "scores": [asdict(row) for row in scores],
            "totals": _totals(groups),
            "losses": asdict(resources.losses().since(before)),
        },
    )
    return scores


def known_scores(
    ledger: Ledger, *, name: str, stage: str = EVALUATION, step: int | None = None
) -> tuple[Score, ...] | None:
    """The scores of an evaluation that was committed, else None."""
    manifest = ledger.find("evaluation", stage=stage, step=step, name=name)
    return tuple(Score(**row) for row in manifest.values["scores"]) if manifest else None


def evaluate_step(
    resources: Resources, *, stage: str, step: int, checkpoint: ArtifactRef | None
) -> float | None:
    """Where the stage evaluates after this step: the share of held-out attempts that are right.

    On as many problems as between stages; on all of them where nothing is measured there.
    """
    every = resources.config.stages[stage].evaluate_every_steps
    if not every or step % every:
        return None
    scores = evaluate(
        resources,
        name=f"{stage}-step-{step}",
        checkpoint=checkpoint,
        problem_set=held_out_problems(resources.ledger, resources.config),
        num_problems=resources.config.evaluation.num_problems_between_stages or None,
        stage=stage,
        step=step,
    )
    whole = [row for row in scores if "/" not in row.name]
    num_problems = sum(row.num_problems for row in whole)
    return sum(row.mean * row.num_problems for row in whole) / num_problems


def _totals(groups: list[Group]) -> dict[str, float | int]:
    """Over all problems of an evaluation, whatever their kind."""
    total = score("all", groups)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return {
        "accuracy": total.mean,
        "mean_response_tokens": total.mean_response_tokens,
        "num_tool_calls": sum(rollout.num_tool_calls for rollout in rollouts),
        "valid_call_rate": valid_call_rate(rollouts),
    }


def evaluation_totals(ledger: Ledger, name: str) -> Mapping[str, float | int] | None:
    """Accuracy, tokens a response and valid calls of an evaluation; None where it was not made."""
    manifest = ledger.find("evaluation", stage=EVALUATION, name=name)
    return None if manifest is None else manifest.values.get("totals")


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
    key = artifact_key(ledger.run, EVALUATION)
    with shown("the table of scores"):
        create_table_artifact(table=rows, key=key, description="Held-out scores with 95% intervals")
