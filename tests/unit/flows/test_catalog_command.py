"""`rstar2 catalog`: what is printed, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from catalog_builders import publish_all, small_run

from flows.commands import main


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("store")
    path = folder / "catalog.duckdb"
    publish_all(path, small_run(folder))
    return str(folder)


def test_sql_prints_json(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "sql", "select 1 as a", "--json", "--storage", storage]) == 0
    assert json.loads(capsys.readouterr().out) == [{"a": 1}]


def test_sql_prints_csv(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "sql", "select 1 as a", "--csv", "--storage", storage]) == 0
    assert capsys.readouterr().out == "a\n1\n"


def test_problems_are_listed_hardest_first(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["catalog", "problems", "--stage", "rl-1", "--json", "--storage", storage]
    assert main(command) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["problem_id"] for row in rows] == ["a2", "b1", "a1", "b2"]


def test_explain_tells_why_a_problem_was_filtered(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["catalog", "explain", "a1", "--storage", storage]) == 0
    assert "difficulty-filter: filtered (solved 2 of 2)" in capsys.readouterr().out


def test_lineage_lists_every_problem(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["catalog", "lineage", "demo", "--problems", "--csv", "--storage", storage]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "demo,rl-1,a2,1,2,2",
        "demo,rl-1,b1,2,2,1",
        "demo,rl-3,b1,1,1,1",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sql", "selec 1"], "syntax error"),
        (["sql", "delete from runs"], "DELETE"),
        (["explain", "nothing"], "no problem 'nothing'"),
        (["lineage", "nothing"], "no checkpoint 'nothing'"),
        (["problems", "--run", "dmeo"], "no problems of a run 'dmeo': expected one of demo"),
        (["problems", "--run", "demo", "--stage", "rl1"], "difficulty-filter, rl-1, rl-3"),
        (["problems", "--decision", "droped"], "not drawn"),
        (["problems", "--limit", "-1"], "Must be >= 1"),
    ],
)
def test_a_mistake_ends_with_code_2_and_no_traceback(
    storage: str, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["catalog", *arguments, "--storage", storage]) == 2
    output = capsys.readouterr()
    assert words in output.err
    assert "Traceback" not in output.err + output.out


def test_a_storage_without_catalogue_ends_with_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["catalog", "sql", "select 1", "--storage", str(tmp_path / "absent")]) == 2
    assert "no catalogue at" in capsys.readouterr().err


def test_tables_are_exported(storage: str, tmp_path: Path) -> None:
    assert main(["catalog", "export", str(tmp_path / "tables"), "--storage", storage]) == 0
    assert (tmp_path / "tables" / "attempts.parquet").is_file()
