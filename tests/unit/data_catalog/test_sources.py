"""The user's problems: what is kept, what is counted, what is refused and how it is said."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_catalog.sources import SourceError, read_source, why_not_checkable


def write_jsonl(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_of_a_jsonl_file_become_problems(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "words.jsonl",
        {"question": "1 + 1?", "answer": "2", "source": "sums", "id": 7},
        {"question": "1 + 2?", "answer": 3},
    )
    one, two = read_source(path).problems
    assert (one.question, one.answer, one.source) == ("1 + 1?", "2", "user/sums")
    assert (two.answer, two.source) == ("3", "user/words")
    assert len(one.problem_id) == 16


def test_columns_can_be_named_also_inside_others(tmp_path: Path) -> None:
    row = {"prompt": "1 + 1?", "reward_model": {"ground_truth": "2"}}
    path = write_jsonl(tmp_path / "a.jsonl", row)
    read = read_source(path, question_column="prompt", answer_column="reward_model.ground_truth")
    assert read.problems[0].answer == "2"


def test_parquet_gives_the_same_problems_as_jsonl(tmp_path: Path) -> None:
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "1 + 2?", "answer": "3"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    jsonl = write_jsonl(tmp_path / "a.jsonl", *rows)
    assert read_source(tmp_path / "a.parquet") == read_source(jsonl)


def test_a_saved_dataset_can_be_read(tmp_path: Path) -> None:
    rows = [{"question": "1 + 1?", "answer": 2, "other": 0}]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    assert read_source(tmp_path / "saved").problems[0].answer == "2"


def test_a_dataset_of_several_splits_asks_for_one(tmp_path: Path) -> None:
    split = datasets.Dataset.from_list([{"question": "1?", "answer": "1"}])
    data = datasets.DatasetDict({"train": split, "test": split})
    data.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(SourceError, match="splits test, train"):
        read_source(tmp_path / "saved")
    assert read_source(tmp_path / "saved" / "train").problems


def test_malformed_rows_are_listed_by_line_with_what_was_wrong(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "a.jsonl",
        {"question": "1?", "answer": "1"},
        "{not json",
        {"question": " ", "answer": "1"},
        {"question": "2?"},
        {"question": "3?", "answer": True},
        {"question": "4?", "answer": float("nan")},
        '"text"',
        '{"question": "\\ud800", "answer": "1"}',
    )
    with pytest.raises(SourceError) as caught:
        read_source(path)
    message = str(caught.value)
    assert "7 malformed rows, nothing was started" in message
    assert "row 2: not JSON" in message
    assert "row 3: 'question' is ' ': expected text that is not empty" in message
    assert "row 4: 'answer' is missing or null (columns seen: question)" in message
    assert "row 5: 'answer' is True: expected text or a finite number" in message
    assert "row 6: 'answer' is nan" in message
    assert "row 7: 'text': expected a JSON object" in message
    assert "row 8: holds a lone surrogate" in message


def test_only_twenty_malformed_rows_are_listed(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", *["x"] * 30)
    with pytest.raises(SourceError, match="and 10 more") as caught:
        read_source(path)
    assert "row 20:" in str(caught.value)
    assert "row 21:" not in str(caught.value)


def test_a_line_that_is_not_utf8_is_malformed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"question": "\xff", "answer": "1"}\n')
    with pytest.raises(SourceError, match="row 1: not UTF-8 at byte 14"):
        read_source(tmp_path / "a.jsonl")


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85", "\x1c"])
def test_a_line_end_of_unicode_inside_a_string_splits_no_row(tmp_path: Path, inside: str) -> None:
    rows = [{"question": f"1{inside}?", "answer": "1"}, {"question": "2?", "answer": "2"}]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path = write_jsonl(tmp_path / "a.jsonl", *lines)
    assert [p.question for p in read_source(path).problems] == [f"1{inside}?", "2?"]


def test_endless_numbers_and_deep_nesting_are_malformed(tmp_path: Path) -> None:
    long = '{"question": "1?", "answer": ' + "9" * 5000 + "}"
    deep = '{"question": ' * 100_000
    path = write_jsonl(tmp_path / "a.jsonl", long, deep)
    with pytest.raises(SourceError, match="2 malformed rows"):
        read_source(path)


def test_empty_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"question": "1?", "answer": "1"}\n\n')
    assert len(read_source(tmp_path / "a.jsonl").problems) == 1


def test_a_missing_column_of_a_parquet_file_names_those_seen(tmp_path: Path) -> None:
    pq.write_table(pa.table({"problem": ["1?"], "solution": ["1"]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"no column 'question'; seen: problem, solution"):
        read_source(tmp_path / "a.parquet")


def test_a_truncated_parquet_file_is_explained(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["1?"], "answer": ["1"]}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(data[:-10])
    with pytest.raises(SourceError, match="not a readable Parquet file"):
        read_source(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "words"),
    [("absent.jsonl", "no such file"), ("a.csv", r"unknown kind of file '\.csv'")],
)
def test_a_file_that_is_no_source_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "a.csv").write_text("question,answer\n")
    with pytest.raises(SourceError, match=words):
        read_source(tmp_path / name)


def test_a_source_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(SourceError, match="no rows"):
        read_source(tmp_path / "a.jsonl")


def test_a_repeated_problem_is_kept_once_and_counted(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "a.jsonl",
        {"question": "How many?", "answer": "1000"},
        {"question": "how  many?", "answer": "1,000"},
    )
    read = read_source(path)
    assert [p.question for p in read.problems] == ["How many?"]
    assert (read.num_duplicates, read.quarantined) == (1, ())


def test_conflicting_answers_are_quarantined_with_all_their_rows(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "a.jsonl",
        {"question": "How many?", "answer": "1"},
        {"question": "Other?", "answer": "5"},
        {"question": "How many?", "answer": "2"},
    )
    read = read_source(path)
    assert [p.question for p in read.problems] == ["Other?"]
    assert [row.row for row in read.quarantined] == [1, 3]
    assert "conflicting answers" in read.quarantined[0].reason
    assert len(read.quarantined_rows()) == 1
    assert read.num_duplicates == 0


def test_an_answer_that_is_not_checkable_is_quarantined(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "a.jsonl", {"question": "Why?", "answer": "Because the sum is always even."}
    )
    read = read_source(path)
    assert read.problems == ()
    assert "prose" in read.quarantined[0].reason


@pytest.mark.parametrize(
    "answer",
    ["42", "-3.5", r"\frac{1}{2}", "x^2+1", "(3, 4)", "12 dollars", "Tuesday", r"2\sqrt{3}", "1/2",
     r"\text{no solution}", "sin(x) + cos(x) + tan(x)", "∞", "9" * 150],
)  # fmt: skip
def test_answers_that_can_be_checked(answer: str) -> None:
    assert why_not_checkable(answer) is None


@pytest.mark.parametrize(
    "answer",
    ["yes, because both are odd", "N/A", "?", "---", "9" * 201, "\\text{the first one is larger}",
     "因为两个奇数的和总是偶数所以这个命题对于所有的正整数都成立并且可以用数学归纳法证明它的正确性质"],
)  # fmt: skip
def test_answers_that_cannot_be_checked(answer: str) -> None:
    assert "answer not checkable" in (why_not_checkable(answer) or "")
