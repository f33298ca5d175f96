"""Publication: what the catalogue holds after it, and what it survives."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import time
from collections.abc import Callable
from pathlib import Path

from catalog_builders import (
    at,
    make_chunk,
    make_evaluation,
    make_filter,
    make_problem_set,
    make_result,
    make_run_manifest,
    make_step_manifest,
    make_whole_filter,
    publish_all,
    small_run,
)
from rollout_builders import make_group, make_rollout

from data_catalog.queries import open_catalog
from data_catalog.records import Manifest
from rstar2.step_metrics import StepMetrics
from rstar2.types import Group, RolloutStatus

Ask = Callable[[str], list[tuple[object, ...]]]


def test_which_problems_were_filtered_in_which_stage_and_why(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    publish_all(catalog_path, small_run(tmp_path))
    sql = "select stage, decision, reason, count(*) from problem_stage group by all order by all"
    assert ask(sql) == [
        ("difficulty-filter", "filtered", "solved 2 of 2", 1),
        ("difficulty-filter", "kept", "solved 1 of 2", 1),
        ("rl-1", "dropped", "all rollouts correct", 1),
        ("rl-1", "not drawn", "in the set, not drawn", 1),
        ("rl-1", "trained", "its group had signal", 2),
        ("rl-3", "not drawn", "in the set, not drawn", 2),
        ("rl-3", "trained", "its group had signal", 1),
    ]


def test_every_rollout_of_a_step_is_an_attempt(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    rollouts = (
        make_rollout("p/0", reward=1.0, problem_id="p", statuses=("ok", "error", "timeout")),
        make_rollout("p/1", reward=0.0, problem_id="p", statuses=()),
        make_rollout("p/2", reward=None, problem_id="p", status=RolloutStatus.FAILED),
    )
    step = make_step_manifest(
        tmp_path, "rl-1", 3, [Group(problem_id="p", rollouts=rollouts)], dropped={}
    )
    publish_all(catalog_path, [make_run_manifest(), step])
    sql = """select rollout_id, step, purpose, reward, status, answer, num_turns, num_tool_calls,
        num_tool_errors, num_sampled_tokens, num_response_tokens, is_kept, policy_version
        from attempts order by rollout_id"""
    assert ask(sql) == [
        ("p/0", 3, "training", 1.0, "completed", "7", 2, 3, 2, 4, 5, True, 0),
        ("p/1", 3, "training", 0.0, "completed", "7", 1, 0, 0, 2, 2, True, 0),
        ("p/2", 3, "training", None, "failed", "7", 2, 1, 0, 4, 5, False, 0),
    ]


def test_a_rollout_without_a_turn_counts_nothing(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    group = Group(problem_id="p", rollouts=(make_rollout("p/0", turns=(), reward=None),))
    publish_all(catalog_path, [make_step_manifest(tmp_path, "rl-1", 1, [group], dropped={})])
    sql = "select num_turns, num_tool_calls, num_sampled_tokens, policy_version from attempts"
    assert ask(sql) == [(0, 0, 0, None)]


def test_a_step_that_trained_nothing_has_rows_with_nulls(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    step = make_step_manifest(tmp_path, "rl-1", 1, [], dropped={})
    publish_all(catalog_path, [step])
    assert ask("select step, loss, reward from steps") == [(1, None, 0.5)]
    assert ask("select count(*) from attempts") == [(0,)]


def test_stages_stand_in_order_with_how_they_ended(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    publish_all(catalog_path, small_run(tmp_path))
    sql = "select stage, num_problems, last_step, verdict, checkpoint from stages order by position"
    assert ask(sql) == [
        ("sft", None, None, "promote", "demo/sft/checkpoint"),
        ("rl-1", 4, 2, "promote", "demo/rl-1/step-2/checkpoint"),
        ("difficulty-filter", None, None, None, None),
        ("rl-3", 3, 1, "promote", "demo/rl-3/step-1/checkpoint"),
        ("evaluation", None, None, None, None),
    ]


def test_the_answer_of_a_person_decides_the_stage(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    answer = Manifest(
        run="demo",
        stage="rl-1",
        kind="answer",
        created_at=at(20),
        values={"verdict": "reject"},
    )
    publish_all(catalog_path, [make_result("rl-1", 2), answer])
    assert ask("select verdict, reason from stages") == [("abort", "rejected by a person")]


def test_quarantined_problems_say_why(tmp_path: Path, catalog_path: Path, ask: Ask) -> None:
    rows = [{"problem_id": "q", "reason": "conflicting answers"}]
    publish_all(catalog_path, [make_problem_set(tmp_path, "rl-1", ["a"], quarantined=rows)])
    assert ask("select problem_id, decision, reason from problem_stage order by all") == [
        ("a", "not drawn", "in the set, not drawn"),
        ("q", "quarantined", "conflicting answers"),
    ]


def test_publishing_step_by_step_gives_the_same_as_at_once(tmp_path: Path) -> None:
    manifests = small_run(tmp_path)
    for number in range(1, len(manifests) + 1):
        publish_all(tmp_path / "catalog.duckdb", manifests[:number])
    publish_all(tmp_path / "other.duckdb", manifests)
    assert _dump(tmp_path / "catalog.duckdb") == _dump(tmp_path / "other.duckdb")


def test_only_new_manifests_are_read(tmp_path: Path, catalog_path: Path, ask: Ask) -> None:
    manifests = small_run(tmp_path)
    publish_all(catalog_path, manifests[:4])
    (tmp_path / "demo/rl-1/step-1/rollouts.parquet").unlink()
    publish_all(catalog_path, manifests[4:5])
    assert ask("select count(*) from steps") == [(2,)]


def test_publishing_again_changes_nothing(tmp_path: Path, catalog_path: Path) -> None:
    manifests = small_run(tmp_path)
    publish_all(catalog_path, manifests)
    before = catalog_path.stat().st_ino
    assert publish_all(catalog_path, manifests)
    assert catalog_path.stat().st_ino == before


def test_a_second_publication_within_seconds_waits_unless_forced(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    manifests = small_run(tmp_path)
    assert publish_all(catalog_path, manifests[:4], force=False)
    (tmp_path / "catalog.duckdb.lock").write_text(json.dumps({"demo": time.time()}))
    assert not publish_all(catalog_path, manifests[:5], force=False)
    assert ask("select count(*) from steps") == [(1,)]
    assert publish_all(catalog_path, manifests[:5], force=True)
    assert ask("select count(*) from steps") == [(2,)]


def test_one_run_does_not_delay_another(tmp_path: Path, catalog_path: Path) -> None:
    assert publish_all(catalog_path, [make_run_manifest("a")], force=False)
    assert publish_all(catalog_path, [make_run_manifest("b")], force=False)


def test_an_unforced_publication_declines_while_another_one_works(
    tmp_path: Path, catalog_path: Path
) -> None:
    with (tmp_path / "catalog.duckdb.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not publish_all(catalog_path, [make_run_manifest()], force=False)
    assert publish_all(catalog_path, [make_run_manifest()], force=False)


def test_two_runs_share_one_catalogue(tmp_path: Path, catalog_path: Path, ask: Ask) -> None:
    publish_all(catalog_path, small_run(tmp_path, "one"))
    publish_all(catalog_path, small_run(tmp_path, "two"))
    assert ask("select run, count(*) from attempts group by run order by run") == [
        ("one", 16),
        ("two", 16),
    ]


def test_a_publication_with_older_manifests_takes_nothing_away(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    manifests = small_run(tmp_path)
    publish_all(catalog_path, manifests)
    publish_all(catalog_path, manifests[:2])
    assert ask("select count(*) from steps") == [(3,)]


def test_a_run_started_afresh_replaces_the_old_one(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    old = small_run(tmp_path)
    publish_all(catalog_path, [*old, *small_run(tmp_path, "other")])
    fresh = [make_run_manifest(minute=30), make_problem_set(tmp_path, "rl-1", ["a1"], minute=31)]
    publish_all(catalog_path, fresh)
    publish_all(catalog_path, old)  # a process of the old run that still lives
    assert ask("select count(*) from attempts where run = 'demo'") == [(0,)]
    assert ask("select problem_id from problem_stage where run = 'demo'") == [("a1",)]
    assert ask("select count(*) from attempts where run = 'other'") == [(16,)]


def test_the_step_series_has_a_column_for_every_metric(catalog_path: Path, ask: Ask) -> None:
    publish_all(catalog_path, [make_run_manifest()])
    columns = ask("select column_name from duckdb_columns() where table_name = 'steps'")
    names = {field.name for field in dataclasses.fields(StepMetrics)}
    assert names <= {row[0] for row in columns}


def test_every_table_and_column_has_a_comment(catalog_path: Path, ask: Ask) -> None:
    publish_all(catalog_path, [make_run_manifest()])
    where = "where comment is null and not internal"
    assert ask(f"select table_name from duckdb_tables() {where}") == []
    assert ask(f"select view_name from duckdb_views() {where}") == []
    sql = f"select table_name, column_name from duckdb_columns() {where} and table_name in (select "
    assert ask(sql + "table_name from duckdb_tables())") == []


def test_a_problem_solved_by_one_checkpoint_and_not_by_the_next_has_flipped(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    solved, unsolved = [1.0, 1.0], [0.0, 0.0]
    evaluations = [
        ("rl-1", "demo/rl-1/c", {"a": solved, "b": unsolved}),
        ("rl-2", "demo/rl-2/c", {"a": unsolved, "b": solved}),
        ("final", "demo/rl-2/c", {"a": unsolved, "b": unsolved}),
    ]
    publish_all(
        catalog_path,
        [
            make_evaluation(
                tmp_path,
                name,
                [make_group(rewards, problem_id=problem) for problem, rewards in groups.items()],
                checkpoint=checkpoint,
                minute=minute,
            )
            for minute, (name, checkpoint, groups) in enumerate(evaluations)
        ],
    )
    assert ask("from flipped_problems") == [
        ("demo", "a", "rl-1", "rl-2", "demo/rl-1/c", "demo/rl-2/c", 1.0, 0.0)
    ]


def test_groups_of_a_step_may_be_of_problems_that_no_set_names(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    step = make_step_manifest(
        tmp_path, "rl-1", 1, [make_group([1.0, 0.0], problem_id="x")], dropped={}
    )
    publish_all(catalog_path, [step])
    assert ask("select problem_id, decision from problem_stage") == [("x", "trained")]


def _dump(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with open_catalog(path) as connection:
        names = connection.execute("select table_name from duckdb_tables() order by 1").fetchall()
        return {
            name: connection.execute(f"select * from {name} order by all").fetchall()
            for (name,) in names
        }


def test_a_pass_rate_stands_with_what_it_was_measured_under(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    groups = [make_group([1.0, 0.0, 0.0, None], problem_id="a"), make_group([None], problem_id="b")]
    publish_all(
        catalog_path, [make_run_manifest(), make_chunk(tmp_path, 1, groups, checkpoint="c")]
    )
    sql = """select problem_id, num_correct, num_decided, num_attempts, pass_rate, checkpoint,
        temperature, top_p, max_response_tokens, max_turns, seed, verifier, step
        from pass_rates order by problem_id"""
    conditions = ("c", 1.0, 0.9, 96, 4, 5, "rules 12ab", 1)
    assert ask(sql) == [
        ("a", 1, 3, 4, 1 / 3, *conditions),
        ("b", 0, 0, 1, None, *conditions),
    ]
    assert ask("select purpose, step, count(*) from attempts group by all") == [("filter", 1, 5)]


def test_a_verdict_stands_with_its_band(tmp_path: Path, catalog_path: Path, ask: Ask) -> None:
    groups = [make_group([1.0, 1.0], problem_id="a"), make_group([1.0, None], problem_id="b")]
    publish_all(catalog_path, [make_run_manifest(), make_filter(groups, checkpoint="c")])
    sql = """select problem_id, decision, is_undecided, min_correct, max_correct
        from filter_verdicts order by problem_id"""
    assert ask(sql) == [("a", "filtered", False, 0, 1), ("b", "kept", True, 0, 1)]


def test_a_filter_from_before_there_were_chunks_is_read(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    groups = [make_group([1.0, 1.0], problem_id="a"), make_group([1.0, 0.0], problem_id="b")]
    decided = make_whole_filter(tmp_path, groups, checkpoint="c")
    publish_all(catalog_path, [make_run_manifest(), decided])
    sql = "select problem_id, decision, is_undecided, min_correct from filter_verdicts order by 1"
    assert ask(sql) == [("a", "filtered", None, None), ("b", "kept", None, None)]
    assert ask("select count(*) from attempts where purpose = 'filter'") == [(4,)]
    sql = "select child, parent, relation from lineage"
    assert ask(sql) == [("demo/difficulty-filter/rollouts.parquet", "c", "sampled by")]


def test_the_set_after_a_filter_comes_from_every_chunk_of_it(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    publish_all(catalog_path, small_run(tmp_path))
    chunks = [f"demo/difficulty-filter/chunk-{number}/rollouts.parquet" for number in (1, 2)]
    sql = """select child, parent from lineage where relation = 'filtered by'
        or child like '%chunk%' order by all"""
    assert ask(sql) == [
        *((chunk, "demo/rl-1/step-2/checkpoint") for chunk in chunks),
        *(("demo/rl-3/problems.parquet", chunk) for chunk in chunks),
    ]
