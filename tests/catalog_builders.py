"""A small run for tests of the catalogue: its manifests, and their parts as files in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rollout_builders import make_group, make_step

from data_catalog.catalog import publish
from data_catalog.records import Manifest
from rstar2.difficulty import difficulty_verdicts, tries_of, verdict_row
from rstar2.filter_config import FilterConfig
from rstar2.rollout_files import write_problems, write_rollouts
from rstar2.types import (
    ArtifactRef,
    GateDecision,
    GateVerdict,
    Group,
    Problem,
    Score,
    StageResult,
)


def at(minute: int) -> str:
    return f"2026-03-01T12:{minute:02d}:00+00:00"


def make_ref(kind: str, uri: str) -> ArtifactRef:
    """Of a checkpoint or a batch, which the catalogue never opens."""
    sha256 = hashlib.sha256(uri.encode()).hexdigest()
    return ArtifactRef(kind=kind, uri=uri, sha256=sha256, num_bytes=100)


def make_problem(problem_id: str) -> Problem:
    source = f"test/{problem_id[0]}"
    return Problem(problem_id=problem_id, question=f"{problem_id}?", answer="7", source=source)


def make_rollouts(folder: Path, uri: str, groups: Sequence[Group]) -> ArtifactRef:
    write_rollouts(folder / uri, groups)
    return make_ref("rollouts", uri)


def make_problems(folder: Path, uri: str, problem_ids: Sequence[str]) -> ArtifactRef:
    write_problems(folder / uri, [make_problem(problem_id) for problem_id in problem_ids])
    return make_ref("problems", uri)


def make_run_manifest(run: str = "demo", *, minute: int = 0) -> Manifest:
    values = {"profile": "laptop", "config_hash": "c0ffee", "config": '{"seed": 1}'}
    return Manifest(run=run, stage="", kind="run", created_at=at(minute), values=values)


def make_problem_set(
    folder: Path,
    stage: str,
    problem_ids: Sequence[str],
    *,
    run: str = "demo",
    minute: int = 1,
    quarantined: Sequence[Mapping[str, str]] = (),
) -> Manifest:
    uri = f"{run}/{stage}/problems.parquet"
    return Manifest(
        run=run,
        stage=stage,
        kind="problems",
        created_at=at(minute),
        parts={"problems": make_problems(folder, uri, problem_ids)},
        values={"quarantined": quarantined},
    )


def make_step_manifest(
    folder: Path,
    stage: str,
    step: int,
    groups: Sequence[Group],
    *,
    dropped: Mapping[str, str],
    run: str = "demo",
    minute: int = 2,
    has_checkpoint: bool = True,
) -> Manifest:
    base = f"{run}/{stage}/step-{step}"
    parts = {
        "rollouts": make_rollouts(folder, f"{base}/rollouts.parquet", groups),
        "batch": make_ref("batch", f"{base}/batch.parquet"),
    }
    if has_checkpoint:
        parts["checkpoint"] = make_ref("checkpoint", f"{base}/checkpoint")
    kept = [r.rollout_id for g in groups if g.problem_id not in dropped for r in g.rollouts[:2]]
    decision = GateDecision(
        verdict=GateVerdict.CONTINUE, reason="too few steps", evidence={"truncation_rate": 0.2}
    )
    return Manifest(
        run=run,
        stage=stage,
        kind="step",
        step=step,
        created_at=at(minute),
        parts=parts,
        values={
            "metrics": replace(make_step(step, stage=stage), loss=float("nan")),
            "kept_rollout_ids": kept,
            "dropped": dropped,
            "gate": decision,
        },
    )


def make_result(
    stage: str,
    step: int,
    *,
    run: str = "demo",
    minute: int = 3,
    checkpoint: str | None = None,
    kept_step: int | None = None,
) -> Manifest:
    """Promoted; with `kept_step` aborted, and left with the checkpoint of that step."""
    uri = checkpoint or f"{run}/{stage}/step-{kept_step or step}/checkpoint"
    decision = GateDecision(
        verdict=GateVerdict.PROMOTE, reason="truncation settled at 4 %", evidence={"window": 8}
    )
    if kept_step:
        decision = GateDecision(
            verdict=GateVerdict.ABORT, reason="collapsed", evidence={"kept_step": kept_step}
        )
    result = StageResult(
        stage=stage,
        checkpoint=make_ref("checkpoint", uri),
        problem_set=make_ref("problems", f"{run}/{stage}/problems.parquet"),
        last_step=step,
        gate=decision,
    )
    names = ("checkpoint", "problem_set", "last_step", "gate", "scores")
    return Manifest(
        run=run,
        stage=stage,
        kind="stage",
        created_at=at(minute),
        values={name: getattr(result, name) for name in names},
    )


def make_chunk(
    folder: Path,
    number: int,
    groups: Sequence[Group],
    *,
    checkpoint: str,
    run: str = "demo",
    minute: int = 4,
) -> Manifest:
    """Of the filter: sampled at temperature 1 by `checkpoint`."""
    uri = f"{run}/difficulty-filter/chunk-{number}/rollouts.parquet"
    measured = {
        "checkpoint": make_ref("checkpoint", checkpoint),
        "temperature": 1.0,
        "top_p": 0.9,
        "max_response_tokens": 96,
        "max_turns": 4,
        "seed": 5,
        "verifier": "rules 12ab",
    }
    return Manifest(
        run=run,
        stage="difficulty-filter",
        kind="chunk",
        step=number,
        created_at=at(minute),
        parts={"rollouts": make_rollouts(folder, uri, groups)},
        values={"tries": [asdict(tries_of(group)) for group in groups], "measured": measured},
    )


def make_filter(
    groups: Sequence[Group], *, checkpoint: str, run: str = "demo", minute: int = 4
) -> Manifest:
    """Drops what is always solved, as the chunks with these groups measured it."""
    config = FilterConfig(num_rollouts=len(groups[0].rollouts))
    verdicts = difficulty_verdicts([tries_of(group) for group in groups], config)
    said = [f"solved {v.tries.num_correct} of {v.tries.num_decided}" for v in verdicts]
    lowest, highest = config.band
    return Manifest(
        run=run,
        stage="difficulty-filter",
        kind="filter",
        created_at=at(minute),
        values={
            "checkpoint": make_ref("checkpoint", checkpoint),
            "band": {"min_correct": lowest, "max_correct": highest},
            "verdicts": [
                verdict_row(verdict) | {"reason": reason}
                for verdict, reason in zip(verdicts, said, strict=True)
            ],
        },
    )


def make_whole_filter(
    folder: Path, groups: Sequence[Group], *, checkpoint: str, minute: int = 4
) -> Manifest:
    """As runs had it before there were chunks and bands."""
    made = make_filter(groups, checkpoint=checkpoint, minute=minute)
    part = make_rollouts(folder, "demo/difficulty-filter/rollouts.parquet", groups)
    verdicts = [dict(row) for row in made.values["verdicts"]]
    for row in verdicts:
        del row["is_undecided"]
    values = {"checkpoint": made.values["checkpoint"], "verdicts": verdicts}
    return replace(made, parts={"rollouts": part}, values=values)


def make_evaluation(
    folder: Path,
    name: str,
    groups: Sequence[Group],
    *,
    checkpoint: str,
    run: str = "demo",
    minute: int = 8,
) -> Manifest:
    uri = f"{run}/evaluation/{name}/rollouts.parquet"
    score = Score(
        name=name,
        mean=0.5,
        low=0.4,
        high=0.6,
        standard_error=0.05,
        num_problems=len(groups),
        num_attempts=4,
        num_undecided=0,
        mean_response_tokens=30.0,
        truncation_rate=0.0,
    )
    return Manifest(
        run=run,
        stage="evaluation",
        kind="evaluation",
        created_at=at(minute),
        parts={
            "rollouts": make_rollouts(folder, uri, groups),
            "problems": make_problems(
                folder, f"{run}/{name}/problems.parquet", [group.problem_id for group in groups]
            ),
        },
        values={
            "name": name,
            "checkpoint": make_ref("checkpoint", checkpoint),
            "scores": [score],
        },
    )


def small_run(folder: Path, run: str = "demo") -> list[Manifest]:
    """SFT, RL-1 of two steps, a filter that drops `a1`, RL-3 of one step, one evaluation."""
    easy, hard = [1.0, 1.0], [1.0, 0.0]
    always = "all rollouts correct"
    last = f"{run}/rl-1/step-2/checkpoint"
    sampled = [make_group(easy, problem_id="a1"), make_group(hard, problem_id="b1")]
    return [
        make_run_manifest(run),
        make_result("sft", 30, run=run, minute=1, checkpoint=f"{run}/sft/checkpoint"),
        make_problem_set(folder, "rl-1", ["a1", "a2", "b1", "b2"], run=run, minute=2),
        make_step_manifest(
            folder,
            "rl-1",
            1,
            [make_group(easy, problem_id="a1"), make_group(hard, problem_id="a2")],
            dropped={"a1": always},
            run=run,
            minute=3,
        ),
        make_step_manifest(
            folder,
            "rl-1",
            2,
            [make_group(hard, problem_id="a2"), make_group(hard, problem_id="b1")],
            dropped={},
            run=run,
            minute=4,
        ),
        make_result("rl-1", 2, run=run, minute=5),
        make_chunk(folder, 1, sampled[:1], checkpoint=last, run=run, minute=6),
        make_chunk(folder, 2, sampled[1:], checkpoint=last, run=run, minute=6),
        make_filter(sampled, checkpoint=last, run=run, minute=6),
        make_problem_set(folder, "rl-3", ["a2", "b1", "b2"], run=run, minute=7),
        make_step_manifest(
            folder,
            "rl-3",
            1,
            [make_group(hard, problem_id="b1")],
            dropped={},
            run=run,
            minute=8,
        ),
        make_result("rl-3", 1, run=run, minute=9),
        make_evaluation(
            folder,
            "held-out",
            [make_group(hard, problem_id="z1")],
            checkpoint=f"{run}/rl-3/step-1/checkpoint",
            run=run,
            minute=10,
        ),
    ]


def resolve_in(folder: Path) -> Callable[[ArtifactRef], Path]:
    return lambda ref: folder / ref.uri


def publish_all(
    catalog_path: Path,
    manifests: Sequence[Manifest],
    *,
    force: bool = True,
    everything: Sequence[Manifest] | None = None,
) -> bool:
    """Parts lie beside the catalogue; without `everything` the given manifests are all there are."""
    return publish(
        catalog_path,
        manifests,
        resolve_in(catalog_path.parent),
        force=force,
        everything=lambda: manifests if everything is None else everything,
    )
