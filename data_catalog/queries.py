"""Questions to the published catalogue: SQL in, rows out, as a table, JSON or CSV.

Reads `catalog.duckdb`, opened for each question and closed after it, so that each sees the newest
version. Runs SQL that a user wrote: read-only, without access to files, network or extensions, and
with its configuration locked. Deliberately writes nothing.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

import duckdb

from data_catalog.catalog import WITHOUT_PROGRESS, CatalogError, check_version

MAX_CELL_CHARACTERS = 60
MAX_TABLE_ROWS = 200

_LOCKED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}


class QueryError(ValueError):
    """The SQL, or what was asked for, is wrong. The message shows where."""


class NoCatalogError(CatalogError, ValueError):
    """Where the catalogue was said to be there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@contextmanager
def open_catalog(catalog_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The published catalogue for reading. Raises `CatalogError` where there is none to read."""
    if not catalog_path.is_file():
        raise NoCatalogError(
            f"no catalogue at {catalog_path}: expected the file that a run publishes. Start one "
            "(`rstar2 run smoke`), or name the run's storage with --storage"
        )
    try:
        connection = duckdb.connect(catalog_path, read_only=True, config=_LOCKED)
        connection.execute(f"{WITHOUT_PROGRESS}; set lock_configuration = true")
    except duckdb.Error as error:
        raise CatalogError(
            f"{catalog_path} cannot be read: {_first_line(error)}. Expected a catalogue that rstar2 "
            "published; move it away, the next run of this storage makes it again"
        ) from error
    with connection:
        check_version(connection, catalog_path)
        yield connection


def ask(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, object] | None = None
) -> Answer:
    """The answer to one statement (of several, the last). Raises `QueryError` with DuckDB's words."""
    try:
        result = connection.execute(sql, parameters or {})
        if result is None or result.description is None:
            raise QueryError('no statement: expected SQL, as in "select * from stages"')
        rows = result.fetchall()
    except duckdb.PermissionException as error:
        raise QueryError(
            f"not allowed here: {_first_line(error)}. The catalogue is open for reading only, without "
            "access to files; use `rstar2 catalog export DIR` and query the files elsewhere"
        ) from error
    except duckdb.CatalogException as error:
        raise QueryError(f"{str(error).strip()}\nTables and views: {_names(connection)}") from error
    except duckdb.Error as error:
        raise QueryError(str(error).strip()) from error
    return Answer(columns=_unique([c[0] for c in result.description]), rows=tuple(rows))


def check_known(connection: duckdb.DuckDBPyConnection, run: str | None, stage: str | None) -> None:
    """Raises `QueryError` for a run, or a stage of it, with no problems: a misspelt one, as a rule."""
    rows = ask(connection, "select distinct run, stage from problem_stage").rows
    runs = sorted({str(row[0]) for row in rows})
    if run is not None and run not in runs:
        raise QueryError(f"no problems of a run {run!r}: expected one of {', '.join(runs)}")
    stages = sorted({str(row[1]) for row in rows if run in (None, row[0])})
    if stage is not None and stage not in stages:
        raise QueryError(f"no problems of a stage {stage!r}: expected one of {', '.join(stages)}")


def query(catalog_path: Path, sql: str) -> Answer:
    """The answer of the newest published catalogue."""
    with open_catalog(catalog_path) as connection:
        return ask(connection, sql)


def as_json(answer: Answer) -> str:
    """One object a row; numbers that JSON lacks are null."""
    rows = [dict(zip(answer.columns, map(_json_value, row), strict=True)) for row in answer.rows]
    return json.dumps(rows, ensure_ascii=False, indent=1)


def as_csv(answer: Answer) -> str:
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows(answer.rows)
    return sink.getvalue().removesuffix("\n")


def as_table(answer: Answer) -> str:
    """Aligned columns for reading: long cells are cut, and after 200 rows the rest is counted."""
    rows = [[_cell(value) for value in row] for row in answer.rows[:MAX_TABLE_ROWS]]
    columns = list(zip(answer.columns, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    is_number = [
        all(isinstance(row[i], (int, float)) or row[i] is None for row in answer.rows)
        for i in range(len(widths))
    ]
    lines = []
    for line in [list(answer.columns), ["─" * width for width in widths], *rows]:
        cells = zip(line, widths, is_number, strict=True)
        lines.append("  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in cells).rstrip())
    left_out = len(answer.rows) - len(rows)
    note = f"… {left_out:,} more rows: --csv or --json print all" if left_out else ""
    return "\n".join([*lines, *([note] if note else [])])


def export(catalog_path: Path, folder: Path) -> list[Path]:
    """Every table as a Parquet file, for tools that do not read DuckDB."""
    if folder.exists() and any(folder.iterdir()):
        raise QueryError(f"{folder} is not empty: expected a new or empty folder to export into")
    with open_catalog(catalog_path) as connection:
        tables = [row[0] for row in ask(connection, _TABLES).rows]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{table}.parquet" for table in tables]
    # Not the locked connection: this SQL is ours, and it writes files.
    with duckdb.connect(catalog_path, read_only=True) as connection:
        connection.execute(WITHOUT_PROGRESS)
        for table, path in zip(tables, paths, strict=True):
            name = str(path).replace("'", "''")
            connection.execute(f"copy {table} to '{name}' (format parquet, compression zstd)")
    return paths


_TABLES = "select table_name from duckdb_tables() where not temporary order by table_name"


def _names(connection: duckdb.DuckDBPyConnection) -> str:
    sql = "select table_name from information_schema.tables order by table_name"
    return ", ".join(str(row[0]) for row in connection.execute(sql).fetchall())


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    """Names that JSON objects can hold: a second `a` is `a_2`."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(found)


def _json_value(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    return f"({len(value)} bytes)" if isinstance(value, bytes) else str(value)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    text = (
        value.isoformat(sep=" ", timespec="seconds") if isinstance(value, datetime) else str(value)
    )
    text = " ".join(text.split())
    return text if len(text) <= MAX_CELL_CHARACTERS else f"{text[: MAX_CELL_CHARACTERS - 1]}…"
