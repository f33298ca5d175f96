"""One lane of the embedded engine: slots, their conversations, and the decode step over them.

A lane is synchronous and belongs to one thread. It holds `num_slots` conversations and decodes up
to `MAX_BATCH` of them in a pass. Conversations being decoded fill slots 0 to `num_active` - 1, so
that attention reads the cache in place; those that wait (for a tool, or for their turn) stand
behind and are exchanged in and out. Slots are places only: no bit depends on them.

Reads jobs, returns completions. Knows neither asyncio nor limits on requests: see `embedded`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from infra.rollout.decoder import Decoder, KeyValueCache, Rows, Weights
from infra.rollout.sampling import SamplingRows, sample
from rstar2.types import (
    Completion,
    FinishReason,
    GenerateRequest,
    PolicySpan,
    TokenIds,
    read_only,
)

MAX_BATCH = 64
"""Rows decoded in one pass of a lane: more would push their keys out of the processor's caches."""
MAX_FED_TOKENS = 256
"""Prompt and observation tokens fed in one pass, so that decoding goes on beside long ones."""
FIRST_TOKENS = 256
"""Tokens that a slot holds at first; the cache grows when a conversation needs more."""
NO_TOKEN = -1


class NonFiniteLogitsError(ArithmeticError):
    """The policy's logits are not finite: nothing can be sampled from them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Job:
    """A turn for a lane: the request, and those of its tokens that the conversation lacks."""

    request: GenerateRequest
    new_token_ids: TokenIds  # [m]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Finished:
    job: Job
    outcome: Completion | NonFiniteLogitsError


@dataclass(kw_only=True, slots=True)
class Counters:
    """What a lane did since it began; times in seconds."""

    num_sampled_tokens: int = 0
    num_prompt_tokens_fed: int = 0
    num_prompt_tokens_copied: int = 0
    """Prompt tokens that were not computed, since another rollout of the group had been."""
    num_observation_tokens_fed: int = 0
    num_passes: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    idle_seconds: float = 0.0
    """Waiting: for tools, or for requests."""

    def plus(self, other: Counters) -> Counters:
        names = [f.name for f in fields(self)]
        return Counters(**{n: getattr(self, n) + getattr(other, n) for n in names})


@dataclass(kw_only=True, slots=True, eq=False)
class _Conversation:
    slot: int
    job: Job | None
    prompt: bytes
    """Of the first turn: rollouts of a group share its keys and values."""


@dataclass(kw_only=True, slots=True, eq=False)
class _Columns:
    """What a slot's conversation is at, one row for each slot."""

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
        for item in fields(self):
            column = getattr(self, item.name)
            column[target] = column[source]


def _empty_columns(num_slots: int, max_tokens: int) -> _Columns:
    def whole() -> NDArray[np.int64]:
        return np.zeros(num_slots, dtype=np.int64)

    return _Columns(
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


@dataclass(slots=True)
class _Fed:
    """Tokens to be fed beside the decoded ones, as (slot, first position, position after)."""

    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    num_tokens: int = 0


class Lane:
    def __init__(self, weights: Weights, *, num_slots: int, policy_version: int) -> None:
        self.num_slots = num_slots
        self.counters = Counters()
        self.load(weights, policy_version)

    def load(self, weights: Weights, policy_version: int) -> None:
        """Takes new weights and forgets every conversation."""
        tokens = min(FIRST_TOKENS, weights.shape.max_positions)
        cache = KeyValueCache(weights.shape, num_slots=self.num_slots, max_tokens=tokens)
        self._decoder = Decoder(weights, cache)
        self._version = policy_version
        self._columns = _empty_columns(self.num_slots, cache.max_tokens)
        self._occupants: list[_Conversation | None] = [None] * self.num_slots
        self._conversations: dict[str, _Conversation] = {}
        self._leaders: dict[bytes, _Conversation] = {}
        self._ready: deque[_Conversation] = deque()
        self._num_active = 0

    @property
    def weights(self) -> Weights:
        return self._decoder.weights

    @property
    def has_work(self) -> bool:
        return bool(self._num_active or self._ready)

    def begin(self, job: Job) -> None:
        """Queues a turn; a rollout not seen before takes a free slot."""
        request, columns = job.request, self._columns
        conversation = self._conversations.get(request.rollout_id) or self._open(job)
        self._reserve(len(request.token_ids) + request.max_new_tokens)
        columns = self._columns
        slot, old = conversation.slot, int(columns.lengths[conversation.slot])
        conversation.job = job
        length = old + len(job.new_token_ids)
        columns.tokens[slot, old:length] = job.new_token_ids
        columns.lengths[slot] = columns.starts[slot] = length
        columns.limits[slot] = length + request.max_new_tokens
        columns.seeds[slot] = request.seed
        columns.temperatures[slot] = request.temperature
        columns.top_ps[slot] = request.top_p
        self._set_stops(slot, request.stop_token_ids)
        self._ready.append(conversation)

    def drop(self, rollout_id: str) -> None:
        """Forgets a rollout, decoding or not, and frees its slot."""
        conversation = self._conversations.pop(rollout_id, None)
        if conversation is None:
            return
        if conversation.slot < self._num_active:
            self._deactivate([conversation.slot])
        elif conversation in self._ready:
            self._ready.remove(conversation)
        if self._leaders.get(conversation.prompt) is conversation:
            del self._leaders[conversation.prompt]
        self._occupants[conversation.slot] = None

    def step(self) -> list[Finished]:
        """One pass: feeds what waits, decodes one token of every active conversation."""
        began = time.perf_counter()
        fed = self._admit()
        rows = self._rows(fed)
        if not len(rows.token_ids):
            return []
        logits = self._decoder.forward(rows)
        for slot, _, stop in fed.pieces:
            self._columns.cached[slot] = max(self._columns.cached[slot], stop)
        finished = self._sample(logits) if self._num_active else []
        self._count(rows, began)
        return finished

    def _count(self, rows: Rows, began: float) -> None:
        seconds = time.perf_counter() - began
        share = rows.num_decoded / len(rows.token_ids)
        self.counters.decode_seconds += seconds * share
        self.counters.prefill_seconds += seconds * (1 - share)
        self.counters.num_passes += 1
        self.counters.num_sampled_tokens += rows.num_decoded

    def _open(self, job: Job) -> _Conversation:
        slot = self._occupants.index(None)
        prompt = job.new_token_ids.tobytes()
        conversation = _Conversation(slot=slot, job=None, prompt=prompt)
        self._occupants[slot] = conversation
        self._conversations[job.request.rollout_id] = conversation
        self._columns.lengths[slot] = self._columns.cached[slot] = 0
        return conversation

    def _reserve(self, num_tokens: int) -> None:
        """Grows cache and columns, so that each slot holds `num_tokens`."""
        cache = self._decoder.cache
        if num_tokens <= cache.max_tokens:
            return
        shape = self._decoder.weights.shape
        target = max(num_tokens, min(2 * cache.max_tokens, shape.max_positions))
        self._decoder.cache = cache.grown(shape, max_tokens=target)
        for name in ("tokens", "logprobs"):
            old = getattr(self._columns, name)
            new = np.zeros((self.num_slots, self._decoder.cache.max_tokens), dtype=old.dtype)
            new[:, : old.shape[1]] = old
            setattr(self._columns, name, new)

    def _set_stops(self, slot: int, stop_token_ids: Sequence[int]) -> None:
        stops = self._columns.stops
        if len(stop_token_ids) > stops.shape[1]:
            wider = np.full((self.num_slots, len(stop_token_ids)), NO_TOKEN, dtype=np.int32)
            wider[:, : stops.shape[1]] = stops
            self._columns.stops = stops = wider
        stops[slot] = NO_TOKEN
        stops[slot, : len(stop_token_ids)] = stop_token_ids

    def _admit(self) -> _Fed:
        """Moves ready conversations into the batch while there is room; says what to feed."""
        fed, joining, waiting = _Fed(), [], []
        copies: list[tuple[int, int, int]] = []
        room = min(MAX_BATCH, self.num_slots) - self._num_active
        while self._ready and len(joining) < room and fed.num_tokens < MAX_FED_TOKENS:
            conversation = self._ready.popleft()
            if not self._columns.cached[conversation.slot] and not self._share(
                conversation, copies
            ):
                waiting.append(conversation)
            elif self._plan_feed(conversation, fed):
                joining.append(conversation)
            else:
                waiting.append(conversation)
        self._ready.extendleft(reversed(waiting))
        self._copy_prompts(copies)
        self._activate(joining, fed)
        return fed

    def _share(self, conversation: _Conversation, copies: list[tuple[int, int, int]]) -> bool:
        """Whether the conversation may go on: as the first of its prompt, or with a copy."""
        leader = self._leaders.setdefault(conversation.prompt, conversation)
        if leader is conversation:
            return True
        num_shared = len(conversation.prompt) // 4 - 1
        if self._columns.cached[leader.slot] < num_shared:
            return False  # the leader is being fed: once more in the next pass
        if num_shared:
            copies.append((leader.slot, conversation.slot, num_shared))
            self._columns.cached[conversation.slot] = num_shared
            self.counters.num_prompt_tokens_copied += num_shared
        return True

    def _copy_prompts(self, copies: list[tuple[int, int, int]]) -> None:
        if copies:
            table = np.array(copies, dtype=np.int64)
            self._decoder.cache.copy_slots(
                source=table[:, 0], target=table[:, 1], num_tokens=int(table[:, 2].max())
            )

    def _plan_feed(self, conversation: _Conversation, fed: _Fed) -> bool:
        """Plans all pending tokens but the last, or as many as fit; true when all did."""
        slot = conversation.slot
        cached, last = int(self._columns.cached[slot]), int(self._columns.lengths[slot]) - 1
        stop = min(last, cached + MAX_FED_TOKENS - fed.num_tokens)
        if stop > cached:
            fed.pieces.append((slot, cached, stop))
            fed.num_tokens += stop - cached
            is_prompt = conversation.job is not None and conversation.job.request.turn == 0
            if is_prompt:
                self.counters.num_prompt_tokens_fed += stop - cached
            else:
                self.counters.num_observation_tokens_fed += stop - cached
        return stop == last

    def _activate(self, joining: list[_Conversation], fed: _Fed) -> None:
        first, stop = self._num_active, self._num_active + len(joining)
        slots = {c.slot for c in joining}
        outside = [slot for slot in sorted(slots) if slot >= stop]
        holes = [slot for slot in range(first, stop) if slot not in slots]
        moved = self._exchange(holes, outside)
        fed.pieces = [(moved.get(slot, slot), start, end) for slot, start, end in fed.pieces]
        self._num_active = stop

    def _deactivate(self, leaving: list[int]) -> None:
        first = self._num_active - len(leaving)
        gone = set(leaving)
        holes = [slot for slot in leaving if slot < first]
        staying = [slot for slot in range(first, self._num_active) if slot not in gone]
        self._exchange(holes, staying)
        self._num_active = first

    def _exchange(self, left: list[int], right: list[int]) -> dict[int, int]:
        """Exchanges the conversations of two equally long lists of slots; old slot to new."""
        if not left:
            return {}
        moved = dict(zip(left + right, right + left, strict=True))
        used = [slot for slot in moved if self._occupants[slot] is not None]
        source = np.array(used, dtype=np.int64)
        target = np.array([moved[slot] for slot in used], dtype=np.int64)
        num_tokens = int(self._columns.cached[source].max(initial=0))
        self._decoder.cache.copy_slots(source=source, target=target, num_tokens=num_tokens)
        self._columns.move(source=source, target=target)
        occupants = [(moved[slot], self._occupants[slot]) for slot in moved]
        for slot, conversation in occupants:
            self._occupants[slot] = conversation
            if conversation is not None:
                conversation.slot = slot
        return moved

    def _rows(self, fed: _Fed) -> Rows:
        columns, active = self._columns, self._num_active
        slots = [np.arange(active, dtype=np.int64)]
        positions = [columns.lengths[:active] - 1]
        for slot, start, stop in fed.pieces:
            slots.append(np.full(stop - start, slot, dtype=np.int64))
            positions.append(np.arange(start, stop, dtype=np.int64))
        slot, position = np.concatenate(slots), np.concatenate(positions)
        return Rows(
            token_ids=columns.tokens[slot, position].astype(np.int64),
            slots=slot,
            positions=position,
            num_decoded=active,
        )

    def _sample(self, logits: object) -> list[Finished]:
        columns, active = self._columns, self._num_active
        lengths = columns.lengths[:active]
        rows = SamplingRows(
            seeds=columns.seeds[:active],
            positions=lengths,
            temperatures=columns.temperatures[:active],
            top_ps=columns.top_ps[:active],
        )
        token_ids, logprobs = sample(logits, rows)
        places = (np.arange(active), lengths)
        columns.tokens[places] = token_ids
        columns.logprobs[places] = logprobs
        columns.cached[:active] = lengths
        columns.lengths[:active] += 1
        is_stop = (columns.stops[:active] == token_ids[:, None]).any(axis=1)
        is_over = is_stop | (columns.lengths[:active] >= columns.limits[:active])
        is_over |= ~np.isfinite(logprobs)
        leaving = np.flatnonzero(is_over).tolist()
        finished = [self._finish(slot, is_stop=bool(is_stop[slot])) for slot in leaving]
        if leaving:
            self._deactivate(leaving)
        return finished

    def _finish(self, slot: int, *, is_stop: bool) -> Finished:
        columns, conversation = self._columns, self._occupants[slot]
        assert conversation is not None and conversation.job is not None
        job, conversation.job = conversation.job, None
        turn = slice(int(columns.starts[slot]), int(columns.lengths[slot]))
        logprobs = columns.logprobs[slot, turn]
        if not np.isfinite(logprobs[-1]):
            return Finished(
                job=job,
                outcome=NonFiniteLogitsError(
                    f"rollout {job.request.rollout_id}, token {turn.stop - 1}: the logits of "
                    f"policy version {self._version} are not finite; load finite weights"
                ),
            )
        completion = Completion(
            token_ids=read_only(columns.tokens[slot, turn], np.int32),
            logprobs=read_only(logprobs, np.float32),
            finish_reason=FinishReason.STOP if is_stop else FinishReason.LENGTH,
            policy_versions=(
                PolicySpan(policy_version=self._version, start=0, stop=turn.stop - turn.start),
            ),
        )
        return Finished(job=job, outcome=completion)
