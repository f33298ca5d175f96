"""The stories of a problem and of a checkpoint, against a recount from the rollouts themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from catalog_builders import (
    make_result,
    make_run_manifest,
    make_step_manifest,
    publish_all,
    small_run,
)
from rollout_builders import make_group

from data_catalog.lineage import (
    checkpoint_text,
    explain_problem,
    problem_text,
    problems_of,
    trace_checkpoint,
)
from data_catalog.queries import QueryError, open_catalog
from data_catalog.records import Manifest
from rstar2.rollout_files import read_rollouts


@pytest.fixture(scope="module")
def connection(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[duckdb.DuckDBPyConnection]:
    folder = tmp_path_factory.mktemp("store")
    path = folder / "catalog.duckdb"
    publish_all(path, small_run(folder))
    with open_catalog(path) as connection:
        yield connection


def test_a_problem_is_followed_through_every_stage(connection: duckdb.DuckDBPyConnection) -> None:
    story = explain_problem(connection, "b1")
    stages = [(row["stage"], row["decision"], row["reason"]) for row in story["stages"]]
    assert stages == [
        ("rl-1", "trained", "its group had signal"),
        ("difficulty-filter", "kept", "solved 1 of 2"),
        ("rl-3", "trained", "its group had signal"),
    ]
    assert (story["question"], story["answer"], story["source"]) == ("b1?", "7", "test/b")
    assert "difficulty-filter: kept (solved 1 of 2): 1 of 2 correct" in problem_text(story)


def test_a_problem_of_an_evaluation_is_known_too(connection: duckdb.DuckDBPyConnection) -> None:
    text = problem_text(explain_problem(connection, "z"))
    assert "problem z1 (test/z)" in text
    assert "evaluated in demo held-out: 1 of 2 correct" in text


def test_the_beginning_of_an_id_must_be_of_one_problem(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    with pytest.raises(QueryError, match=r"begins 2 problem ids \(a1, a2 …\)"):
        explain_problem(connection, "a")
    with pytest.raises(QueryError, match="no problem 'nothing'"):
        explain_problem(connection, "nothing")


def test_a_checkpoint_is_followed_back_to_its_first_stage(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    story = trace_checkpoint(connection, "demo/rl-3/step-1/checkpoint")
    rows = [(row["stage"], row["first_step"], row["last_step"]) for row in story["stages"]]
    assert rows == [("rl-3", 1, 1), ("rl-1", 1, 2), ("sft", None, None)]
    text = checkpoint_text(story)
    assert "rl-3: steps 1 to 1, trained on 1 problems, 2 of 2 rollouts" in text
    assert "after the difficulty filter: 1 kept, 1 filtered" in text
    assert "held-out held-out: 50.0% (40.0% to 60.0%)" in text


def test_an_earlier_checkpoint_knows_only_what_came_before(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    rows = problems_of(connection, "demo/rl-1/step-1/checkpoint").rows
    assert [row[2] for row in rows] == ["a2"]


def test_a_checkpoint_is_found_by_hash_and_by_run(connection: duckdb.DuckDBPyConnection) -> None:
    newest = trace_checkpoint(connection, "demo")["checkpoint"]
    assert newest["uri"] == "demo/rl-3/step-1/checkpoint"
    assert trace_checkpoint(connection, newest["sha256"][:8])["checkpoint"] == newest


def test_an_unknown_checkpoint_names_those_there_are(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    with pytest.raises(QueryError, match="the newest are demo/rl-3/step-1/checkpoint"):
        trace_checkpoint(connection, "nothing")


def test_all_problems_of_a_checkpoint_equal_a_recount_from_the_rollouts(tmp_path: Path) -> None:
    manifests = _run_with_few_checkpoints(tmp_path)
    path = tmp_path / "catalog.duckdb"
    publish_all(path, manifests)
    with open_catalog(path) as connection:
        for checkpoint, last in (("s/rl-1/step-3/checkpoint", 3), ("s/rl-1/step-6/checkpoint", 6)):
            traced = {(row[1], row[2]) for row in problems_of(connection, checkpoint).rows}
            assert traced == _recount(tmp_path, manifests, last)


def test_an_aborted_stage_ends_with_the_step_whose_checkpoint_it_kept(tmp_path: Path) -> None:
    """Four steps, collapsed: the checkpoint of step 2 is the stage's result."""
    manifests = [make_run_manifest(), make_result("sft", 1, checkpoint="demo/sft")]
    for step in range(1, 5):
        groups = [make_group([1.0, 0.0], problem_id=f"t{step}")]
        manifests.append(
            make_step_manifest(tmp_path, "rl-1", step, groups, dropped={}, minute=3 + step)
        )
    manifests.append(make_result("rl-1", 4, minute=9, kept_step=2))
    path = tmp_path / "catalog.duckdb"
    publish_all(path, manifests)
    kept = "demo/rl-1/step-2/checkpoint"
    with open_catalog(path) as connection:
        rows = connection.execute(
            "select distinct step from checkpoints where uri = $uri", {"uri": kept}
        ).fetchall()
        parents = connection.execute(
            "select parent from lineage where child = $uri order by 1", {"uri": kept}
        ).fetchall()
        trained = [row[2] for row in problems_of(connection, kept).rows]
        newest = trace_checkpoint(connection, "demo")["checkpoint"]
    assert rows == [(2,)]
    assert parents == [("demo/rl-1/step-1/checkpoint",), ("demo/rl-1/step-2/batch.parquet",)]
    assert trained == ["t1", "t2"]
    assert (newest["uri"], newest["step"]) == (kept, 2)


def _run_with_few_checkpoints(folder: Path) -> list[Manifest]:
    """Seven steps, weights written at steps 3 and 6 only; each step drops one of its problems."""
    manifests = [make_run_manifest("s"), make_result("sft", 1, run="s", checkpoint="s/sft")]
    for step in range(1, 8):
        trained, dropped = f"t{step % 5}", f"d{step}"
        groups = [
            make_group([1.0, 0.0], problem_id=trained),
            make_group([1.0, 1.0], problem_id=dropped),
        ]
        manifests.append(
            make_step_manifest(
                folder,
                "rl-1",
                step,
                groups,
                dropped={dropped: "all rollouts correct"},
                run="s",
                minute=10 + step,
                has_checkpoint=step in (3, 6),
            )
        )
    return manifests


def _recount(folder: Path, manifests: list[Manifest], last: int) -> set[tuple[str, str]]:
    found = set()
    for manifest in manifests:
        if manifest.kind == "step" and manifest.step is not None and manifest.step <= last:
            kept = set(manifest.values["kept_rollout_ids"])
            for group in read_rollouts(folder / manifest.parts["rollouts"].uri):
                if any(rollout.rollout_id in kept for rollout in group.rollouts):
                    found.add((manifest.stage, group.problem_id))
    return found
