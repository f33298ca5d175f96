"""A million generated rows through the curation: planted faults found, clean rows lost, speed, memory.

The baseline is what one writes first: one pass in plain Python over the same file, a dictionary of
normalised questions with their answers, the evaluation sets' 8-grams as a set, `int` for the answers.
It finds repetitions, contradictions, contaminations and answers that are no integers, and no rewording.
Both run as processes of their own, one after the other, in the same minutes; peak memory is that of the
whole process tree, sampled. The target: nothing missed, nothing clean lost, and never more memory than
`MAX_MEMORY_MB`, whatever the number of rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
from curation_rows import CLEAN, write_rows

from data_catalog.curation.curate import PROBLEMS, VICTIMS, curate

MAX_MEMORY_MB = 1500
SAMPLED_EVERY = 0.05
Figures = dict[str, float]


def ours(folder: Path) -> None:
    curate([folder / "rows.jsonl"], folder / "ours", evaluation_sets=[folder / "evaluation.jsonl"])


def plain_python(folder: Path) -> None:
    """Kept rows to `plain.jsonl`, each with its number; of a contradiction both rows go."""
    grams = {g for row in _json(folder / "evaluation.jsonl") for g in _eight(row["question"])}
    answers: dict[str, str] = {}
    first: dict[str, dict] = {}
    conflicting = set()
    for number, row in enumerate(_json(folder / "rows.jsonl"), start=1):
        question = " ".join(str(row["question"]).lower().split())
        answer = str(row["answer"]).strip("$")
        if not question or row["num_correct"] < 2 or not _is_small_integer(answer):
            continue
        if question in answers:
            if answers[question] != answer:
                conflicting.add(question)
        elif not any(gram in grams for gram in _eight(question)):
            answers[question] = answer
            first[question] = row | {"number": number}
    with (folder / "plain.jsonl").open("w") as file:
        for question, row in first.items():
            if question not in conflicting:
                print(json.dumps(row), file=file)


def _json(path: Path) -> Iterator[dict]:
    with path.open() as file:
        yield from map(json.loads, file)


def _eight(question: str) -> Iterator[tuple[str, ...]]:
    words = question.lower().split()
    return (tuple(words[i : i + 8]) for i in range(len(words) - 7))


def _is_small_integer(answer: str) -> bool:
    return len(answer) <= 50 and answer.lstrip("-").isdigit()


def measure(run: Callable[[Path], None], folder: Path, num_rows: int) -> Figures:
    """Runs it in a process of its own and watches the memory of that process and its children."""
    process = multiprocessing.get_context("spawn").Process(target=run, args=(folder,))
    began, cpu_before = time.perf_counter(), _cpu_seconds()
    process.start()
    peak = [0.0]
    watcher = threading.Thread(target=_watch, args=(process, peak))
    watcher.start()
    process.join()
    watcher.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{run.__name__} ended with {process.exitcode}, expected 0")
    wall = time.perf_counter() - began
    return {
        "rows_per_second": round(num_rows / wall),
        "seconds": round(wall, 1),
        "cpu_seconds": round(_cpu_seconds() - cpu_before, 1),
        "peak_memory_mb": round(peak[0] / 2**20),
    }


def _cpu_seconds() -> float:
    """Of all processes that this one started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _watch(process: multiprocessing.process.BaseProcess, peak: list[float]) -> None:
    while process.is_alive() and process.pid is not None:
        peak[0] = max(peak[0], sum(map(_resident_bytes, _tree(process.pid))))
        time.sleep(SAMPLED_EVERY)


def _tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in children:
            found += _tree(int(child))
    return found


def _resident_bytes(pid: int) -> int:
    """Of this process alone: pages that it shares count for it in part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def check(folder: Path, rules: list[str]) -> dict[str, dict[str, int]]:
    """By planted rule: how many rows, how many fell to it, how many were missed or lost."""
    fell: dict[int, str] = {}
    for batch in pq.ParquetFile(folder / "ours" / VICTIMS).iter_batches(columns=["row", "rule"]):
        columns = (column.to_pylist() for column in batch.columns)
        fell |= dict(zip(*columns, strict=True))
    num_kept = pq.ParquetFile(folder / "ours" / PROBLEMS).metadata.num_rows
    assert num_kept + len(fell) == len(rules), "every row is kept or a victim"
    table: dict[str, Counter[str]] = {rule: Counter() for rule in sorted(set(rules))}
    for number, rule in enumerate(rules, start=1):
        counts = table[rule]
        counts["rows"] += 1
        counts["found" if _is_right(rule, fell.get(number, CLEAN)) else "wrong"] += 1
    return {rule: dict(counts) for rule, counts in table.items()}


def _is_right(planted: str, found: str) -> bool:
    """A rewording that was planted twice is found once as a rewording and once as a repetition."""
    return found == planted or (planted, found) == ("near_duplicate", "exact_duplicate")


def faults_of_plain_python(folder: Path, rules: list[str]) -> tuple[int, int]:
    """(planted rows that it kept, clean rows that it lost)"""
    kept = {row["number"] for row in _json(folder / "plain.jsonl")}
    wrong = [rule for number, rule in enumerate(rules, 1) if (rule == CLEAN) != (number in kept)]
    num_lost = wrong.count(CLEAN)
    return len(wrong) - num_lost, num_lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="30,000 rows: under 50 s")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    num_rows = 30_000 if arguments.quick else arguments.rows
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rules = write_rows(folder, num_rows, arguments.seed)
        runs = {"ours": measure(ours, folder, num_rows)}
        runs["plain Python"] = measure(plain_python, folder, num_rows)
        found = check(folder, rules)
        missed, lost = faults_of_plain_python(folder, rules)
    _print(found, runs)
    print(f"plain Python missed {missed:,} planted rows and lost {lost:,} clean ones\n")
    a, b = runs["ours"], runs["plain Python"]
    figures = {
        "rows": num_rows,
        "missed_or_lost": sum(counts.get("wrong", 0) for counts in found.values()),
        "ours": a,
        "plain_python": b,
        "speed_ratio": round(b["seconds"] / a["seconds"], 2),
        "cpu_ratio": round(b["cpu_seconds"] / a["cpu_seconds"], 2),
        "memory_ratio": round(b["peak_memory_mb"] / a["peak_memory_mb"], 2),
        "plain_python_missed": missed,
        "plain_python_lost": lost,
    }
    holds = figures["missed_or_lost"] == 0 and a["peak_memory_mb"] <= MAX_MEMORY_MB
    print(
        json.dumps(
            {
                "benchmark": "curation",
                "baseline": "one pass in plain Python: a dictionary of questions, a set of 8-grams",
                "figures": figures,
                "target": f"missed_or_lost == 0 and ours.peak_memory_mb <= {MAX_MEMORY_MB}",
                "holds": holds,
            }
        )
    )
    return 0 if holds else 1


def _print(found: dict[str, dict[str, int]], runs: dict[str, Figures]) -> None:
    print(f"{'planted':20} {'rows':>9} {'found':>9} {'missed':>7}   (clean: kept, lost)")
    for rule, counts in found.items():
        print(
            f"{rule:20} {counts['rows']:>9,} {counts.get('found', 0):>9,} {counts.get('wrong', 0):>7,}"
        )
    print(f"\n{'':14} {'rows/s':>9} {'seconds':>9} {'CPU s':>9} {'peak MB':>9}")
    for name, run in runs.items():
        print(
            f"{name:14} {run['rows_per_second']:>9,} {run['seconds']:>9,} "
            f"{run['cpu_seconds']:>9,} {run['peak_memory_mb']:>9,}"
        )


if __name__ == "__main__":
    sys.exit(main())
