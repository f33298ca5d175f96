"""The deployment `ingest/by-hand` curates a file, and the run's sets are made of what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect.testing.utilities import prefect_test_harness

from flows.by_hand import ingest_by_hand
from infra.object_store import open_store

QUESTION = "Tom has 17 apples and buys 25 more at the market. How many apples are there altogether?"


@pytest.mark.slow
def test_the_flow_by_hand_curates_a_file_and_makes_the_sets_of_the_rest(tmp_path: Path) -> None:
    rows = [{"question": f"{QUESTION} Add {n}.", "answer": 42 + n} for n in range(40)]
    rows += [{"question": f"Hello there, {QUESTION} Add 1.", "answer": 43}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with prefect_test_harness():
        state = ingest_by_hand(
            "words",
            str(tmp_path / "rows.jsonl"),
            "smoke",
            (f'storage="{tmp_path / "runs"}"',),
            curate_into=str(tmp_path / "out"),
            return_state=True,
        )
    assert "rl-1: " in (state.message or "")
    store = open_store(str(tmp_path / "runs"))
    manifest = next(
        m
        for key in store.list("words/curation/")
        if (m := json.loads(store.get_bytes(key)) if key.endswith(".json") else None)
    )
    assert manifest["values"]["victims"]["near_duplicate"] == 1
