from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from infra.object_store import open_store
from rstar2.difficulty import Tries
from rstar2.profiles import load_config
from rstar2.types import ArtifactRef, GateDecision, GateVerdict, Problem, StageResult
from tasks.filter_chunks import Chunk, chunks_to_sample, measured_tries
from tasks.ledger import FILTER, Ledger, start_run
from tasks.problems import store_problems

PROBLEMS = [f"p{n}" for n in range(7)]


def new_ledger(folder: Path) -> tuple[Ledger, StageResult]:
    """The run `demo` whose RL-2 ended with seven problems."""
    ledger = Ledger(open_store(str(folder)), "demo")
    start_run(ledger, load_config("smoke"), {})
    problems = [Problem(problem_id=name, question="q", answer="1", source="s") for name in PROBLEMS]
    ref = store_problems(ledger, problems, ledger.key("rl-2", "problems.parquet"))
    gate = GateDecision(verdict=GateVerdict.PROMOTE, reason="because", evidence={})
    checkpoint = ArtifactRef(kind="checkpoint", uri="c", sha256="ab", num_bytes=1)
    return ledger, StageResult(
        stage="rl-2", checkpoint=checkpoint, problem_set=ref, last_step=2, gate=gate
    )


def commit(ledger: Ledger, number: int, names: list[str]) -> None:
    tries = [Tries(problem_id=n, num_correct=1, num_decided=2, num_rollouts=2) for n in names]
    values = {"tries": [asdict(row) for row in tries]}
    ledger.commit("chunk", stage=FILTER, step=number, values=values)


def left(ledger: Ledger, start: StageResult, size: int) -> list[Chunk]:
    config = load_config("smoke", [f"filter.problems_per_chunk={size}"])
    return chunks_to_sample(ledger, config, start)


def test_a_set_that_fills_its_chunks_ends_with_the_last_of_them(tmp_path: Path) -> None:
    ledger, start = new_ledger(tmp_path)
    assert left(ledger, start, 7) == [Chunk(number=1, first=0, stop=7, is_last=True)]


def test_the_chunks_cover_the_set_in_its_order(tmp_path: Path) -> None:
    ledger, start = new_ledger(tmp_path)
    assert left(ledger, start, 3) == [
        Chunk(number=1, first=0, stop=3, is_last=False),
        Chunk(number=2, first=3, stop=6, is_last=False),
        Chunk(number=3, first=6, stop=7, is_last=True),
    ]


def test_what_was_committed_is_not_sampled_again(tmp_path: Path) -> None:
    ledger, start = new_ledger(tmp_path)
    commit(ledger, 1, PROBLEMS[:3])
    assert left(ledger, start, 3)[0] == Chunk(number=2, first=3, stop=6, is_last=False)
    commit(ledger, 2, PROBLEMS[3:])
    assert left(ledger, start, 3) == []


def test_another_size_goes_on_where_the_committed_chunks_end(tmp_path: Path) -> None:
    ledger, start = new_ledger(tmp_path)
    commit(ledger, 1, PROBLEMS[:3])
    assert left(ledger, start, 100) == [Chunk(number=2, first=3, stop=7, is_last=True)]


def test_the_tries_stand_in_the_order_of_the_set(tmp_path: Path) -> None:
    ledger, _ = new_ledger(tmp_path)
    commit(ledger, 1, PROBLEMS[:3])
    commit(ledger, 2, PROBLEMS[3:])
    assert [row.problem_id for row in measured_tries(ledger)] == PROBLEMS
