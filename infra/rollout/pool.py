"""The rollout pool: what a stage holds for sampling, over the embedded engine.

One object to generate, to receive weights, to be checked, to close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from infra.health import CHECK_SECONDS, ResourceHealth, not_ready
from infra.rollout.embedded import EmbeddedEngine, EngineClosedError
from infra.rollout.lane import Counters, NonFiniteLogitsError
from rstar2.config import RecipeConfig
from rstar2.protocols import GenerateRequest
from rstar2.training.weights import load_model, weights_checksum
from rstar2.types import read_only

NAME = "rollout pool"
REMEDY = "start the same run again: it goes on after its last committed step, with a new engine"


class RolloutPool:
    """Owns the engine: `close` closes it."""

    def __init__(self, engine: EmbeddedEngine, *, weights: str) -> None:
        self.generate = engine
        """A `Generate`."""
        self.weights = weights
        """Checksum of the weights that are live, as they were handed over."""

    @property
    def policy_version(self) -> int:
        """The version whose weights are live."""
        return self.generate.policy_version

    def update_weights(self, state_dict: Mapping[str, torch.Tensor], version: int) -> None:
        """Makes new weights live; refused while rollouts are held."""
        self.generate.update_weights(state_dict, version)
        self.weights = weights_checksum(state_dict)

    def counters(self) -> Counters:
        """Tokens, passes and seconds since the pool was opened."""
        return self.generate.counters()

    async def check(self) -> ResourceHealth:
        """Samples a token on every lane."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self._sample_everywhere()
        except TimeoutError:
            return not_ready(NAME, f"no token was sampled within {CHECK_SECONDS:g} s", REMEDY)
        except (EngineClosedError, NonFiniteLogitsError) as error:
            return not_ready(NAME, str(error), REMEDY)
        seen = (
            f"embedded engine, policy version {self.policy_version}, {self.generate.num_lanes} "
            f"lanes, {self.counters().num_sampled_tokens:,} tokens sampled so far"
        )
        return ResourceHealth(name=NAME, is_ready=True, capacity=self.generate.num_rows, seen=seen)

    async def _sample_everywhere(self) -> None:
        """Holds what it begins: rows go to the emptiest lane, and lanes differ by one row at most,
        so that twice as many rollouts as lanes reach all of them."""
        engine = self.generate
        names = [f"check/{n}" for n in range(min(2 * engine.num_lanes, engine.num_rows))]
        try:
            for name in names:
                await engine(_one_token(name))
        finally:
            for name in names:
                engine.release(name)

    def close(self) -> None:
        self.generate.close()


@contextmanager
def open_pool(model_folder: Path, config: RecipeConfig) -> Iterator[RolloutPool]:
    """A pool with the policy of a folder of `transformers` live; closed on leaving."""
    model = load_model(model_folder, config.model.dtype)
    engine = EmbeddedEngine(model, config=config.rollout, num_threads=config.num_threads)
    pool = RolloutPool(engine, weights=weights_checksum(model.state_dict()))
    try:
        yield pool
    finally:
        pool.close()


def _one_token(rollout_id: str) -> GenerateRequest:
    return GenerateRequest(
        rollout_id=rollout_id,
        turn=0,
        token_ids=read_only([0], np.int32),
        max_new_tokens=1,
        temperature=0.0,
        top_p=1.0,
        seed=0,
        stop_token_ids=(),
    )
