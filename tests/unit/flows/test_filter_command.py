"""`rstar2 filter` over a ledger, without a server or a model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from flows.commands import main
from infra.object_store import open_store
from rstar2.difficulty import Tries
from rstar2.profiles import load_config
from tasks.ledger import FILTER, Ledger, start_run

MEASURED = {
    "checkpoint": {"uri": "demo/rl-2/c", "kind": "checkpoint", "sha256": "ab", "num_bytes": 3},
    "temperature": 1.0,
    "top_p": 0.9,
    "max_response_tokens": 96,
    "max_turns": 4,
    "seed": 5,
    "verifier": "rules 12ab",
}


def started(storage: Path, *overrides: str) -> Ledger:
    ledger = Ledger(open_store(str(storage)), "demo")
    start_run(ledger, load_config("smoke", ["filter.num_rollouts=8", *overrides]), {})
    return ledger


def commit_chunk(ledger: Ledger, number: int, solved: list[int]) -> None:
    tries = [
        Tries(problem_id=f"p{number}-{n}", num_correct=times, num_decided=8, num_rollouts=8)
        for n, times in enumerate(solved)
    ]
    values = {"tries": [asdict(row) for row in tries], "measured": MEASURED}
    ledger.commit("chunk", stage=FILTER, step=number, values=values)


def shown(storage: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["filter", "show", "demo", *options, "--storage", str(storage)]) == 0
    return capsys.readouterr().out


def test_show_says_what_each_band_would_keep_of_what_was_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = started(tmp_path)
    commit_chunk(ledger, 1, [0, 1, 8])
    commit_chunk(ledger, 2, [4, 7])
    said = shown(tmp_path, capsys)
    assert said.splitlines()[0] == (
        "demo: 5 problems tried so far by demo/rl-2/c at temperature 1.0, top_p 0.9, 96 tokens, "
        "4 turns, seed 5; rules 12ab"
    )
    assert "* drop 8 of 8     4 " in said
    assert "  2 to 6 of 8     1 " in said


def test_show_counts_another_band_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit_chunk(started(tmp_path), 1, [0, 3, 4, 5, 8])
    band = ["--set", "filter.min_correct=4", "--set", "filter.max_correct=5"]
    rows = json.loads(shown(tmp_path, capsys, *band, "--json"))
    assert [row for row in rows if row["is_configured"]] == [
        {
            "name": "4 to 5 of 8",
            "is_configured": True,
            "num_kept": 2,
            "num_undecided": 0,
            "num_dropped": 3,
        }
    ]


def test_show_reads_a_filter_from_before_there_were_chunks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = started(tmp_path, "filter.drop_at=7")
    counts = {"num_correct": 7, "num_decided": 7, "num_rollouts": 8}
    verdict = {"problem_id": "p", **counts, "decision": "drop", "reason": "", "pass_rate": 1.0}
    ledger.commit("filter", stage=FILTER, values={"verdicts": [verdict]})
    said = shown(tmp_path, capsys)
    assert said.startswith("demo: 1 problems tried\n")
    assert "* 0 to 6 of 8     0                  0        1" in said
    assert "  drop 8 of 8     1                  1        0" in said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("filter.num_rollouts=4", "only the band can be another one"),
        ("filter.max_correct=9", "can never be reached with num_rollouts = 8"),
        ("filter.min_correct=8", "no problem could be kept"),
        ("filter.max_corect=6", "expected filter.min_correct=COUNT or filter.max_correct=COUNT"),
    ],
)
def test_show_refuses_what_is_no_band(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, said: str
) -> None:
    commit_chunk(started(tmp_path), 1, [4])
    assert main(["filter", "show", "demo", "--set", override, "--storage", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_run_whose_filter_has_not_begun_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started(tmp_path)
    assert main(["filter", "show", "demo", "--storage", str(tmp_path)]) == 2
    assert "has tried no problem for its difficulty filter yet" in capsys.readouterr().err
