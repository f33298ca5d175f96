"""What each slot's conversation is at, in columns: the lane's bookkeeping without Python by row.

A plain table of numpy arrays, one row for a slot. Keys and values are elsewhere (`decoder`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from rstar2.protocols import GenerateRequest
from rstar2.types import TokenIds

NO_TOKEN = -1


@dataclass(kw_only=True, slots=True, eq=False)
class Columns:
    """Arrays with a row for each of S slots that hold up to T tokens."""

    tokens: NDArray[np.int32]  # [S, T], the conversation
    logprobs: NDArray[np.float32]  # [S, T], where sampled
    lengths: NDArray[np.int64]  # tokens known
    cached: NDArray[np.int64]  # tokens whose keys and values are in the cache
    starts: NDArray[np.int64]  # where this turn's completion begins
    limits: NDArray[np.int64]  # length at which it ends
    seeds: NDArray[np.uint64]
    temperatures: NDArray[np.float32]
    top_ps: NDArray[np.float32]
    stops: NDArray[np.int32]  # [S, K], filled up with NO_TOKEN

    def move(self, *, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Copies rows; sources are read before any write."""
        for item in fields(self):
            column = getattr(self, item.name)
            column[target] = column[source]

    def grow(self, max_tokens: int) -> None:
        """Makes room for `max_tokens` tokens in each slot."""
        self.tokens = _widened(self.tokens, max_tokens, filling=0)
        self.logprobs = _widened(self.logprobs, max_tokens, filling=0)

    def clear(self, slot: int) -> None:
        """Makes the slot ready for another conversation."""
        self.lengths[slot] = self.cached[slot] = 0

    def set_turn(self, slot: int, request: GenerateRequest, new_token_ids: TokenIds) -> None:
        """Appends the turn's new tokens and takes over its settings."""
        old = int(self.lengths[slot])
        length = old + len(new_token_ids)
        self.tokens[slot, old:length] = new_token_ids
        self.lengths[slot] = self.starts[slot] = length
        self.limits[slot] = length + request.max_new_tokens
        self.seeds[slot] = request.seed
        self.temperatures[slot] = request.temperature
        self.top_ps[slot] = request.top_p
        num_stops = len(request.stop_token_ids)
        if num_stops > self.stops.shape[1]:
            self.stops = _widened(self.stops, num_stops, filling=NO_TOKEN)
        self.stops[slot] = NO_TOKEN
        self.stops[slot, :num_stops] = request.stop_token_ids


def empty_columns(num_slots: int, max_tokens: int) -> Columns:
    def whole() -> NDArray[np.int64]:
        return np.zeros(num_slots, dtype=np.int64)

    return Columns(
        tokens=np.zeros((num_slots, max_tokens), dtype=np.int32),
        logprobs=np.zeros((num_slots, max_tokens), dtype=np.float32),
        lengths=whole(),
        cached=whole(),
        starts=whole(),
        limits=whole(),
        seeds=np.zeros(num_slots, dtype=np.uint64),
        temperatures=np.ones(num_slots, dtype=np.float32),
        top_ps=np.ones(num_slots, dtype=np.float32),
        stops=np.full((num_slots, 1), NO_TOKEN, dtype=np.int32),
    )


def _widened(array: NDArray, width: int, *, filling: int) -> NDArray:
    wider = np.full((len(array), width), filling, dtype=array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
