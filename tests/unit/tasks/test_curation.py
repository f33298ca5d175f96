"""What a curation left out reaches the catalogue with the run that trains on the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_catalog.curation.curate import PROBLEMS, curate
from data_catalog.lineage import explain_problem, problem_text
from data_catalog.queries import open_catalog
from infra.object_store import open_store
from rstar2.problems import problem_id
from rstar2.profiles import load_config
from tasks.curation import record_curation
from tasks.ledger import Ledger, catalog_path, start_run

QUESTION = "Tom has 17 apples and buys 25 more at the market. How many apples are there altogether?"
REWORDED = f"Hello there, {QUESTION}"
HALF = "Ann has 3 pears and eats one half of one of them. How many pears are left?"


def curated(folder: Path) -> str:
    rows = [(QUESTION, 42), (QUESTION, 42), (REWORDED, 42), (HALF, 2.5), ("", 1)]
    text = "".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows)
    (folder / "rows.jsonl").write_text(text)
    curate([folder / "rows.jsonl"], folder / "out")
    return str(folder / "out" / PROBLEMS)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(open_store(str(tmp_path / "runs")), "demo")
    start_run(ledger, load_config("smoke"), {})
    return ledger


def decisions(ledger: Ledger, question: str) -> list[tuple[str, str, str]]:
    with open_catalog(catalog_path(ledger.store)) as connection:
        story = explain_problem(connection, problem_id(question))
    assert question in problem_text(story)
    return [(row["stage"], row["decision"], row["reason"]) for row in story["stages"]]


def test_the_catalogue_explains_why_a_problem_was_left_out(ledger: Ledger, tmp_path: Path) -> None:
    record_curation(ledger, curated(tmp_path))
    ledger.publish(force=True)
    ((stage, decision, reason),) = decisions(ledger, HALF)
    assert (stage, decision) == ("curation", "quarantined")
    assert reason == "not_an_integer: the answer is 2.5"
    ((_, _, reason),) = decisions(ledger, REWORDED)
    assert reason.startswith("near_duplicate: with the phrase 'hello there' (row 1 of ")


def test_a_problem_of_which_one_row_is_kept_was_not_left_out(
    ledger: Ledger, tmp_path: Path
) -> None:
    record_curation(ledger, curated(tmp_path))
    ledger.publish(force=True)
    with open_catalog(catalog_path(ledger.store)) as connection:
        rows = connection.execute("select problem_id from problem_sets").fetchall()
    assert sorted(row[0] for row in rows) == sorted(map(problem_id, (HALF, REWORDED)))


def test_it_is_recorded_once_and_only_of_a_curated_file(ledger: Ledger, tmp_path: Path) -> None:
    source = curated(tmp_path)
    for name in (source, source, str(tmp_path / "rows.jsonl"), "arithmetic"):
        record_curation(ledger, name)
    assert len(ledger.store.list("demo/curation/")) == 2
