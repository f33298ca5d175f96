"""Row P10 of the cases: several writers and readers of one catalogue, each its own process."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from catalog_builders import make_run_manifest, make_step_manifest, publish_all
from rollout_builders import make_group

from data_catalog.queries import open_catalog, query
from data_catalog.records import Manifest, manifest_json

NUM_STEPS = 8

WRITER = """
import sys
from pathlib import Path
from data_catalog.catalog import publish
from data_catalog.records import manifest_from_json
folder, run = Path(sys.argv[1]), sys.argv[2]
manifests = [manifest_from_json(p.read_bytes()) for p in sorted((folder / run).glob("*.json"))]
for number in range(1, len(manifests) + 1):
    known = manifests[:number]
    publish(
        folder / "catalog.duckdb", known, lambda r: folder / r.uri, force=True, everything=lambda: known
    )
    print(number, flush=True)
"""

READER = """
import sys
from pathlib import Path
from data_catalog.queries import open_catalog
with open_catalog(Path(sys.argv[1]) / "catalog.duckdb") as connection:
    for line in sys.stdin:
        print(connection.execute("select count(*) from attempts").fetchone()[0], flush=True)
"""


def commit_run(folder: Path, run: str) -> list[Manifest]:
    """A run whose manifests lie as files in its folder, as the ledger leaves them."""
    manifests = [make_run_manifest(run)]
    for step in range(1, NUM_STEPS + 1):
        groups = [make_group([1.0, 0.0], problem_id=f"{run}{step}")]
        manifests.append(
            make_step_manifest(
                folder, "rl-1", step, groups, dropped={}, run=run, minute=step, has_checkpoint=True
            )
        )
    for number, manifest in enumerate(manifests):
        (folder / run / f"{number:02d}.json").write_bytes(manifest_json(manifest))
    return manifests


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def counts(path: Path) -> dict[str, int]:
    sql = "select run, count(*) from attempts group by run"
    return {str(run): int(str(number)) for run, number in query(path, sql).rows}


@pytest.mark.slow
def test_p10_two_writers_and_readers_meet_no_lock_error(tmp_path: Path) -> None:
    path = tmp_path / "catalog.duckdb"
    for run in ("one", "two"):
        commit_run(tmp_path, run)
    publish_all(path, [make_run_manifest("old")])
    reader = start(READER, str(tmp_path))
    assert reader.stdin is not None
    assert reader.stdout is not None
    writers = [start(WRITER, str(tmp_path), run) for run in ("one", "two")]
    seen: list[dict[str, int]] = []
    while any(writer.poll() is None for writer in writers):
        seen.append(counts(path))  # each time a new reader of the newest version
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "0\n"  # the one that stays keeps what it opened
    for writer in writers:
        assert len(finish(writer).splitlines()) == NUM_STEPS + 1
    finish(reader)
    assert counts(path) == {"one": 2 * NUM_STEPS, "two": 2 * NUM_STEPS}
    for before, after in pairwise(seen):  # it never goes back in time
        assert all(after.get(run, 0) >= number for run, number in before.items())


@pytest.mark.slow
def test_p10_a_writer_killed_at_any_moment_leaves_a_readable_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "catalog.duckdb"
    manifests = commit_run(tmp_path, "one")
    generator = random.Random(4)
    for _ in range(5):
        writer = start(WRITER, str(tmp_path), "one")
        assert writer.stdout is not None
        for _ in range(generator.randrange(1, 4)):
            writer.stdout.readline()
        time.sleep(generator.uniform(0.0, 0.15))
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        with open_catalog(path) as connection:
            steps = connection.execute("select step from steps order by step").fetchall()
            attempts = connection.execute("select count(*) from attempts").fetchone()
        assert [step for (step,) in steps] == list(range(1, len(steps) + 1))
        assert attempts == (2 * len(steps),)
        path.unlink()  # so that the next round has something to publish
    publish_all(path, manifests)
    assert counts(path) == {"one": 2 * NUM_STEPS}
