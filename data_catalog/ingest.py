"""From committed manifests to rows: the facts of each manifest once, then what follows from them.

Reads the parts of new manifests (Parquet of `rstar2.rollout_files`) with DuckDB, writes the tables of
`schema.sql` into an open catalogue. Facts do not depend on the order in which manifests arrive; what
spans manifests (stages, problem_stage, lineage) is computed again for each run that changed.
Deliberately holds no lock and opens no catalogue: that is `catalog.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from duckdb import DuckDBPyConnection

from data_catalog.filter_rows import pass_rate_rows, verdict_rows
from data_catalog.records import Manifest, manifest_from_json, manifest_json
from rstar2.types import TOOL_ERRORS, ArtifactRef

FACT_TABLES = (
    "manifests", "runs", "steps", "problems", "problem_sets", "draws", "pass_rates", "filter_verdicts",
    "attempts", "gates", "checkpoints", "artefacts", "evaluations",
)  # fmt: skip
DERIVED_TABLES = ("stages", "problem_stage", "lineage")

Resolve = Callable[[ArtifactRef], Path]
Row = dict[str, object]


def ingest(connection: DuckDBPyConnection, manifests: Sequence[Manifest], resolve: Resolve) -> bool:
    """Adds what is new in one transaction; returns whether anything was."""
    connection.execute("begin")
    admitted = _admit(connection, manifests)
    for manifest_id, manifest in admitted.items():
        _add(Target(connection, manifest_id, manifest, resolve))
    for run in sorted({manifest.run for manifest in admitted.values()}):
        _derive(connection, run)
    connection.execute("commit")
    return bool(admitted)


@dataclass(frozen=True, slots=True)
class Target:
    """One manifest on its way into an open catalogue."""

    connection: DuckDBPyConnection
    manifest_id: int
    manifest: Manifest
    """As read back from JSON: values hold dictionaries, no dataclasses."""
    resolve: Resolve

    @property
    def place(self) -> Row:
        """The columns that every fact table has."""
        m = self.manifest
        return {"manifest_id": self.manifest_id, "run": m.run, "stage": m.stage, "step": m.step}

    @property
    def stamped(self) -> Row:
        return self.place | {"created_at": self.manifest.committed_at}

    def value(self, name: str) -> Any:
        return self.manifest.values.get(name)

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Columns by name; those which a row lacks are null, and so is what is not finite."""
        if rows:
            plain = [{name: _finite(value) for name, value in row.items()} for row in rows]
            self.connection.register("incoming", pa.Table.from_pylist(plain))
            self.connection.execute(f"insert into {table} by name select * from incoming")
            self.connection.unregister("incoming")

    def insert_part(self, table: str, part: str, sql: str, **values: object) -> None:
        """Rows that `sql` selects from the Parquet file of a part, named `$path` in it."""
        path = str(self.resolve(self.manifest.parts[part]))
        parameters = {"path": path, **self.place, **values}
        used = {name: value for name, value in parameters.items() if f"${name}" in sql}
        self.connection.execute(f"insert into {table} by name {sql}", used)


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _admit(connection: DuckDBPyConnection, manifests: Sequence[Manifest]) -> dict[int, Manifest]:
    """The manifests to add, by their new numbers; rows of versions they replace are deleted."""
    rows = connection.execute("select key, manifest_id, created_at from manifests").fetchall()
    known = {key: (number, at) for key, number, at in rows}
    next_id = 1 + max((number for number, _ in known.values()), default=0)
    admitted: dict[int, Manifest] = {}
    stale: set[str] = set()
    for manifest in sorted(manifests, key=lambda m: (m.kind != "run", m.committed_at, m.key)):
        number, at = known.get(manifest.key, (0, None))
        if manifest.kind == "run" and at and manifest.committed_at < at:
            stale.add(manifest.run)  # its process has been replaced by a fresh start of the run
        if manifest.run in stale or at == manifest.committed_at:
            continue
        if number and manifest.kind == "run":
            _delete_run(connection, manifest.run)
            known = {k: v for k, v in known.items() if not k.startswith(f"{manifest.run}/")}
        elif number:
            _delete_manifest(connection, number)
        admitted[next_id] = manifest_from_json(manifest_json(manifest))
        known[manifest.key] = (next_id, manifest.committed_at)
        next_id += 1
    return {n: m for n, m in admitted.items() if known.get(m.key, (0, None))[0] == n}


def _delete_run(connection: DuckDBPyConnection, run: str) -> None:
    for table in (*FACT_TABLES, *DERIVED_TABLES):
        connection.execute(f"delete from {table} where run = ?", [run])


def _delete_manifest(connection: DuckDBPyConnection, manifest_id: int) -> None:
    for table in FACT_TABLES:
        connection.execute(f"delete from {table} where manifest_id = ?", [manifest_id])


def _derive(connection: DuckDBPyConnection, run: str) -> None:
    """Computes the rows of a run that follow from its facts."""
    for table in DERIVED_TABLES:
        connection.execute(f"delete from {table} where run = ?", [run])
        sql = (Path(__file__).parent / "derived" / f"{table}.sql").read_text()
        connection.execute(f"insert into {table} by name {sql}", {"run": run})


def _add(target: Target) -> None:
    manifest = target.manifest
    target.insert("manifests", [_manifest_row(target)])
    target.insert("artefacts", list(_artefact_rows(target)))
    if "problems" in manifest.parts:
        target.insert_part("problems", "problems", _PROBLEMS)
    if "victims" in manifest.parts:
        target.insert_part("problems", "victims", _VICTIM_PROBLEMS)
        target.insert_part("problem_sets", "victims", _VICTIMS)
    match manifest.kind:
        case "run":
            target.insert("runs", [_run_row(target)])
        case "problems" if "problems" in manifest.parts:
            target.insert_part("problem_sets", "problems", _PROBLEM_SET)
            target.insert("problem_sets", list(_quarantined_rows(target)))
        case "step":
            _add_step(target)
        case "chunk" | "filter":
            _add_filter(target)
        case "evaluation":
            _add_attempts(target, purpose="evaluation")
            target.insert("evaluations", list(_score_rows(target)))
        case "base" | "checkpoint":
            target.insert("checkpoints", list(_checkpoint_rows(target, is_stage_end=False)))
        case "stage":
            _add_result(target)
        case "answer":
            target.insert("gates", [_answer_row(target)])


def _add_step(target: Target) -> None:
    metrics = dict(target.value("metrics") or {})
    target.insert("steps", [target.stamped | metrics])
    _add_attempts(target, purpose="training")
    dropped: Mapping[str, str] = target.value("dropped") or {}
    target.connection.execute(
        _DRAWS,
        {"id": target.manifest_id, "dropped": list(dropped), "reasons": list(dropped.values())},
    )
    if target.value("gate"):
        target.insert("gates", [_gate_row(target, is_final=False)])
    target.insert("checkpoints", list(_checkpoint_rows(target, is_stage_end=False)))


def _add_filter(target: Target) -> None:
    manifest = target.manifest
    if "rollouts" in manifest.parts:  # of a chunk, or of a whole filter from before there were any
        _add_attempts(target, purpose="filter")
    if manifest.kind == "chunk":
        rows = [target.place | row for row in pass_rate_rows(manifest)]
        target.insert("pass_rates", rows)
        return
    place = {name: target.place[name] for name in ("manifest_id", "run", "stage")}
    target.insert("filter_verdicts", [place | row for row in verdict_rows(manifest)])


def _add_result(target: Target) -> None:
    if target.value("gate"):
        row = _gate_row(target, is_final=True)
        target.insert("gates", [row | {"step": target.value("last_step")}])
    target.insert("checkpoints", list(_checkpoint_rows(target, is_stage_end=True)))


def _add_attempts(target: Target, *, purpose: str) -> None:
    kept = list(target.value("kept_rollout_ids") or [])
    evaluation = target.value("name") if purpose == "evaluation" else None
    target.insert_part(
        "attempts", "rollouts", _ATTEMPTS, purpose=purpose, evaluation=evaluation, kept=kept
    )


def _manifest_row(target: Target) -> Row:
    m = target.manifest
    return target.stamped | {"key": m.key, "kind": m.kind}


def _run_row(target: Target) -> Row:
    row = {name: target.stamped[name] for name in ("manifest_id", "run", "created_at")}
    config = target.value("config")  # JSON text: the order of the stages matters
    texts = {name: target.value(name) for name in ("profile", "config_hash")}
    return row | texts | {"config": config}


def _artefact_rows(target: Target) -> Iterator[Row]:
    for name, ref in sorted(target.manifest.parts.items()):
        yield target.place | {"name": name} | asdict(ref)


def _quarantined_rows(target: Target) -> Iterator[Row]:
    place = {name: target.place[name] for name in ("manifest_id", "run", "stage")}
    for row in target.value("quarantined") or []:
        names = ("problem_id", "reason")
        yield place | {name: row.get(name) for name in names} | {"is_quarantined": True}


def _gate_row(target: Target, *, is_final: bool) -> Row:
    gate = target.value("gate")
    evidence = {name: _finite(value) for name, value in gate["evidence"].items()}
    return target.stamped | {
        "verdict": gate["verdict"],
        "reason": gate["reason"],
        "evidence": json.dumps(evidence, sort_keys=True),
        "is_final": is_final,
    }


def _answer_row(target: Target) -> Row:
    is_yes = target.value("verdict") == "approve"
    return target.stamped | {
        "verdict": "promote" if is_yes else "abort",
        "reason": f"{'approved' if is_yes else 'rejected'} by a person",
        "evidence": "{}",
        "is_final": True,
    }


def _checkpoint_rows(target: Target, *, is_stage_end: bool) -> Iterator[Row]:
    part = target.manifest.parts.get("checkpoint")
    ref = asdict(part) if part else target.value("checkpoint")
    if ref:
        row = {name: ref[name] for name in ("uri", "sha256", "num_bytes")}
        step = _end_step(target) if is_stage_end else target.manifest.step or 0
        yield target.stamped | row | {"step": step, "is_stage_end": is_stage_end}


def _end_step(target: Target) -> object:
    """The step whose weights a stage ended with: its last, or of an aborted one its best."""
    evidence: Mapping[str, object] = (target.value("gate") or {}).get("evidence") or {}
    return evidence.get("kept_step", target.value("last_step"))


def _score_rows(target: Target) -> Iterator[Row]:
    common = {
        "evaluation": target.value("name"),
        "checkpoint": _address(target.value("checkpoint")),
    }
    for score in target.value("scores") or []:
        yield target.stamped | common | dict(score)


def _address(ref: object) -> str | None:
    """Of an artefact that stands in the values as a reference or as its address alone."""
    return str(ref["uri"]) if isinstance(ref, Mapping) else None if ref is None else str(ref)


_PROBLEMS = """
select $manifest_id as manifest_id, $run as run, problem_id, question, answer, source
from read_parquet($path) as p
where not exists (select 1 from problems as k where k.run = $run and k.problem_id = p.problem_id)
"""

_PROBLEM_SET = """
select $manifest_id as manifest_id, $run as run, $stage as stage, problem_id,
    false as is_quarantined, pass_rate
from read_parquet($path)
"""

# Of what a curation left out: a problem of which another row is kept is no victim.
_VICTIM_PROBLEMS = """
select $manifest_id as manifest_id, $run as run, problem_id, any_value(question) as question,
    any_value(answer) as answer, any_value('user/' || source) as source
from read_parquet($path) as p
where problem_id is not null and not is_kept
    and not exists (select 1 from problems as k where k.run = $run and k.problem_id = p.problem_id)
group by problem_id
"""

_VICTIMS = """
select $manifest_id as manifest_id, $run as run, $stage as stage, problem_id,
    true as is_quarantined,
    first(
        concat(rule, ': ', reason, ' (row ' || other_row || ' of ' || other_file || ')')
        order by rule = 'exact_duplicate', file, row
    ) as reason
from read_parquet($path) where problem_id is not null and not is_kept group by problem_id
"""

_ERRORS = ", ".join(f"'{status}'" for status in sorted(TOOL_ERRORS))

_ATTEMPTS = f"""
select $manifest_id as manifest_id, $run as run, $stage as stage, $step as step,
    $purpose as purpose, $evaluation as evaluation, problem_id, rollout_id, reward, status, answer,
    verdict_reason, len(turns) as num_turns,
    coalesce(list_sum([len(t.tool_results) for t in turns]), 0) as num_tool_calls,
    coalesce(
        list_sum([len([r for r in t.tool_results if r.status in ({_ERRORS})]) for t in turns]), 0
    ) as num_tool_errors,
    coalesce(list_sum([len(t.token_ids) for t in turns]), 0) as num_sampled_tokens,
    coalesce(list_sum([len(t.token_ids) + len(t.observation_token_ids) for t in turns]), 0)
        as num_response_tokens,
    rollout_id in (select unnest($kept::varchar[])) as is_kept,
    list_max(flatten([[v.policy_version for v in t.policy_versions] for t in turns]))
        as policy_version
from read_parquet($path)
"""

_DRAWS = """
insert into draws by name
select a.manifest_id, a.run, a.stage, a.step, a.problem_id,
    case when any_value(d.reason) is null and bool_or(a.is_kept) then 'trained' else 'dropped' end
        as outcome,
    case when any_value(d.reason) is not null then any_value(d.reason)
        when not bool_or(a.is_kept) then 'none of its rollouts is in the batch' end as reason,
    count(*) as num_attempts, count(a.reward) as num_decided,
    count(*) filter (a.reward = 1) as num_correct
from attempts as a
left join (select unnest($dropped::varchar[]) as problem_id, unnest($reasons::varchar[]) as reason)
    as d on d.problem_id = a.problem_id
where a.manifest_id = $id
group by a.manifest_id, a.run, a.stage, a.step, a.problem_id
"""
