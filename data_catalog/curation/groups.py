"""The second pass of the curation: rows compared with each other, rule after rule.

Reads the staging file of `rows` with DuckDB under a memory limit, which spills into the scratch
folder; writes nowhere else. Each rule sees only what the rules before it left. Fills a table `verdicts`:
a row for each row that falls, with its rule, the reason and the row that stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from data_catalog.catalog import WITHOUT_PROGRESS
from data_catalog.curation.rewording import Rewordings
from data_catalog.curation.spelling import spell
from rstar2.curation import CurationConfig

FETCHED_ROWS = 4096


class ComparisonError(RuntimeError):
    """The rows could not be compared, for want of room or memory. Nothing was written."""


@contextmanager
def open_scratch(scratch: Path, *, memory: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that lives in the scratch folder and keeps to `memory`."""
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory,
        "temp_directory": str(scratch / "spill"),
        "threads": 2,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        with duckdb.connect(scratch / "scratch.duckdb", config=settings) as connection:
            connection.execute(WITHOUT_PROGRESS)
            yield connection
    except duckdb.Error as error:
        raise ComparisonError(
            f"the rows could not be compared: {str(error).splitlines()[0]}. Nothing was written; "
            f"expected {memory} of memory and room beside the result for three times its size: free "
            "space there, or name another folder, and start again"
        ) from error


def judge_groups(
    connection: duckdb.DuckDBPyConnection,
    staged: Path,
    *,
    config: CurationConfig,
    reference: Path | None,
) -> None:
    """Fills `verdicts` and `tries`; `reference` holds the counts of a policy by problem."""
    connection.execute(_KEYS, {"staged": str(staged)})
    connection.execute(_VERDICTS)
    connection.execute(_TRIES if reference is None else _TRIES_WITH, _path("reference", reference))
    for statement in (_MALFORMED, _EXACT, _CONFLICTS):
        connection.execute(statement)
    if config.near_duplicates:
        connection.execute(_RESPELT)
        _add_rewordings(connection, staged, config)
    connection.execute(_ANSWERS, {"staged": str(staged)})
    connection.execute(_REFERENCE, {"least": config.min_correct, "of": config.of_attempts})
    connection.execute(_CONTAMINATED, {"staged": str(staged)})


def counted(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Rows by the rule to which they fell."""
    return dict(connection.execute("select rule, count(*) from verdicts group by rule").fetchall())


def judged_rows(connection: duckdb.DuckDBPyConnection, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Rule, reason, other row and counts of every row, in the order of the rows."""
    return iter(connection.sql(_JUDGED).to_arrow_reader(batch_rows))


def has_reference(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether any row has counts of a reference policy: without, that rule is off."""
    return connection.execute("select count(num_attempts) > 0 from tries").fetchall()[0][0] is True


def _path(name: str, path: Path | None) -> dict[str, str]:
    return {} if path is None else {name: str(path)}


def _add_rewordings(
    connection: duckdb.DuckDBPyConnection, staged: Path, config: CurationConfig
) -> None:
    connection.execute(_SAME_CONTENT)
    found = staged.with_name("rewordings.parquet")
    rows = _rewordings(connection, staged, config)
    with pq.ParquetWriter(found, _REWORDING_SCHEMA) as writer:
        while batch := list(islice(rows, FETCHED_ROWS)):
            records = [dict(zip(_REWORDING_SCHEMA.names, row, strict=True)) for row in batch]
            writer.write_table(pa.Table.from_pylist(records, schema=_REWORDING_SCHEMA))
    connection.execute(_REWORDED, {"found": str(found)})


def _rewordings(
    connection: duckdb.DuckDBPyConnection, staged: Path, config: CurationConfig
) -> Iterator[tuple[int, str, int]]:
    """(row, how, the row that it rewords), group by group of one answer and content."""
    rows = _fetch(connection, _CANDIDATES, {"staged": str(staged)})
    for _, group in groupby(rows, key=lambda row: row[0]):
        known = Rewordings(config.max_added_words)
        spelt = ((row, spell(question)) for _, row, question in group)
        for row, spelling in spelt:
            same = known.find_or_add(row, spelling)
            if same is not None:
                other, how = same
                yield row, how, other


def _fetch(
    connection: duckdb.DuckDBPyConnection, statement: str, parameters: dict[str, str]
) -> Iterator[tuple]:
    """Rows as they come, a batch in memory."""
    found = connection.cursor().sql(statement, params=parameters)
    for batch in found.to_arrow_reader(FETCHED_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


_REWORDING_SCHEMA = pa.schema([("row", pa.int64()), ("reason", pa.string()), ("other", pa.int64())])

_KEYS = """
create table keys as
select row, file, number, problem_id, answer, answer_key, spelling, content, answer_rule,
    malformed, contaminated is not null as is_contaminated, num_correct, num_attempts
from read_parquet($staged)
"""

_VERDICTS = """
create table verdicts (row bigint, rule varchar, reason varchar, other bigint);
create view standing as select * from keys where row not in (select row from verdicts);
"""

_TRIES = "create table tries as select row, num_correct, num_attempts from keys"

_TRIES_WITH = """
create table tries as
select k.row, p.num_correct, p.num_attempts
from keys as k left join (
    select problem_id, sum(num_correct)::bigint as num_correct, sum(num_attempts)::bigint as num_attempts
    from read_parquet($reference) group by problem_id
) as p using (problem_id)
"""

_MALFORMED = """
insert into verdicts select row, 'malformed', malformed, null from keys where malformed is not null
"""

# Of rows that say the same, the first whose answer can be used stands for all of them.
_FIRST = "coalesce(min(row) filter (answer_rule is null), min(row))"

_EXACT = f"""
insert into verdicts
select row, 'exact_duplicate', 'the same question and answer', first
from standing join (
    select problem_id, answer_key, {_FIRST} as first from standing group by all having count(*) > 1
) using (problem_id, answer_key)
where row <> first
"""

_CONFLICTS = """
insert into verdicts
select row, 'conflicting_answers', 'another answer to the same question',
    case when answer_key = least_key then greatest_row else least_row end
from standing join (
    select spelling, min(answer_key) as least_key, arg_min(row, answer_key) as least_row,
        arg_max(row, answer_key) as greatest_row
    from standing group by spelling having min(answer_key) <> max(answer_key)
) using (spelling)
"""

_RESPELT = f"""
insert into verdicts
select row, 'near_duplicate', 'the same question in another spelling', first
from standing join (
    select spelling, {_FIRST} as first from standing group by spelling having count(*) > 1
) using (spelling)
where row <> first
"""

_SAME_CONTENT = """
create table same_content as
select row, dense_rank() over (order by content, answer_key) as place
from standing join (
    select content, answer_key from standing where answer_rule is null group by all having count(*) > 1
) using (content, answer_key)
where answer_rule is null
"""

_CANDIDATES = """
select place, row, question from same_content join read_parquet($staged) using (row)
order by place, num_tokens, row
"""

_REWORDED = """
insert into verdicts select row, 'near_duplicate', reason, other from read_parquet($found)
"""

_ANSWERS = """
insert into verdicts
select row, k.answer_rule, answer_reason, null
from standing as k join read_parquet($staged) using (row) where k.answer_rule is not null
"""

_REFERENCE = """
insert into verdicts
select row, 'reference_policy',
    case when coalesce(t.num_attempts, 0) = 0 then 'the reference policy did not try it'
        else format('right {} of {} attempts, expected {} of {}', t.num_correct, t.num_attempts,
            $least, $of) end,
    null
from standing join tries as t using (row)
where (select count(num_attempts) > 0 from tries)
    and (coalesce(t.num_attempts, 0) = 0 or t.num_correct * $of < $least * t.num_attempts)
"""

_CONTAMINATED = """
insert into verdicts
select row, 'contaminated', contaminated, null
from standing join read_parquet($staged) using (row) where is_contaminated
"""

_JUDGED = """
select k.row, v.rule, v.reason, o.file as other_file, o.number as other_row,
    o.problem_id as other_problem_id, o.answer as other_answer,
    t.num_correct / nullif(t.num_attempts, 0) as pass_rate,
    coalesce(k.problem_id in (select problem_id from standing), false) as is_kept
from keys as k left join verdicts as v using (row) left join keys as o on o.row = v.other
    left join tries as t on t.row = k.row
order by k.row
"""
