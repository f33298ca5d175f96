"""Rows P1, P2, P4, P9 and P11 of the cases: a run that is killed, or whose parts fail.

P1, P2 and P4 at full length, over the whole recipe, are `tests/integration/test_kill_drill.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engine_builders import ask, single
from prefect_servers import ROOT, rstar2, running_server, start_flow_run, wait_for
from rollout_builders import make_rollout, make_turn

from infra import services
from infra.object_store import open_store
from infra.ownership import read_owner
from infra.rollout.embedded import EmbeddedEngine
from infra.settings import Settings
from infra.trainer.local import LocalTrainer
from rstar2.batching import build_samples
from rstar2.config import RecipeConfig
from rstar2.training.weights import build_tiny_model, weights_checksum
from rstar2.types import Batch, Group
from tasks.ledger import Ledger

DRAWS = """
import os, signal, sys
from rstar2.arithmetic import generate_problems
from rstar2.problems import draw_problems
from rstar2.profiles import load_config
from tasks.ledger import open_ledger, start_run

storage, moment = sys.argv[1:]
problems = generate_problems("train", 12, shares={}, seed=1)
with open_ledger(storage, "drill") as ledger:
    start_run(ledger, load_config("smoke"), {})
    for step in range(len(ledger.steps("rl-1")) + 1, 7):
        drawn = draw_problems(
            problems, stage="rl-1", step=step, round=0, num=4, shares={}, seed=0
        )
        ids = [problem.problem_id for problem in drawn]
        ledger.store.put_bytes(ledger.key("rl-1", f"step-{step}"), repr(ids).encode())
        if moment == f"in step {step}":
            os.kill(os.getpid(), signal.SIGKILL)
        ledger.commit("step", stage="rl-1", step=step, values={"drawn": ids})
        if moment == f"after step {step}":
            os.kill(os.getpid(), signal.SIGKILL)
"""
"""Six steps of four problems from a set of twelve: an epoch is three steps."""


def drawn(storage: Path, *moments: str) -> list[list[str]]:
    """Committed draws of a run that is killed at each of the moments and started again."""
    for moment in (*moments, "never"):
        done = subprocess.run([sys.executable, "-c", DRAWS, str(storage), moment], check=False)
        assert done.returncode == (0 if moment == "never" else -signal.SIGKILL)
    return [m.values["drawn"] for m in Ledger(open_store(str(storage)), "drill").steps("rl-1")]


def test_p1_killed_at_an_epochs_end_it_goes_on_with_the_next_batch(tmp_path: Path) -> None:
    undisturbed = drawn(tmp_path / "undisturbed")
    assert drawn(tmp_path / "killed", "after step 3") == undisturbed


def test_p2_killed_within_a_step_no_problem_is_skipped_or_repeated(tmp_path: Path) -> None:
    steps = drawn(tmp_path, "in step 2", "in step 3", "in step 5")
    first, second = ([i for step in steps[n : n + 3] for i in step] for n in (0, 3))
    assert len(steps) == 6
    assert len(set(first)) == 12
    assert set(second) == set(first)
    assert second != first


CONFIG = RecipeConfig.model_validate(
    {
        "profile": "test",
        "trainer": {"num_updates_per_step": 2, "optimizer": {"learning_rate": 1e-2}},
        "model": {"tiny": {"hidden_size": 32, "num_layers": 2, "intermediate_size": 64}},
        "stages": {"rl-1": {}},
        "gates": {"rl-1": {}},
    }
)
NUM_STEPS = 4


class Policy:
    """Engine and trainer of one process."""

    def __init__(self) -> None:
        model, twin = (build_tiny_model(CONFIG.model.tiny, seed=1) for _ in "ab")
        self.trainer = LocalTrainer(model, None, CONFIG)
        self.engine = EmbeddedEngine(twin, config=CONFIG.rollout, num_threads=1)

    def step(self, step: int) -> None:
        """Samples two groups, trains on them, makes the new weights live."""
        groups = [self._group(f"p{n}", step) for n in range(2)]
        batch = Batch(
            stage="rl-1", step=step, policy_version=step - 1, samples=build_samples(groups)
        )
        self.trainer.train_step(batch)
        self.engine.update_weights(self.trainer.state_dict(), step)

    def _group(self, problem_id: str, step: int) -> Group:
        rollouts = []
        for index in range(4):
            rollout_id = f"{step}/{problem_id}/{index}"
            request = ask(rollout_id, [3, 5, 7], max_new_tokens=12, seed=step * 100 + index)
            completion = asyncio.run(single(self.engine, request))
            turn = make_turn(completion.token_ids, logprobs=completion.logprobs)
            rollout = make_rollout(rollout_id, reward=float(index % 2), turns=[turn])
            rollouts.append(rollout)
        return Group(problem_id=problem_id, rollouts=tuple(rollouts))


def test_p4_a_saved_and_resumed_policy_ends_bit_for_bit_in_the_uninterrupted_weights(
    tmp_path: Path,
) -> None:
    torch.set_num_threads(1)
    through, first, resumed = Policy(), Policy(), Policy()
    for step in range(1, NUM_STEPS + 1):
        through.step(step)
    first.step(1)
    first.step(2)
    first.trainer.save(tmp_path / "checkpoint")
    resumed.trainer.load(tmp_path / "checkpoint")
    resumed.engine.update_weights(resumed.trainer.state_dict(), 2)
    for step in range(3, NUM_STEPS + 1):
        resumed.step(step)
    for policy in (through, first, resumed):
        policy.engine.close()
    assert weights_checksum(resumed.trainer.state_dict()) == weights_checksum(
        through.trainer.state_dict()
    )
    assert weights_checksum(first.trainer.state_dict()) != weights_checksum(
        through.trainer.state_dict()
    )


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Services of their own, the server up."""
    with running_server(tmp_path_factory.mktemp("state")) as settings:
        yield settings


@pytest.mark.slow
def test_p9_a_rollout_producer_that_raises_fails_the_run_with_its_error(
    settings: Settings, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(ROOT / "rstar2" / "recipes" / "tiny_base", base)
    shape = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 64}))
    ended = rstar2(
        settings,
        *("run", "smoke", "--run", "drill", "--set", f"storage={tmp_path / 'runs'}"),
        *("--set", f"model.base={base}"),
    )
    assert ended.returncode != 0
    assert "rollout evaluation/base/" in ended.stderr
    assert "but the model's longest sequence is 64" in ended.stderr


@pytest.mark.slow
def test_p11_a_worker_killed_in_a_stage_the_next_run_goes_on_and_trains_nothing_twice(
    settings: Settings, tmp_path: Path
) -> None:
    """Worker and run die together, as with their machine; nobody tells Prefect."""
    storage = tmp_path / "runs"
    assert rstar2(settings, "up").returncode == 0
    parameters = {"profile": "smoke", "run": "drill", "set": [f"storage={storage}"]}
    start_flow_run(settings, "rstar2/full-recipe", parameters)
    wait_for((storage / "drill" / "rl-1" / "manifest-step-00001.json").exists)
    kill_worker_and_run(settings, storage)
    committed = {path: path.stat().st_mtime_ns for path in storage.glob("drill/*/manifest-*.json")}
    rollouts = storage / "drill" / "rl-1" / "step-00001" / "rollouts.parquet"
    sampled_at = rollouts.stat().st_mtime_ns

    ended = rstar2(settings, "run", "smoke", "--run", "drill", "--set", f"storage={storage}")

    assert ended.returncode == 0, ended.stderr
    assert {path: path.stat().st_mtime_ns for path in committed} == committed
    assert rollouts.stat().st_mtime_ns == sampled_at
    steps = Ledger(open_store(str(storage)), "drill").steps("rl-1")
    assert [manifest.step for manifest in steps] == [1, 2, 3]
    tokens = [manifest.token for manifest in steps]
    assert tokens == sorted(tokens)
    assert tokens[0] < tokens[-1], "the second owner took the last step, and only he"


def kill_worker_and_run(settings: Settings, storage: Path) -> None:
    worker = services.deployments_health(settings).pid
    owner = read_owner(open_store(str(storage)), "drill")
    assert worker is not None
    assert owner is not None
    os.kill(worker, signal.SIGKILL)
    os.kill(owner.pid, signal.SIGKILL)
