"""Makes each stage's problem set, and the held-out ones, into artefacts that the ledger names.

Reads generated problems or the user's own file (`data_catalog.sources`), writes one Parquet part a
set. A file is split by the hash of its questions: what is held out is never trained on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from rstar2.arithmetic import generate_problems
from rstar2.config import ProblemsConfig, RecipeConfig
from rstar2.problems import is_held_out
from rstar2.rollout_files import read_problems, write_problems
from rstar2.types import ArtifactRef, Problem
from tasks.curation import record_curation
from tasks.inputs import read_problem_file
from tasks.ledger import FILTER, Ledger, LedgerError
from tasks.pictures import shown
from tasks.promotion import artifact_key
from tasks.rollouts import derived_seed

HELD_OUT = "held-out"


@task(name="prepare problems", task_run_name="problems {stage}", cache_policy=NO_CACHE)
def prepare_problems(ledger: Ledger, config: RecipeConfig, *, stage: str) -> ArtifactRef:
    """The stage's problem set: what the filter kept, generated ones, or those of a file."""
    known = ledger.find("problems", stage=stage)
    if known is not None:
        return known.parts["problems"]
    settings = config.stages[stage]
    if settings.filter_problems:
        ref = _filtered_problems(ledger)
        num_problems = len(read_problems(ledger.store.local_path(ref)))
        quarantined: Sequence[Mapping[str, object]] = ()
    else:
        problems, quarantined = _train_problems(config, stage, settings.problems)
        record_curation(ledger, settings.problems.source)
        ref = store_problems(ledger, problems, ledger.key(stage, "problems.parquet"))
        num_problems = len(problems)
    if not num_problems:
        raise LedgerError(_no_problems(ledger, stage, settings.filter_problems))
    values = {"stage": stage, "num_problems": num_problems, "quarantined": list(quarantined)}
    get_run_logger().info(f"{stage}: {num_problems} problems, {len(quarantined)} rows quarantined")
    ledger.commit("problems", stage=stage, parts={"problems": ref}, values=values)
    return ref


@task(name="prepare held-out problems", cache_policy=NO_CACHE)
def held_out_problems(ledger: Ledger, config: RecipeConfig) -> ArtifactRef:
    """The evaluation's problems: new numbers in known wordings, then wordings never trained on."""
    known = ledger.find("problems", stage=HELD_OUT)
    if known is not None:
        return known.parts["problems"]
    problems = _held_out(config)
    if not problems:
        raise LedgerError(
            f"{config.evaluation.problems}: no problem is held out for evaluation; expected a file "
            "with more than a few rows, or name another with --set evaluation.problems=FILE"
        )
    ref = store_problems(ledger, problems, ledger.key(HELD_OUT, "problems.parquet"))
    values = {"stage": HELD_OUT, "num_problems": len(problems), "quarantined": []}
    ledger.commit("problems", stage=HELD_OUT, parts={"problems": ref}, values=values)
    return ref


def store_problems(ledger: Ledger, problems: Sequence[Problem], key: str) -> ArtifactRef:
    """Writes the problems as one Parquet part under `key`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problems.parquet"
        write_problems(path, problems)
        return ledger.store.put_file(path, key, kind="problems")


def show_problem_sets(ledger: Ledger) -> str:
    """A table on the run's page of the sets and rows set aside; the same counts as a sentence."""
    names = [*ledger.config().stages, HELD_OUT]
    manifests = {n: m for n in names if (m := ledger.find("problems", stage=n)) is not None}
    rows = [
        {
            "problem set": name,
            "problems": manifest.values["num_problems"],
            "set aside": len(manifest.values["quarantined"]),
        }
        for name, manifest in manifests.items()
    ]
    key = artifact_key(ledger.run, "problem-sets")
    with shown("the table of problem sets"):
        create_table_artifact(table=rows, key=key, description="Problem sets of the run")
    return "; ".join(
        f"{row['problem set']}: {row['problems']} problems, {row['set aside']} rows set aside"
        for row in rows
    )


def _filtered_problems(ledger: Ledger) -> ArtifactRef:
    """What the filter kept. It ran: the flow orders it before the stage that asks."""
    manifest = ledger.find("filter", stage=FILTER)
    assert manifest is not None, "the difficulty filter runs before its stage"
    return manifest.parts["problems"]


def _train_problems(
    config: RecipeConfig, stage: str, settings: ProblemsConfig
) -> tuple[list[Problem], tuple[Mapping[str, object], ...]]:
    if settings.source != "arithmetic":
        source = read_problem_file(settings.source, settings)
        train = [p for p in source.problems if not is_held_out(p.problem_id)]
        return train, source.quarantined_rows()
    problems = generate_problems(
        "train",
        settings.num_problems,
        shares=config.stages[stage].shares,
        seed=derived_seed(config.seed, stage, "problems"),
    )
    return list(problems), ()


def _held_out(config: RecipeConfig) -> list[Problem]:
    settings = config.evaluation
    if settings.problems != "arithmetic":
        problems = read_problem_file(settings.problems, settings).problems
        return [p for p in problems if is_held_out(p.problem_id)][: settings.num_problems]
    seed = derived_seed(config.seed, HELD_OUT)
    known = generate_problems("held-out", settings.num_problems, shares=settings.shares, seed=seed)
    unseen = generate_problems(
        "unseen", settings.num_unseen_problems, shares=settings.shares, seed=seed
    )
    return [*known, *unseen]


def _no_problems(ledger: Ledger, stage: str, is_filtered: bool) -> str:
    if not is_filtered:
        return f"{stage}: no problem to train on; expected at least one row that is not held out"
    return (
        f"{stage} has no problems left: the difficulty filter dropped all of them (`rstar2 catalog "
        f"explain ID` says why); start a new run with harder problems or more of them"
    )
