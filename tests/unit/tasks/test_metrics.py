"""A step's row, from groups that were really stored, built into a batch and read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from rollout_builders import make_group

from infra.object_store import open_store
from rstar2.profiles import load_config
from rstar2.protocols import TrainMetrics
from rstar2.step_metrics import StepMetrics
from rstar2.types import Group
from tasks.batches import build_batch
from tasks.ledger import Ledger
from tasks.metrics import step_metrics_of
from tasks.resources import Resources
from tasks.rollouts import Collected, store_groups

TRAINED = TrainMetrics(
    loss=0.5,
    grad_norm=2.0,
    clip_fraction=0.1,
    behaviour_kl=0.01,
    entropy=0.3,
    num_tokens=40,
    num_skipped_updates=1,
    seconds=3.0,
)
SIGNAL, SOLVED, UNDECIDED = (1.0, 0.0) * 4, (1.0,) * 8, (1.0,) * 2 + (None,) * 6


def step_of(folder: Path, rewards: list[tuple[float | None, ...]]) -> StepMetrics:
    """The row of smoke's RL-1, step 1: G = 4, and a step with fewer than 2 groups is thin."""
    groups = [make_group(row, problem_id=f"p{n}") for n, row in enumerate(rewards)]
    resources = Resources(
        config=load_config("smoke"),
        ledger=Ledger(open_store(str(folder)), "demo"),
        chat=None,
        sandbox=None,
        execute=None,
        pool=None,
        trainer=None,
        loop=None,
    )
    return measured(resources, groups)


def measured(resources: Resources, groups: list[Group]) -> StepMetrics:
    ref = store_groups(resources, groups, "demo/rl-1/step-00001")
    built = build_batch.fn(resources, stage="rl-1", step=1, rollouts=ref, policy_version=0)
    return step_metrics_of(
        resources,
        stage="rl-1",
        step=1,
        collected=Collected(rollouts=ref, num_rounds=1, seconds=1.0),
        built=built,
        trained=TRAINED,
        sync_seconds=0.5,
        evaluation_score=None,
    )


@pytest.mark.parametrize(
    ("rewards", "num_trained", "is_thin"),
    [
        ([SIGNAL, SIGNAL, SOLVED], 2, False),
        ([SIGNAL, SOLVED, UNDECIDED], 1, True),
        ([SOLVED, SOLVED], 0, True),
    ],
)
def test_a_step_is_thin_where_fewer_groups_than_asked_for_can_be_trained_on(
    tmp_path: Path, rewards: list[tuple[float | None, ...]], num_trained: int, is_thin: bool
) -> None:
    row = step_of(tmp_path, rewards)
    assert (row.num_groups_trained, row.is_thin) == (num_trained, is_thin)


def test_groups_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    row = step_of(tmp_path, [SIGNAL, SOLVED, SOLVED, UNDECIDED])
    assert (row.num_problems, row.num_rollouts, row.num_undecided) == (4, 32, 6)
    assert row.num_groups_trained == 1
    assert (row.num_groups_without_signal, row.num_groups_too_small) == (2, 1)
    assert row.solved_rate == 0.5


def test_what_the_trainer_reports_is_in_the_row(tmp_path: Path) -> None:
    row = step_of(tmp_path, [SIGNAL])
    assert (row.loss, row.grad_norm, row.num_skipped_updates) == (0.5, 2.0, 1)
    assert (row.collect_seconds, row.train_seconds, row.sync_seconds) == (1.0, 3.0, 0.5)
