"""A tiny engine and requests to it, for tests of the embedded engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from infra.rollout.embedded import (
    EmbeddedEngine,
)
from rstar2.config import RolloutConfig, TinyModel
from rstar2.protocols import GenerateRequest
from rstar2.training.weights import build_tiny_model
from rstar2.types import Completion

MODEL = build_tiny_model(TinyModel(init_std=0.08), seed=11)
PROMPTS = [
    np.random.default_rng(i).integers(448, size=9 + 5 * i).astype(np.int32) for i in range(6)
]


def open_engine(*, max_rows: int = 32, num_threads: int = 2) -> EmbeddedEngine:
    return EmbeddedEngine(MODEL, config=RolloutConfig(max_rows=max_rows), num_threads=num_threads)


def ask(
    rollout_id: str,
    token_ids: Sequence[int] | np.ndarray,
    *,
    turn: int = 0,
    max_new_tokens: int = 8,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: tuple[int, ...] = (),
) -> GenerateRequest:
    return GenerateRequest(
        rollout_id=rollout_id,
        turn=turn,
        token_ids=np.array(token_ids, dtype=np.int32),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop_token_ids=stop,
    )


async def single(engine: EmbeddedEngine, request: GenerateRequest) -> Completion:
    try:
        return await engine(request)
    finally:
        engine.release(request.rollout_id)


def bits(turns: Sequence[Completion]) -> list[tuple[bytes, bytes]]:
    return [(turn.token_ids.tobytes(), turn.logprobs.tobytes()) for turn in turns]
