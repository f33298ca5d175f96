"""What a user's SQL may do, and how answers are printed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from catalog_builders import publish_all, small_run

from data_catalog.catalog import CatalogError
from data_catalog.queries import Answer, QueryError, as_csv, as_json, as_table, export, query


@pytest.fixture(scope="module")
def catalog_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    path = folder / "catalog.duckdb"
    publish_all(path, small_run(folder))
    return path


@pytest.mark.parametrize(
    "sql",
    [
        "insert into runs select * from runs",
        "delete from attempts",
        "create table x (i integer)",
        "drop view hardest_problems",
        "copy runs to '{folder}/runs.csv'",
        "export database '{folder}/all'",
        "attach '{folder}/other.duckdb'",
        "select * from read_text('{folder}/secret')",
        "select * from read_csv('{folder}/secret')",
        "select * from '{folder}/secret'",
        "select * from glob('{folder}/*')",
        "select * from read_parquet('{folder}/*.parquet')",
        "install httpfs",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "pragma temp_directory = '{folder}'",
    ],
)
def test_sql_can_neither_write_nor_leave_the_catalogue(
    catalog_path: Path, tmp_path: Path, sql: str
) -> None:
    (tmp_path / "secret").write_text("secret")
    before = catalog_path.read_bytes()
    with pytest.raises(QueryError):
        query(catalog_path, sql.format(folder=tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]
    assert catalog_path.read_bytes() == before


def test_a_long_answer_draws_no_progress_bar_over_the_output(catalog_path: Path) -> None:
    answer = query(catalog_path, "select current_setting('enable_progress_bar')")
    assert answer.rows == ((False,),)


def test_a_mistake_in_sql_shows_where_and_what_there_is(catalog_path: Path) -> None:
    with pytest.raises(QueryError) as caught:
        query(catalog_path, "select * frm runs")
    assert "^" in str(caught.value)
    with pytest.raises(QueryError, match="Tables and views: artefacts, attempts"):
        query(catalog_path, "select * from nothing")


@pytest.mark.parametrize("sql", ["", "  ", ";", "-- nothing"])
def test_no_statement_is_a_mistake(catalog_path: Path, sql: str) -> None:
    with pytest.raises(QueryError, match="no statement"):
        query(catalog_path, sql)


def test_local_variables_are_no_tables(catalog_path: Path) -> None:
    with pytest.raises(QueryError, match="does not exist"):
        query(catalog_path, "select * from answer")


def test_a_storage_without_catalogue_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="name the run's storage with --storage"):
        query(tmp_path / "catalog.duckdb", "select 1")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "catalog.duckdb").write_bytes(b"something else")
    with pytest.raises(CatalogError, match="cannot be read"):
        query(tmp_path / "catalog.duckdb", "select 1")


def test_every_view_answers(catalog_path: Path) -> None:
    names = query(catalog_path, "select view_name from duckdb_views() where not internal").rows
    assert len(names) >= 8
    for (name,) in names:
        query(catalog_path, f"from {name}")


def test_what_rl3_trained_on_and_why(catalog_path: Path) -> None:
    sql = "select problem_id, why, pass_rate, source from trained_on where stage = 'rl-3'"
    assert query(catalog_path, sql).rows == (("b1", "solved 1 of 2", 0.5, "test/b"),)


def test_the_hardest_problems_come_first(catalog_path: Path) -> None:
    sql = "select problem_id, num_correct, num_decided from hardest_problems"
    assert query(catalog_path, sql).rows == (("b1", 3, 6), ("a2", 2, 4), ("a1", 4, 4))


def test_sources_by_stage_counts_what_each_gave(catalog_path: Path) -> None:
    sql = """select source, num_problems, num_trained, num_left_out from sources_by_stage
        where stage = 'rl-1'"""
    assert query(catalog_path, sql).rows == (("test/a", 2, 1, 1), ("test/b", 2, 1, 0))


def test_gate_history_ends_with_the_promotion(catalog_path: Path) -> None:
    sql = "select step, verdict, is_final from gate_history where stage = 'rl-1'"
    rows = query(catalog_path, sql).rows
    assert rows == ((1, "continue", False), (2, "continue", False), (2, "promote", True))


def test_json_has_an_object_for_each_row(catalog_path: Path) -> None:
    sql = """select 1 as a, 2 as a, 'nan'::double as b, timestamp '2026-03-01' as c, [1] as d,
        null as e, 2::hugeint as f"""
    assert json.loads(as_json(query(catalog_path, sql))) == [
        {"a": 1, "a_2": 2, "b": None, "c": "2026-03-01T00:00:00", "d": [1], "e": None, "f": 2}
    ]


def test_csv_quotes_what_needs_it() -> None:
    answer = Answer(columns=("a", "b"), rows=(('x,"y"', None), ("two\nlines", 1)))
    rows = list(csv.reader(io.StringIO(as_csv(answer))))
    assert rows == [["a", "b"], ['x,"y"', ""], ["two\nlines", "1"]]


def test_a_table_is_aligned_cut_and_counted() -> None:
    rows = tuple((f"{'word ' * 30}\n", i, None) for i in range(300))
    lines = as_table(Answer(columns=("text", "number", "empty"), rows=rows)).splitlines()
    assert len(lines) == 203
    assert lines[2].startswith("word word")
    assert "…" in lines[2]
    assert lines[-1] == "… 100 more rows: --csv or --json print all"
    assert len({len(line) for line in lines[2:-1]}) == 1


def test_a_table_without_rows_shows_its_columns() -> None:
    assert as_table(Answer(columns=("a", "bc"), rows=())) == "a  bc\n─  ──"


def test_every_table_is_exported(catalog_path: Path, tmp_path: Path) -> None:
    paths = export(catalog_path, tmp_path / "it's here")
    assert "attempts.parquet" in {path.name for path in paths}
    table = pq.read_table(tmp_path / "it's here" / "attempts.parquet")
    assert table.num_rows == query(catalog_path, "select count(*) from attempts").rows[0][0]


def test_export_into_a_folder_with_files_is_refused(catalog_path: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(QueryError, match="is not empty"):
        export(catalog_path, tmp_path)
