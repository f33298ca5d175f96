"""The rollout pool says truly whether it samples, after faults of its engine too."""

from __future__ import annotations

import asyncio

import pytest
from engine_builders import MODEL, PROMPTS, ask, open_engine, single

from infra.rollout.embedded import EngineClosedError
from infra.rollout.pool import RolloutPool
from rstar2.training.weights import weights_checksum


async def test_a_pool_that_samples_on_every_lane_is_ready() -> None:
    pool = RolloutPool(open_engine(max_rows=9, num_threads=2), weights="none yet")
    await single(pool.generate, ask("a", PROMPTS[0]))
    pool.update_weights(MODEL.state_dict(), 3)
    health = await pool.check()
    num_tokens = [lane.counters.num_sampled_tokens for lane in pool.generate._lanes]
    pool.close()
    assert (health.is_ready, health.capacity, health.remedy) == (True, 9, "")
    assert health.seen == "embedded engine, policy version 3, 2 lanes, 12 tokens sampled so far"
    assert min(num_tokens) > 0
    assert pool.weights == weights_checksum(MODEL.state_dict())
    assert pool.generate.num_held == 0


async def test_a_pool_whose_lane_died_is_not_ready_and_says_why() -> None:
    pool = RolloutPool(open_engine(), weights="")
    held = asyncio.create_task(pool.generate(ask("a", PROMPTS[0], max_new_tokens=400)))
    await asyncio.sleep(0)
    pool.generate._lanes[1].call(_fault)
    with pytest.raises(EngineClosedError, match="no memory is left"):
        await asyncio.gather(held)
    health = await pool.check()
    pool.close()
    assert (health.name, health.is_ready, health.capacity) == ("rollout pool", False, 0)
    assert "a lane of the engine failed: MemoryError('no memory is left')" in health.seen
    assert "start the same run again" in health.remedy


def _fault(_: object) -> None:
    raise MemoryError("no memory is left")


async def test_a_pool_whose_logits_are_not_finite_is_not_ready() -> None:
    pool = RolloutPool(open_engine(), weights="")
    huge = {
        **MODEL.state_dict(),
        "model.norm.weight": MODEL.state_dict()["model.norm.weight"] * 3e38,
    }
    pool.update_weights(huge, 1)
    health = await pool.check()
    pool.close()
    assert not health.is_ready
    assert "not finite" in health.seen
