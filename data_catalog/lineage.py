"""The two stories that the catalogue tells: of a problem, and of a checkpoint.

Reads an open catalogue. `explain_problem` follows one problem through the stages of each run;
`trace_checkpoint` follows a checkpoint back to everything it was trained on. Both give plain values
for JSON and a text for reading. Deliberately computes nothing: what is told stands in the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb

from data_catalog.queries import Answer, QueryError, ask

Story = Mapping[str, Any]


def explain_problem(connection: duckdb.DuckDBPyConnection, problem: str) -> Story:
    """What every run did with one problem; `problem` is its id or the beginning of it."""
    problem_id = _one_problem(connection, problem)
    parameters = {"id": problem_id}
    known = _rows(ask(connection, _PROBLEM, parameters))
    return {
        "problem_id": problem_id,
        **(known[0] if known else {"question": None, "answer": None, "source": None}),
        "stages": _rows(ask(connection, _STAGES_OF_PROBLEM, parameters)),
        "draws": _rows(ask(connection, _DRAWS_OF_PROBLEM, parameters)),
        "answers": _rows(ask(connection, _ANSWERS_OF_PROBLEM, parameters)),
        "evaluations": _rows(ask(connection, _EVALUATIONS_OF_PROBLEM, parameters)),
    }


def trace_checkpoint(connection: duckdb.DuckDBPyConnection, checkpoint: str) -> Story:
    """Where a checkpoint comes from: its stages, newest first, and what each trained on.

    `checkpoint` is its address, the beginning of its hash, or a run's name for its newest one.
    """
    found = _one_checkpoint(connection, checkpoint)
    parameters = {"uri": found["uri"]}
    total = ask(connection, _NUM_PROBLEMS, parameters).rows[0][0]
    return {
        "checkpoint": found,
        "stages": _rows(ask(connection, _STAGES_OF_CHECKPOINT, parameters)),
        "num_problems": total,
        "scores": _rows(ask(connection, _SCORES, parameters)),
    }


def problems_of(connection: duckdb.DuckDBPyConnection, checkpoint: str) -> Answer:
    """Every problem that a checkpoint was trained on, by stage, with its steps."""
    found = _one_checkpoint(connection, checkpoint)
    return ask(connection, "from trained_problems($uri)", {"uri": found["uri"]})


def problem_text(story: Story) -> str:
    lines = [
        f"problem {story['problem_id']} ({story['source'] or 'source unknown'})",
        f"  question: {story['question']}",
        f"  answer: {story['answer']}",
    ]
    run = None
    for row in story["stages"]:
        if row["run"] != run:
            run = row["run"]
            lines.append(f"run {run}")
        lines.append(f"  {row['stage']}: {row['decision']} ({row['reason']}){_tries(row)}")
        for draw in story["draws"]:
            if (draw["run"], draw["stage"]) == (run, row["stage"]):
                why = f" ({draw['reason']})" if draw["reason"] else ""
                lines.append(f"    step {draw['step']}: {draw['outcome']}{why}{_tries(draw)}")
    for row in story["evaluations"]:
        name = f"{row['run']} {row['evaluation']}"
        lines.append(f"  evaluated in {name}{_tries(row)}")
    if story["answers"]:
        lines.append("answers seen: " + ", ".join(map(_answer_seen, story["answers"])))
    return "\n".join(lines)


def checkpoint_text(story: Story) -> str:
    checkpoint = story["checkpoint"]
    lines = [
        f"checkpoint {checkpoint['uri']}",
        f"  sha256 {checkpoint['sha256'][:16]}…, {checkpoint['num_bytes']:,} bytes, run "
        f"{checkpoint['run']}, {checkpoint['stage']} step {checkpoint['step']}",
    ]
    for row in story["stages"]:
        lines += _stage_lines(row)
    lines.append(f"trained with RL on {story['num_problems']:,} different problems")
    for row in story["scores"]:
        interval = f"{row['low']:.1%} to {row['high']:.1%}"
        lines.append(f"  {row['evaluation']} {row['name']}: {row['mean']:.1%} ({interval})")
    lines.append(f"each problem: rstar2 catalog lineage {checkpoint['uri']} --problems")
    return "\n".join(lines)


def _answer_seen(row: Mapping[str, Any]) -> str:
    judged = {1.0: "correct", 0.0: "incorrect"}.get(row["reward"], "undecided")
    return f"{row['answer'] or '(none)'} {judged} x{row['num_attempts']}"


def _stage_lines(row: Mapping[str, Any]) -> list[str]:
    if row["num_steps"]:
        head = (
            f"{row['stage']}: steps {row['first_step']} to {row['last_step']}, trained on "
            f"{row['num_problems']:,} problems, {row['num_kept']:,} of {row['num_rollouts']:,} "
            "rollouts"
        )
    else:
        head = f"{row['stage']}: {row['uri']}"
    lines = [head]
    if row["problem_set"]:
        lines.append(f"  problem set {row['problem_set']} ({row['num_in_set']:,} problems)")
    if row["num_filtered"] is not None:
        lines.append(
            f"  after the difficulty filter: {row['num_kept_by_filter']:,} kept, "
            f"{row['num_filtered']:,} filtered"
        )
    if row["verdict"]:
        lines.append(f"  ended with {row['verdict']}: {row['reason']}")
    return lines


def _tries(row: Mapping[str, Any]) -> str:
    if not row["num_attempts"]:
        return ""
    undecided = row["num_attempts"] - row["num_decided"]
    note = f", {undecided} undecided or failed" if undecided else ""
    return f": {row['num_correct']} of {row['num_decided']} correct{note}"


def _rows(answer: Answer) -> list[dict[str, Any]]:
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def _one_problem(connection: duckdb.DuckDBPyConnection, problem: str) -> str:
    rows = ask(connection, _PROBLEM_IDS, {"start": problem}).rows
    if len(rows) == 1 or (rows and rows[0][0] == problem):
        return str(rows[0][0])
    if not rows:
        raise QueryError(
            f"no problem {problem!r} in the catalogue: expected its id or the beginning of it; "
            "`rstar2 catalog problems` lists them"
        )
    shown = ", ".join(str(row[0]) for row in rows[:5])
    raise QueryError(f"{problem!r} begins {len(rows)} problem ids ({shown} …): give more digits")


def _one_checkpoint(connection: duckdb.DuckDBPyConnection, checkpoint: str) -> dict[str, Any]:
    rows = _rows(ask(connection, _CHECKPOINTS, {"name": checkpoint.rstrip("/")}))
    if not rows:
        newest = ask(connection, _NEWEST_CHECKPOINTS).rows
        raise QueryError(
            f"no checkpoint {checkpoint!r} in the catalogue: expected its address, the beginning of "
            "its sha256, or the name of a run; the newest are "
            + (", ".join(str(row[0]) for row in newest) or "(none)")
        )
    return rows[0]


_PROBLEM_IDS = """
select distinct problem_id from (
    select problem_id from problem_stage union all select problem_id from problems
) where starts_with(problem_id, $start) order by problem_id
"""

_PROBLEM = "select question, answer, source from problems where problem_id = $id limit 1"

_STAGES_OF_PROBLEM = """
select run, stage, decision, p.reason, num_draws, num_trained, num_attempts, num_decided, num_correct,
    pass_rate, p.checkpoint
from problem_stage as p left join stages as s using (run, stage)
where problem_id = $id order by run, position
"""

_DRAWS_OF_PROBLEM = """
select run, stage, step, outcome, reason, num_attempts, num_decided, num_correct
from draws where problem_id = $id order by run, stage, step
"""

_ANSWERS_OF_PROBLEM = """
select answer, reward, count(*) as num_attempts from attempts where problem_id = $id
group by answer, reward order by num_attempts desc, answer limit 10
"""

_EVALUATIONS_OF_PROBLEM = """
select run, evaluation, count(*) as num_attempts, count(reward) as num_decided,
    count(*) filter (reward = 1) as num_correct
from attempts where problem_id = $id and purpose = 'evaluation'
group by run, evaluation, manifest_id order by run, manifest_id
"""

_CHECKPOINTS = """
select uri, sha256, num_bytes, run, stage, step from checkpoints
where uri = $name or run = $name or (length($name) >= 6 and starts_with(sha256, $name))
order by (uri = $name) desc, created_at desc, is_stage_end desc limit 1
"""

_NEWEST_CHECKPOINTS = """
select uri from checkpoints group by uri order by max(created_at) desc limit 5
"""

_NUM_PROBLEMS = "select count(distinct problem_id) from trained_problems($uri)"

_SCORES = """
select evaluation, name, mean, low, high from evaluations where checkpoint = $uri
order by created_at, name
"""

_STAGES_OF_CHECKPOINT = """
with recursive ancestors as (
    select $uri as uri
    union
    select l.parent from lineage as l join ancestors as a on l.child = a.uri
    where l.relation in ('trained on', 'continued from')
),
trained as (
    select run, stage, min(step) as first_step, max(step) as last_step, count(*) as num_steps
    from (
        select distinct run, stage, step from artefacts join ancestors using (uri)
        where name = 'batch'
    ) group by run, stage
),
passed as (
    select run, stage, any_value(position) as position, arg_max(uri, step) as uri,
        lag(any_value(position)) over (partition by run order by any_value(position)) as before
    from (select run, stage, step, uri from checkpoints join ancestors using (uri))
        join stages using (run, stage) group by run, stage
),
problems_trained as (
    select run, stage, count(*) as num_problems from trained_problems($uri) group by run, stage
),
sampled as (
    select run, stage, count(*) as num_rollouts, count(*) filter (is_kept) as num_kept
    from attempts join trained using (run, stage)
    where purpose = 'training' and step between first_step and last_step group by run, stage
),
filtered as (
    select run, stage, position, count(*) filter (decision = 'kept') as num_kept_by_filter,
        count(*) filter (decision = 'filtered') as num_filtered
    from filter_verdicts join stages using (run, stage) group by run, stage, position
)
select s.run, s.stage, p.uri, t.first_step, t.last_step, coalesce(t.num_steps, 0) as num_steps,
    coalesce(n.num_problems, 0) as num_problems, coalesce(a.num_rollouts, 0) as num_rollouts,
    coalesce(a.num_kept, 0) as num_kept, s.problem_set, s.num_problems as num_in_set,
    f.num_kept_by_filter, f.num_filtered,
    case when s.last_step is null or t.last_step = s.last_step then s.verdict end as verdict, s.reason
from passed as p join stages as s using (run, stage)
    left join trained as t using (run, stage) left join problems_trained as n using (run, stage)
    left join sampled as a using (run, stage)
    left join filtered as f on f.run = s.run and f.position between p.before and s.position
order by s.position desc
"""
