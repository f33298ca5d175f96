"""A step whose sandbox, pool or trainer is lost under it: real parts, no Prefect server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from infra.health import ResourceError
from infra.object_store import open_store
from infra.sandbox.resident import daemon_status, sandbox_folder, stop_daemon
from rstar2.config import RecipeConfig
from rstar2.profiles import load_config
from rstar2.rollout_files import read_problems
from rstar2.types import Group, Losses, ToolStatus
from tasks.health import ask_resources, check_resources
from tasks.ledger import Ledger
from tasks.problems import held_out_problems
from tasks.resources import Resources, open_resources
from tasks.rollouts import sample_groups, stage_limits
from tasks.sft import prepare_base
from tasks.training import sync_weights

NUM_ROLLOUTS = 4
SETTINGS = ("sandbox.remembers_pure_calls=false", "num_threads=2")


@pytest.fixture
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "state"
    monkeypatch.setenv("RSTAR2_STATE_FOLDER", str(folder))
    yield folder
    stop_daemon(folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    """The bits of the step with nothing lost."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RSTAR2_STATE_FOLDER", str(folder / "state"))
        with stage(folder) as resources:
            found = bits(sample(resources))
        stop_daemon(folder / "state")
    statuses = [part[0] for row in found for part in row[4:] if isinstance(part, tuple)]
    assert statuses.count(ToolStatus.OK) > 20
    return found


@contextmanager
def stage(tmp_path: Path, *settings: str, trains: bool = False) -> Iterator[Resources]:
    """The resources of an RL stage that begins from the shipped base model."""
    ledger = Ledger(open_store(str(tmp_path / "runs")), "demo")
    config = load_config("smoke", [f"storage={tmp_path / 'runs'}", *SETTINGS, *settings])
    base = prepare_base.fn(ledger, config)
    with open_resources(ledger, config, checkpoint=base, trains=trains) as resources:
        yield resources


def sample(resources: Resources) -> list[Group]:
    config: RecipeConfig = resources.config
    problems = held_out_problems.fn(resources.ledger, config)
    return sample_groups(
        resources,
        read_problems(resources.ledger.store.local_path(problems)),
        limits=stage_limits(resources, config.stages["rl-1"]),
        num_rollouts=NUM_ROLLOUTS,
        prefix="rl-1/1",
    )


def bits(groups: list[Group]) -> list[tuple[object, ...]]:
    """All but the seconds that tools took."""
    return [
        (
            rollout.rollout_id,
            rollout.token_ids.tobytes(),
            rollout.status,
            rollout.reward,
            *(
                (result.status, result.stdout, result.stderr, result.value, result.detail)
                for turn in rollout.turns
                for result in turn.tool_results
            ),
        )
        for group in groups
        for rollout in group.rollouts
    ]


def pid_of(state_folder: Path) -> int:
    health = daemon_status(state_folder)
    assert health is not None
    return int(str(health["pid"]))


@contextmanager
def mid_step(state_folder: Path, fault: Callable[[], None]) -> Iterator[None]:
    """Has the fault happen once the daemon has judged some of the step's calls."""

    def wait_then_fault() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            health = daemon_status(state_folder)
            done = health["num_done"] if health else {}
            if isinstance(done, dict) and sum(done.values()) >= 10:
                return fault()
            time.sleep(0.005)

    thread = Thread(target=wait_then_fault)
    thread.start()
    yield
    thread.join()


@pytest.mark.slow
def test_a_step_whose_daemon_is_killed_ends_in_the_same_rollouts(
    tmp_path: Path, state_folder: Path, undisturbed: list[tuple[object, ...]]
) -> None:
    with stage(tmp_path) as resources:
        killed = pid_of(state_folder)

        def stop_then_kill() -> None:
            os.kill(killed, signal.SIGSTOP)  # so that calls are in flight when it dies
            time.sleep(0.5)
            os.kill(killed, signal.SIGKILL)

        with mid_step(state_folder, stop_then_kill):
            seen = bits(sample(resources))
        losses = resources.losses()
    assert seen == undisturbed
    assert losses.num_sandbox_restarts == 1
    assert losses.num_calls_redone > 0
    assert (losses.num_rollouts_redone, losses.num_failed_rollouts) == (0, 0)


@pytest.mark.slow
def test_a_step_whose_daemon_is_stopped_ends_in_the_same_rollouts(
    tmp_path: Path, state_folder: Path, undisturbed: list[tuple[object, ...]]
) -> None:
    with stage(tmp_path) as resources:
        stopped = pid_of(state_folder)
        with mid_step(state_folder, lambda: os.kill(stopped, signal.SIGSTOP)):
            seen = bits(sample(resources))
        assert seen == undisturbed
        assert resources.losses().num_sandbox_restarts == 1
        assert pid_of(state_folder) != stopped


@pytest.mark.slow
def test_a_step_whose_sandbox_stays_away_stops_within_bounds_and_is_collected_again(
    tmp_path: Path, state_folder: Path, undisturbed: list[tuple[object, ...]]
) -> None:
    folder = sandbox_folder(state_folder)
    with stage(tmp_path) as resources:
        pid = pid_of(state_folder)

        def lose_for_good() -> None:
            folder.rename(folder.with_name("away"))
            folder.write_text("")
            os.kill(pid, signal.SIGKILL)

        started = time.monotonic()
        with (
            mid_step(state_folder, lose_for_good),
            pytest.raises(
                ResourceError, match=r"sandbox: lost while .*none of them counts"
            ) as lost,
        ):
            sample(resources)
        assert time.monotonic() - started < 120
        assert "the sandbox daemon cannot live in" in str(lost.value)
        assert "then start the same run again" in str(lost.value)
        assert resources.ledger.steps("rl-1") == []

        folder.unlink()
        assert bits(sample(resources)) == undisturbed


@pytest.mark.slow
def test_rollouts_that_the_sandbox_was_away_from_are_sampled_again(
    tmp_path: Path, state_folder: Path, undisturbed: list[tuple[object, ...]]
) -> None:
    with stage(tmp_path) as resources:
        resources.sandbox.gone = "no daemon, for the time being"
        resources.loop.run_until_complete(resources.sandbox.close())
        resources.sandbox._writer = None  # as after a daemon that was given up
        seen = bits(sample(resources))
        losses = resources.losses()
    assert seen == undisturbed
    assert losses.num_rollouts_redone > 0
    assert losses.num_failed_rollouts == 0


@pytest.mark.slow
def test_a_lane_that_dies_stops_the_stage_with_a_sentence(
    tmp_path: Path, state_folder: Path
) -> None:
    def fault(_: object) -> None:
        raise MemoryError("no memory is left")

    with stage(tmp_path) as resources:
        lane = resources.pool.generate._lanes[1]
        with (
            mid_step(state_folder, lambda: lane.call(fault) and None),
            pytest.raises(ResourceError, match=r"rollout pool: a lane .*no memory is left"),
        ):
            sample(resources)
        _, pool = ask_resources(resources)
    assert not pool.is_ready


def test_all_that_a_stage_needs_is_ready(tmp_path: Path, state_folder: Path) -> None:
    with stage(tmp_path, trains=True) as resources:
        healths = check_resources.fn(resources, when="before")
        assert resources.losses() == Losses()
    assert [h.name for h in healths] == ["sandbox", "rollout pool", "trainer"]
    assert [h.is_ready for h in healths] == [True, True, True]
    assert [h.capacity for h in healths] == [2, 64, 1]


def test_a_pool_that_serves_other_weights_than_the_trainers_is_refused(
    tmp_path: Path, state_folder: Path
) -> None:
    with stage(tmp_path, trains=True) as resources:
        resources.trainer.state_dict()["model.norm.weight"][0] += 1.0
        with pytest.raises(
            ResourceError, match=r"rollout pool: it serves weights .*policy version 0"
        ):
            check_resources.fn(resources, when="before")
        assert not check_resources.fn(resources, when="after")[1].is_ready
        sync_weights.fn(resources, version=7)
        assert "policy version 7" in check_resources.fn(resources, when="before")[1].seen


@pytest.mark.parametrize("name", ["RSTAR2_STATE_FOLDER", "sandbox.address"])
def test_a_missing_sandbox_fails_in_seconds_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RSTAR2_STATE_FOLDER", str(tmp_path / "file" / "state"))
    settings = [f"sandbox.address=unix://{tmp_path}/sandbox"] if name == "sandbox.address" else []
    started = time.monotonic()
    with ExitStack() as stack, pytest.raises(ResourceError, match=f"sandbox: .*{name}"):
        stack.enter_context(stage(tmp_path, *settings))
    assert time.monotonic() - started < 15
