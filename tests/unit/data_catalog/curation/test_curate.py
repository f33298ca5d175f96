"""The curation as a whole: each rule's victims, what is kept, what bad input leaves behind."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_catalog.curation.curate import (
    COUNTS,
    PROBLEMS,
    VICTIMS,
    Curation,
    CurationError,
    curate,
    read_curation,
)
from data_catalog.curation.groups import ComparisonError
from data_catalog.curation.rows import Columns
from data_catalog.curation.workers import WorkerError, in_order
from data_catalog.row_sources import SourceError
from data_catalog.sources import read_source
from rstar2.curation import RULES, CurationConfig

Row = Mapping[str, object]
APPLES = "Tom has 17 apples and buys 25 more at the market. How many apples are there altogether?"
PEARS = "Ann has 30 pears and sells 12 of them at the station. How many pears are left for her?"
FROGS = "Nine old frogs sit on three green lily pads and wait for rain. How many frogs are there?"


def write(path: Path, *rows: Row | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def problem(question: str, answer: object, **more: object) -> Row:
    return {"question": question, "answer": answer, **more}


def victims(folder: Path) -> list[dict]:
    rows: list[dict] = pq.read_table(folder / VICTIMS).to_pylist()
    return rows


def run(tmp_path: Path, *rows: Row | str, **options: object) -> tuple[Curation, list[tuple]]:
    """Curates the rows; returns the result and (row, rule, other row) of each victim."""
    source = write(tmp_path / "rows.jsonl", *rows)
    result = curate([source], tmp_path / "out", **options)  # type: ignore[arg-type]
    found = victims(tmp_path / "out")
    return result, [(row["row"], row["rule"], row["other_row"]) for row in found]


def kept(tmp_path: Path) -> Sequence[str]:
    return [p.question for p in read_source(tmp_path / "out" / PROBLEMS).problems]


def test_a_repetition_falls_and_names_the_row_that_stands_for_it(tmp_path: Path) -> None:
    result, found = run(
        tmp_path, problem(PEARS, 18), problem(APPLES, 42), problem(f" {APPLES} ", "42.0")
    )
    assert found == [(3, "exact_duplicate", 2)]
    assert (result.num_rows, result.num_kept, result.victims["exact_duplicate"]) == (3, 2, 1)
    assert victims(tmp_path / "out")[0]["is_kept"] is True


def test_the_row_whose_answer_can_be_used_stands_for_its_repetitions(tmp_path: Path) -> None:
    _, found = run(tmp_path, problem(APPLES, "42 apples"), problem(APPLES, "42"))
    assert found == [(1, "exact_duplicate", 2)]


def test_rewordings_fall_to_the_first_of_them(tmp_path: Path) -> None:
    respelt = APPLES.replace("apples and", "apples, and").replace("?", "!")
    _, found = run(
        tmp_path,
        problem(APPLES, 42),
        problem(respelt, 42),
        problem(f"Here is one for you: {APPLES}", 42),
        problem(APPLES.replace("altogether", "altogther"), 42),
    )
    assert found == [(n, "near_duplicate", 1) for n in (2, 3, 4)]


def test_near_duplicates_can_be_left_in(tmp_path: Path) -> None:
    config = CurationConfig(near_duplicates=False)
    _, found = run(tmp_path, problem(APPLES, 42), problem(APPLES + "!", 42), config=config)
    assert found == []


def test_problems_that_differ_in_numbers_or_names_are_all_kept(tmp_path: Path) -> None:
    rows = [problem(APPLES.replace("17", str(n)), n + 25) for n in range(10, 30)]
    rows += [problem(APPLES.replace("Tom", name), 42) for name in ("Kira", "Finn", "Uma")]
    result, found = run(tmp_path, *rows)
    assert found == []
    assert result.num_kept == len(rows)


def test_all_rows_of_a_contradiction_fall(tmp_path: Path) -> None:
    _, found = run(
        tmp_path, problem(APPLES, 42), problem(PEARS, 18), problem(APPLES.upper() + "!", 43)
    )
    assert found == [(1, "conflicting_answers", 3), (3, "conflicting_answers", 1)]


def test_answers_fall_to_their_rules(tmp_path: Path) -> None:
    questions = [APPLES.replace("17", str(n)) for n in range(4)]
    answers = ("1/2", "9" * 60, "nobody knows the answer", 7)
    _, found = run(tmp_path, *map(problem, questions, answers))
    assert [rule for _, rule, _ in found] == ["not_an_integer", "too_large", "not_checkable"]


def test_kept_answers_are_plain_digits_and_keep_source_and_pass_rate(tmp_path: Path) -> None:
    row = problem(APPLES, r"\boxed{4{,}200}", source="mine", num_correct=4, num_attempts=16)
    run(tmp_path, row)
    ((answer, source, rate),) = [
        (row["answer"], row["source"], row["pass_rate"])
        for row in pq.read_table(tmp_path / "out" / PROBLEMS).to_pylist()
    ]
    assert (answer, source, rate) == ("4200", "mine", 0.25)
    assert read_source(tmp_path / "out" / PROBLEMS).problems[0].source == "user/mine"


def test_the_reference_policy_must_have_been_right_often_enough(tmp_path: Path) -> None:
    counts = [(1, 16), (2, 16), (1, 8), (0, 0), (None, None)]
    rows = [
        problem(APPLES.replace("17", str(n)), n, num_correct=c, num_attempts=a)
        for n, (c, a) in enumerate(counts)
    ]
    result, found = run(tmp_path, *rows)
    assert "reference_policy" not in result.off
    assert found == [(n, "reference_policy", None) for n in (1, 4, 5)]


def test_the_counts_of_a_policy_may_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    tries = write(
        tmp_path / "tries.jsonl",
        {"question": APPLES, "num_correct": 1, "num_attempts": 8},
        {"question": APPLES, "num_correct": 1, "num_attempts": 8},
        {"question": PEARS, "num_correct": 0, "num_attempts": 16},
    )
    rows = (problem(APPLES, 42), problem(PEARS, 18), problem(FROGS, 9))
    _, found = run(tmp_path, *rows, reference=tries)
    assert found == [(2, "reference_policy", None), (3, "reference_policy", None)]


def test_without_counts_the_reference_policy_is_off_and_the_result_says_so(tmp_path: Path) -> None:
    result, found = run(tmp_path, problem(APPLES, 42))
    assert "num_correct" in result.off["reference_policy"]
    assert found == []


def test_what_the_evaluation_sets_hold_is_left_out(tmp_path: Path) -> None:
    evaluation = write(tmp_path / "evaluation.jsonl", problem(FROGS, "any words at all"))
    row = problem(f"{PEARS} Nine old frogs sit on three green lily pads.", 18)
    _, found = run(tmp_path, problem(APPLES, 42), row, evaluation_sets=[evaluation])
    assert found == [(2, "contaminated", None)]
    assert "nine old frogs" in victims(tmp_path / "out")[0]["reason"]


def test_rows_of_mixed_types_are_read_or_listed_never_lost(tmp_path: Path) -> None:
    result, found = run(
        tmp_path,
        problem(APPLES, 42.0),
        problem(PEARS, None),
        problem("", 3),
        problem(FROGS, [9]),
        {"answer": 3},
        problem(FROGS, "9", num_correct=3, num_attempts=2),
        problem(FROGS, "9", num_correct="x", num_attempts=2),
        problem("\ud800", 3),
    )
    assert [rule for _, rule, _ in found] == ["malformed"] * 7
    assert (result.num_kept, result.num_rows) == (1, 8)


def test_several_sources_are_one_set(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", problem(APPLES, 42))
    pq.write_table(pa.table({"question": [APPLES], "answer": [42]}), tmp_path / "b.parquet")
    result = curate([one, tmp_path / "b.parquet"], tmp_path / "out")
    (fallen,) = victims(tmp_path / "out")
    assert (fallen["file"], fallen["other_file"]) == (str(tmp_path / "b.parquet"), str(one))
    assert result.num_kept == 1


def test_columns_can_be_named(tmp_path: Path) -> None:
    row = {"task": {"text": APPLES}, "gold": "42", "right": 9, "of": 16}
    columns = Columns(question="task.text", answer="gold", num_correct="right", num_attempts="of")
    result, _ = run(tmp_path, row, columns=columns)
    assert "reference_policy" not in result.off
    assert kept(tmp_path) == [APPLES]


def test_the_counts_are_written_and_name_every_rule(tmp_path: Path) -> None:
    result, _ = run(tmp_path, problem(APPLES, 42), problem(APPLES, 42))
    written = json.loads((tmp_path / "out" / COUNTS).read_text())
    assert written["victims"] == dict(result.victims)
    assert list(written["victims"]) == list(RULES)
    assert sorted(os.listdir(tmp_path / "out")) == sorted((PROBLEMS, VICTIMS, COUNTS))


def refused(tmp_path: Path, source: Path, match: str) -> None:
    with pytest.raises(SourceError, match=match):
        curate([source], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_a_missing_column_is_named_with_those_seen(tmp_path: Path) -> None:
    refused(tmp_path, write(tmp_path / "a.jsonl", {"q": "1?", "a": 1}), "'question'; seen: a, q")
    pq.write_table(pa.table({"q": ["1?"], "a": [1]}), tmp_path / "b.parquet")
    refused(tmp_path, tmp_path / "b.parquet", "'question'; seen: q, a")


def test_a_half_written_row_stops_all_and_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", problem(APPLES, 42), '{"question": "Tom has 17')
    refused(tmp_path, source, r"1 rows cannot be read(.|\n)*row 2: not JSON")


def test_a_truncated_parquet_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": [APPLES], "answer": [42]}), tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    refused(tmp_path, tmp_path / "a.parquet", "its end may be missing")


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, write(tmp_path / "a.jsonl"), "has no rows")
    refused(tmp_path, tmp_path / "none.jsonl", "no such file")


def test_an_empty_evaluation_set_or_reference_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", problem(APPLES, 42))
    empty = write(tmp_path / "empty.jsonl")
    pq.write_table(pa.table({"question": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    for other in (empty, tmp_path / "empty.parquet"):
        with pytest.raises(SourceError, match="has no rows: expected at least one evaluation"):
            curate([source], tmp_path / "out", evaluation_sets=[other])
        with pytest.raises(SourceError, match="has no rows: expected the counts"):
            curate([source], tmp_path / "out", reference=other)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("column", ["zzz", "policy.zzz"])
def test_a_named_column_of_counts_that_no_row_has_is_refused(tmp_path: Path, column: str) -> None:
    row = problem(APPLES, 42, policy={"right": 3, "of": 8})
    named = Columns(num_correct="policy.right", num_attempts=column)
    wrong = Columns(num_correct=column, num_attempts=column)
    source = write(tmp_path / "a.jsonl", row)
    pq.write_table(pa.Table.from_pylist([dict(row)]), tmp_path / "b.parquet")
    for path in (source, tmp_path / "b.parquet"):
        for columns in (named, wrong):
            with pytest.raises(SourceError, match=f"no row has a column '{column}'; seen: answer"):
                curate([path], tmp_path / "out", columns=columns)
    assert not (tmp_path / "out").exists()


def test_a_named_column_of_counts_may_be_in_some_rows_only(tmp_path: Path) -> None:
    columns = Columns(num_correct="right", num_attempts="of")
    rows = (problem(APPLES, 42), problem(PEARS, 18, right=3, of=8))
    result, _ = run(tmp_path, *rows, columns=columns)
    assert "reference_policy" not in result.off


def test_what_is_not_there_is_said_before_any_row_is_read(tmp_path: Path) -> None:
    torn = write(tmp_path / "torn.jsonl", problem(APPLES, 42), '{"question": "Tom has 17')
    for sources, reference in (([torn, tmp_path / "none.jsonl"], None), ([torn], "none.jsonl")):
        with pytest.raises(SourceError, match=r"no such file: .*none\.jsonl"):
            curate(sources, tmp_path / "out", reference=reference)


def test_counts_that_are_none_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", problem(APPLES, 42))
    tries = write(tmp_path / "tries.jsonl", {"problem_id": "x", "num_correct": 3})
    with pytest.raises(SourceError, match="row 1: right 3 of None"):
        curate([source], tmp_path / "out", reference=tries)


def test_the_same_request_finds_its_result_and_another_never_overwrites_it(tmp_path: Path) -> None:
    result, _ = run(tmp_path, problem(APPLES, 42))
    source, out = tmp_path / "rows.jsonl", tmp_path / "out"
    before = (out / VICTIMS).stat().st_mtime_ns
    assert curate([source], out) == read_curation(out)
    assert read_curation(out).num_kept == result.num_kept
    assert (out / VICTIMS).stat().st_mtime_ns == before
    with pytest.raises(CurationError, match="of other files or settings; expected a new folder"):
        curate([source], out, config=CurationConfig(min_correct=3))
    write(source, problem(PEARS, 18))
    with pytest.raises(CurationError, match="expected a new folder"):
        curate([source], out)


def test_too_little_memory_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", problem(APPLES, 42), problem(PEARS, 18))
    with pytest.raises(ComparisonError, match=r"could not be compared(.|\n)*start again"):
        curate([source], tmp_path / "out", memory="1KB")
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl"]


def test_workers_give_results_in_order_and_end() -> None:
    assert list(in_order(abs, range(-50, 0), num_workers=2)) == list(range(50, 0, -1))


def test_a_worker_that_dies_is_an_error_whatever_is_on_its_way() -> None:
    with pytest.raises(WorkerError, match="Nothing was written"):
        list(in_order(os._exit, [1] * 20, num_workers=2))
    with pytest.raises(WorkerError, match="Nothing was written"):
        list(in_order(os.abort, ["too much for a pipe" * 100_000] * 20, num_workers=2))  # type: ignore[arg-type]
