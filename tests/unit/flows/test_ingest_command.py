"""`rstar2 ingest`: what it prints, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.commands import main
from rstar2.curation import RULES

QUESTION = "Tom has 17 apples and buys 25 more at the market. How many apples are there altogether?"


def write(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_every_rule_is_shown_with_its_count_and_whether_it_was_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": QUESTION, "gold": 42}, {"text": QUESTION, "gold": 42}]
    source = write(tmp_path / "a.jsonl", *rows)
    out = str(tmp_path / "out")
    code = main(["ingest", source, "--map", "question=text", "--map", "answer=gold", "--out", out])
    counts = {line.split()[0]: line.split(maxsplit=2)[1:] for line in _lines(capsys)}
    assert code == 0
    assert [counts[rule][0] for rule in RULES] == ["0", "1", *["0"] * (len(RULES) - 2)]
    assert counts["kept"] == ["1"]
    assert counts["contaminated"][1] == "off: no evaluation set was named"
    assert counts["reference_policy"][1].startswith("off: no row has num_correct")


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1]


def test_evaluation_sets_settings_and_several_files(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", {"question": QUESTION, "answer": 42})
    two = write(tmp_path / "b.jsonl", {"question": f"{QUESTION} Add one.", "answer": 1234})
    frogs = write(tmp_path / "frogs.jsonl", {"problem": "Frogs?", "answer": "9"})
    tom = write(tmp_path / "tom.jsonl", {"problem": QUESTION, "answer": "42"})
    out = tmp_path / "out"
    options = ["--evaluation-set", frogs, "--evaluation-set", tom, "--out", str(out)]
    assert main(["ingest", one, two, *options, "--set", "curation.max_answer_digits=3"]) == 0
    rules = pq.read_table(out / "victims.parquet")["rule"].to_pylist()
    assert rules == ["contaminated", "too_large"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "no file was named"),
        (("a.jsonl", "--map", "gold=x"), "expected NAME=COLUMN with question, answer"),
        (("a.jsonl", "--set", "curation.min_corect=3"), "did you mean min_correct?"),
        (("a.jsonl", "--set", "curation.min_correct=30"), "lower the first or raise the second"),
        (("none.jsonl",), "no such file: none.jsonl"),
        (("a.jsonl", "--evaluation-set", "empty.jsonl"), "empty.jsonl has no rows"),
        (("a.jsonl", "--reference", "empty.jsonl"), "empty.jsonl has no rows"),
        (("a.jsonl", "--map", "num_correct=zzz"), "no row has a column 'zzz'; seen: answer, que"),
    ],
)
def test_wrong_use_is_explained_and_writes_nothing(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.jsonl", {"question": QUESTION, "answer": 42})
    write(tmp_path / "empty.jsonl")
    assert main(["ingest", *options, "--out", "out"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
