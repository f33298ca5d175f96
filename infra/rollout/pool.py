"""The rollout pool: what a stage holds for sampling, over the embedded engine.

One object to generate, to receive weights, to ask for health and counters, to close.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from infra.rollout.embedded import EmbeddedEngine
from infra.rollout.lane import Counters
from rstar2.config import RecipeConfig
from rstar2.training.weights import load_model


class RolloutPool:
    """Owns the engine: `close` closes it."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.generate = engine
        """A `Generate`."""

    @property
    def policy_version(self) -> int:
        """The version whose weights are live."""
        return self.generate.policy_version

    def update_weights(self, state_dict: Mapping[str, torch.Tensor], version: int) -> None:
        """Makes new weights live; refused while rollouts are held."""
        self.generate.update_weights(state_dict, version)

    def counters(self) -> Counters:
        """Tokens, passes and seconds since the pool was opened."""
        return self.generate.counters()

    def health(self) -> dict[str, object]:
        """What a person asks first, JSON-ready."""
        return {
            "engine": "embedded",
            "policy_version": self.policy_version,
            "num_held": self.generate.num_held,
            **asdict(self.counters()),
        }

    def close(self) -> None:
        self.generate.close()


@contextmanager
def open_pool(model_folder: Path, config: RecipeConfig) -> Iterator[RolloutPool]:
    """A pool with the policy of a folder of `transformers` live; closed on leaving."""
    model = load_model(model_folder, config.model.dtype)
    engine = EmbeddedEngine(model, config=config.rollout, num_threads=config.num_threads)
    pool = RolloutPool(engine)
    try:
        yield pool
    finally:
        pool.close()
