"""`kill -9` at any moment, the same command again: the same weights, nothing twice, nothing lost."""

from __future__ import annotations

import bisect
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from data_catalog.queries import query
from data_catalog.records import manifest_from_json
from infra.object_store import open_store
from infra.prefect_api import post_json
from infra.sandbox.resident import daemon_status
from infra.services import ensure_server
from infra.settings import load_settings
from rstar2.rollout_files import read_rollouts
from tasks.ledger import FILTER, Ledger, catalog_path

NUM_KILLS = 10

pytestmark = pytest.mark.slow


SELDOM = [f"stages.{stage}.checkpoint_every_steps=2" for stage in ("rl-1", "rl-2", "rl-3")]
"""RL-1's three steps then end without a checkpoint of the last one."""


def command(storage: Path, *overrides: str) -> list[str]:
    options = [w for o in (f"storage={storage}", *overrides) for w in ("--set", o)]
    return [sys.executable, "-m", "flows.commands", "run", "smoke", "--run", "drill", *options]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    storage = tmp_path_factory.mktemp("undisturbed")
    subprocess.run(command(storage), check=True, timeout=300)
    return Ledger(open_store(str(storage)), "drill")


@pytest.mark.parametrize(("name", "version"), [("sft", 4), ("rl-1", 3), ("rl-2", 2), ("rl-3", 2)])
def test_a_stage_is_scored_with_the_weights_it_ended_with(
    undisturbed: Ledger, name: str, version: int
) -> None:
    manifest = undisturbed.find("evaluation", stage="evaluation", name=name)
    assert manifest is not None
    groups = read_rollouts(undisturbed.store.local_path(manifest.parts["rollouts"]))
    spans = [
        s for g in groups for r in g.rollouts for t in r.turns for s in t.completion.policy_versions
    ]
    assert {span.policy_version for span in spans} == {version}


@pytest.mark.parametrize("overrides", [[], SELDOM], ids=["every step", "every second step"])
def test_a_run_killed_ten_times_ends_in_the_weights_of_an_undisturbed_one(
    tmp_path: Path, undisturbed: Ledger, overrides: list[str]
) -> None:
    again = command(tmp_path, *overrides)
    seconds = seconds_between_manifests(undisturbed)
    num_kills = run_and_kill(again, tmp_path, seconds, seed=random.randrange(10**6))
    subprocess.run(again, check=True, timeout=300)
    killed = Ledger(open_store(str(tmp_path)), "drill")

    assert num_kills == NUM_KILLS
    assert final_weights(killed) == final_weights(undisturbed)
    assert sampled(killed) == sampled(undisturbed)
    assert rollouts_written_after_their_commit(killed) == []
    assert attempts_in_catalogue(killed) == attempts_in_catalogue(undisturbed)


def test_a_run_whose_sandbox_is_lost_twice_ends_in_the_weights_of_an_undisturbed_one(
    tmp_path: Path, undisturbed: Ledger
) -> None:
    process = subprocess.Popen(command(tmp_path, "sandbox.remembers_pure_calls=false"))
    for stage, is_killed in (("rl-1", True), ("rl-2", False)):
        while not (tmp_path / "drill" / stage / "manifest-step-00001.json").exists():
            assert process.poll() is None
            time.sleep(0.05)
        lose_daemon(is_killed=is_killed)
    assert process.wait(timeout=300) == 0
    lost = Ledger(open_store(str(tmp_path)), "drill")
    assert final_weights(lost) == final_weights(undisturbed)
    assert sampled(lost) == sampled(undisturbed)
    for stage in ("rl-1", "rl-2"):
        result = lost.stage_result(stage)
        assert result is not None
        assert (result.losses.num_sandbox_restarts, result.losses.num_failed_rollouts) == (1, 0)
        assert [health.is_ready for health in lost.healths(stage)] == [True, True, True]


def lose_daemon(*, is_killed: bool) -> None:
    """Stops the sandbox daemon of the run for good, or kills it when calls have piled up in it."""
    health = daemon_status(load_settings().state_folder)
    assert health is not None
    pid = int(str(health["pid"]))
    os.kill(pid, signal.SIGSTOP)
    if is_killed:
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)


def test_a_run_without_a_sandbox_fails_and_says_why_in_prefect_too(tmp_path: Path) -> None:
    address = f"sandbox.address=unix://{tmp_path}/sandbox"
    done = subprocess.run(
        command(tmp_path, address), capture_output=True, text=True, check=False, timeout=120
    )
    said = f"sandbox: no sandbox daemon runs at unix://{tmp_path}/sandbox; start it there"
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"rstar2: {said}")
    url = f"{ensure_server(load_settings())}/flow_runs/filter"
    found = post_json(url, {"sort": "START_TIME_DESC", "limit": 20})
    assert isinstance(found, list)
    messages = [str(run["state"]["message"]) for run in found if run["state_type"] == "FAILED"]
    assert sum(said in message for message in messages) == 2  # the stage and the recipe


def test_a_damaged_checkpoint_and_an_evaluation_within_a_step_cost_no_rollout(
    tmp_path: Path, undisturbed: Ledger
) -> None:
    """Killed between an evaluation and the commit of its step, then the newest checkpoint is lost."""
    again = command(tmp_path, "stages.rl-1.evaluate_every_steps=2")
    process = subprocess.Popen(again)
    manifest = tmp_path / "drill" / "rl-1" / "manifest-evaluation-00002.json"
    wait_for(manifest.exists, process)
    process.kill()
    process.wait(timeout=60)
    shutil.rmtree(tmp_path / "drill" / "rl-1" / "step-00001" / "checkpoint" / "trainer")
    evaluated = tmp_path / "drill" / "evaluation" / "rl-1-step-2" / "rollouts.parquet"
    written = evaluated.stat().st_mtime_ns
    subprocess.run(again, check=True, timeout=300)

    ledger = Ledger(open_store(str(tmp_path)), "drill")
    assert final_weights(ledger) == final_weights(undisturbed)
    assert evaluated.stat().st_mtime_ns == written
    scores = [m.evaluation_score for m in ledger.series("rl-1")]
    assert [score is None for score in scores] == [True, False, True]
    rows = query(
        catalog_path(ledger.store),
        "select step, evaluation, num_problems, mean from evaluations "
        "where stage = 'rl-1' and name = 'arithmetic'",
    ).rows
    assert rows == ((2, "rl-1-step-2", 16, scores[1]),)


def test_a_filter_killed_in_the_middle_samples_no_committed_chunk_again(
    tmp_path: Path, undisturbed: Ledger
) -> None:
    again = command(tmp_path)
    process = subprocess.Popen(again)
    folder = tmp_path / "drill" / "difficulty-filter"
    wait_for((folder / "manifest-chunk-00001.json").exists, process)
    process.kill()
    process.wait(timeout=60)
    assert not (folder / "manifest-filter.json").exists()
    committed = sorted(path.stem for path in folder.glob("manifest-chunk-*.json"))
    parts = [folder / stem.removeprefix("manifest-") / "rollouts.parquet" for stem in committed]
    written = [part.stat().st_mtime_ns for part in parts]
    subprocess.run(again, check=True, timeout=300)

    ledger = Ledger(open_store(str(tmp_path)), "drill")
    assert [part.stat().st_mtime_ns for part in parts] == written
    assert len(ledger.steps(FILTER, "chunk")) == 3
    assert filtered(ledger) == filtered(undisturbed)
    assert final_weights(ledger) == final_weights(undisturbed)
    assert sampled(ledger) == sampled(undisturbed)
    assert attempts_in_catalogue(ledger) == attempts_in_catalogue(undisturbed)


def filtered(ledger: Ledger) -> object:
    """Every verdict, and the problems that are kept."""
    manifest = ledger.find("filter", stage=FILTER)
    assert manifest is not None
    return manifest.values["verdicts"], manifest.parts["problems"].sha256


EVALUATED = """
import sys
from flows.commands.run import _attach_to_server
_attach_to_server()
from flows.by_hand import evaluation_by_hand
evaluation_by_hand("drill", "last", "smoke", (f"storage={sys.argv[1]}",))
"""


def test_a_finished_run_brings_a_deleted_catalogue_back_and_evaluates_nothing_again(
    tmp_path: Path, undisturbed: Ledger
) -> None:
    """Without its checkpoint nothing could be sampled."""
    storage = tmp_path / "copy"
    shutil.copytree(undisturbed.store.uri, storage)
    shutil.rmtree(storage / "drill" / "rl-3" / "step-00002" / "checkpoint")
    catalog_path(open_store(str(storage))).unlink()
    subprocess.run(command(storage), check=True, timeout=120)
    subprocess.run([sys.executable, "-c", EVALUATED, str(storage)], check=True, timeout=120)
    copy = Ledger(open_store(str(storage)), "drill")
    assert attempts_in_catalogue(copy) == attempts_in_catalogue(undisturbed)


def seconds_between_manifests(ledger: Ledger) -> list[float]:
    """How long the run worked after each of its manifests, until the next one."""
    written = sorted((Path(ledger.store.uri) / key).stat().st_mtime for key in manifests(ledger))
    return [after - before for before, after in itertools.pairwise(written)]


def kill_moments(seconds: list[float], *, seed: int) -> list[tuple[int, float]]:
    """(number of manifests, share of the time to the next one): one in each tenth of the run."""
    generator = random.Random(seed)
    ends = list(itertools.accumulate(seconds))
    moments = []
    for kill in range(NUM_KILLS):
        moment = (kill + generator.random()) / NUM_KILLS * ends[-1]
        index = bisect.bisect_left(ends, moment)
        moments.append((index + 1, 1.0 - (ends[index] - moment) / seconds[index]))
    print(f"kill drill, seed {seed}: {[(n, round(share, 2)) for n, share in moments]}")
    return moments


def run_and_kill(again: list[str], storage: Path, seconds: list[float], *, seed: int) -> int:
    """Starts the run again and again and kills it at each moment; the number of kills.

    Each start writes a manifest of its own before it is killed, as long as there are some left: a
    kill lies in the work, not in the start of the program.
    """
    num_kills = 0
    for number, share in kill_moments(seconds, seed=seed):
        number = min(max(number, num_manifests(storage) + 1), len(seconds))
        process = subprocess.Popen(again)
        wait_for_manifests(storage, number, process)
        time.sleep(share * seconds[number - 1])
        if process.poll() is None:
            process.kill()
            num_kills += 1
        process.wait(timeout=60)
    return num_kills


def num_manifests(storage: Path) -> int:
    return len(list(storage.glob("drill/**/manifest-*.json")))


def wait_for_manifests(storage: Path, number: int, process: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: num_manifests(storage) >= number, process)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"the run did not come so far, exit code {process.poll()}")


def manifests(ledger: Ledger) -> Iterator[str]:
    return (key for key in ledger.store.list("drill/") if "manifest-" in key)


def final_weights(ledger: Ledger) -> bytes:
    result = ledger.stage_result("rl-3")
    assert result is not None
    return (ledger.store.local_path(result.checkpoint) / "model" / "model.safetensors").read_bytes()


def sampled(ledger: Ledger) -> list[tuple[object, ...]]:
    """Every committed rollout: what was sampled, and what it earned (not how long tools took)."""
    found = [manifest_from_json(ledger.store.get_bytes(key)) for key in manifests(ledger)]
    parts = [manifest.parts["rollouts"] for manifest in found if "rollouts" in manifest.parts]
    groups = [group for part in parts for group in read_rollouts(ledger.store.local_path(part))]
    return sorted(
        (r.rollout_id, r.token_ids.tobytes(), r.status, r.reward or 0.0, r.reward is None)
        for group in groups
        for r in group.rollouts
    )


def rollouts_written_after_their_commit(ledger: Ledger) -> list[str]:
    """A committed step whose rollouts were sampled again would have newer rollouts than manifest."""
    root = Path(ledger.store.uri)
    late = []
    steps = [
        *root.glob("drill/*/manifest-step-*.json"),
        *root.glob("drill/*/manifest-chunk-*.json"),
    ]
    for manifest in steps:
        folder = manifest.parent / manifest.stem.removeprefix("manifest-")
        part = folder / "rollouts.parquet"
        if part.stat().st_mtime_ns > manifest.stat().st_mtime_ns:
            late.append(str(part))
    return late


def attempts_in_catalogue(ledger: Ledger) -> list[tuple[object, ...]]:
    with duckdb.connect(str(catalog_path(ledger.store)), read_only=True) as connection:
        query = "select rollout_id, reward, status, is_kept from attempts order by all"
        return connection.execute(query).fetchall()
