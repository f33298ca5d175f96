"""Published problem sets: rows written as their cards show them become problems without a mapping."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_catalog.row_sources import SourceError, open_rows
from data_catalog.sources import read_source

DAPO_PROMPT = (
    "Solve the following math problem step by step. The last line of your response should be of the "
    "form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    "What is $1+1$?\n\nHow about now?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
PUBLISHED = {
    "opencompass/AIME2025": ({"question": "Find $n$.", "answer": "70"}, "Find $n$.", "70", "set"),
    "HuggingFaceH4/aime_2024": (
        {"id": 60, "problem": "Find $n$.", "solution": "…", "answer": "204", "url": "u", "year": "2024"},
        "Find $n$.",
        "204",
        "set",
    ),
    "HuggingFaceH4/MATH-500": (
        {"problem": "Find $n$.", "solution": "…", "answer": r"\frac{1}{2}", "subject": "Algebra",
         "level": 2, "unique_id": "test/algebra/1.json"},
        "Find $n$.",
        r"\frac{1}{2}",
        "set",
    ),
    "MathArena/hmmt_feb_2025": (
        {"problem_idx": 1, "problem": "Find $n$.", "answer": "103", "problem_type": ["Algebra"]},
        "Find $n$.",
        "103",
        "set",
    ),
    "MathArena/project_euler, answers filled in": (
        {"problem_idx": 1, "problem": "Find $n$.", "answer": 233168, "source": "euler1"},
        "Find $n$.",
        "233168",
        "project-euler",
    ),
    "Maxwell-Jia/AIME_2024": (
        {"ID": "2024-I-1", "Problem": "Find $n$.", "Solution": "…", "Answer": 204},
        "Find $n$.",
        "204",
        "set",
    ),
    "nvidia/OpenMathReasoning": (
        {"expected_answer": "12", "problem_type": "has_answer_extracted", "problem": "Find $n$.",
         "problem_source": "aops_c6_high_school_olympiads", "generation_model": "DeepSeek-R1",
         "pass_rate_72b_tir": "0.9", "generated_solution": "<think>…", "inference_mode": "cot",
         "used_in_kaggle": True},
        "Find $n$.",
        "12",
        "aops_c6_high_school_olympiads",
    ),
    "BytedTsinghua-SIA/DAPO-Math-17k": (
        {"data_source": "math_dapo", "prompt": [{"content": DAPO_PROMPT, "role": "user"}],
         "ability": "MATH", "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
         "extra_info": {"index": "9a9b6eb4"}},
        "What is $1+1$?\n\nHow about now?",
        "2",
        "math_dapo",
    ),
    "open-r1/DAPO-Math-17k-Processed": (
        {"prompt": "What is $1+1$?", "solution": "2", "data_source": "math_dapo",
         "source_prompt": [{"content": DAPO_PROMPT, "role": "user"}], "ability": "MATH",
         "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
         "extra_info": {"index": "9a9b6eb4"}},
        "What is $1+1$?",
        "2",
        "math_dapo",
    ),
    "the report's released code": (
        {"data_source": "rstar_HuggingFaceH4/aime_2024", "agent_name": "rstar2_agent",
         "prompt": [{"role": "user", "content": "Find $n$."}], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": "204"},
         "extra_info": {"split": "test", "index": 0, "answer": "204", "question": "Find $n$."}},
        "Find $n$.",
        "204",
        "rstar_HuggingFaceH4/aime_2024",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json"])
def test_a_published_layout_needs_no_mapping(tmp_path: Path, name: str, kind: str) -> None:
    row, question, answer, label = PUBLISHED[name]
    path = tmp_path / f"set.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps([row] if kind == "json" else row))
    (problem,) = read_source(path).problems
    assert (problem.question, problem.answer, problem.source) == (question, answer, f"user/{label}")


def test_a_proof_of_openmathreasoning_is_quarantined(tmp_path: Path) -> None:
    rows = [
        {"problem": "Prove it.", "expected_answer": "n/a", "problem_source": "aops"},
        {"problem": "Find it.", "expected_answer": "7", "problem_source": "aops"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    read = read_source(tmp_path / "a.parquet")
    assert [p.answer for p in read.problems] == ["7"]
    assert "placeholder" in read.quarantined[0].reason


def test_project_euler_as_published_has_no_answers_and_says_so(tmp_path: Path) -> None:
    row = {"problem_idx": 1, "answer": None, "problem": "Find $n$.", "source": "euler943"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="row 1: 'answer' is missing or null"):
        read_source(tmp_path / "a.parquet")


def test_a_set_that_repeats_itself_is_read_once_and_counted(tmp_path: Path) -> None:
    row = PUBLISHED["BytedTsinghua-SIA/DAPO-Math-17k"][0]
    pq.write_table(pa.Table.from_pylist([row] * 100), tmp_path / "dapo.parquet")
    read = read_source(tmp_path / "dapo.parquet")
    assert (len(read.problems), read.num_duplicates) == (1, 99)


def test_the_shards_of_one_split_are_one_source(tmp_path: Path) -> None:
    for number, answer in enumerate("12"):
        table = pa.table({"question": [f"{number}?"], "answer": [answer]})
        pq.write_table(table, tmp_path / f"train-0000{number}-of-00002.parquet")
    rows = list(open_rows(tmp_path).read(["answer"]))
    assert [(row.number, row.value) for row in rows] == [(1, {"answer": "1"}), (2, {"answer": "2"})]


def test_shards_of_two_splits_are_refused(tmp_path: Path) -> None:
    for name in ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"):
        pq.write_table(pa.table({"question": ["1?"], "answer": ["1"]}), tmp_path / name)
    with pytest.raises(SourceError, match="nor the shards of one split"):
        read_source(tmp_path)


def test_columns_of_mixed_types_are_read_row_by_row(tmp_path: Path) -> None:
    rows = [
        {"question": "1?", "answer": 1},
        {"question": "2?", "answer": "2"},
        {"question": "3?", "answer": ["3"]},
        {"question": 4, "answer": "4"},
    ]
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SourceError) as raised:
        read_source(path)
    assert "2 malformed rows" in str(raised.value)
    assert "row 3: 'answer' is ['3']: expected text or a finite number" in str(raised.value)
    assert "row 4: 'question' is 4: expected text that is not empty" in str(raised.value)


def test_a_parquet_file_damaged_in_the_middle_is_explained(tmp_path: Path) -> None:
    table = pa.table({"question": [f"{n}?" for n in range(5000)], "answer": ["1"] * 5000})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[10:2000] = bytes(1990)
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(SourceError, match="not a readable Parquet file"):
        read_source(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["hub:dapo", "hub:a/b", "hub:a/b/c/d:train", "hub:"])
def test_a_hub_source_is_an_owner_a_name_and_a_split(name: str) -> None:
    with pytest.raises(SourceError, match="names no set of the hub"):
        read_source(name)
