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
from dataclasses import dataclass, field, fields

import numpy as np

from infra.rollout.decoder import Decoder, KeyValueCache, Weights
from infra.rollout.sampling import SamplingRows, sample
from infra.rollout.slots import empty_columns
from rstar2.protocols import GenerateRequest
from rstar2.types import Completion, FinishReason, PolicySpan, TokenIds, read_only

MAX_BATCH = 192
"""Rows decoded in one pass of a lane. Measured: fewer leave more passes half empty at the end, more
push their keys out of the processor's caches."""
MAX_FED_TOKENS = 256
"""Known tokens fed at once between two decode passes, so that decoding goes on beside long ones."""
MAX_FORCED_TOKENS = 32
"""Observations of at most so many tokens go through the decode passes, one token in each: rows
there cost less than a pass of their own. Prompts are fed at once: their group waits for them."""
FIRST_TOKENS = 256
"""Tokens that a slot holds at first; the cache grows when a conversation needs more."""


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


@dataclass(slots=True)
class _Feed:
    """What is done before a decode pass."""

    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    """Tokens to feed: slot, first position, position after."""
    num_tokens: int = 0
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    """Shared prompts: slot that has it, slot that wants it, number of tokens."""


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
        self._columns = empty_columns(self.num_slots, cache.max_tokens)
        self._occupants: list[_Conversation | None] = [None] * self.num_slots
        self._conversations: dict[str, _Conversation] = {}
        self._leaders: dict[bytes, _Conversation] = {}
        self._ready: deque[_Conversation] = deque()
        self._num_active = 0
        self._leaving: set[int] = set()

    @property
    def weights(self) -> Weights:
        return self._decoder.weights

    @property
    def has_work(self) -> bool:
        return self._num_active > len(self._leaving) or bool(self._ready)

    def begin(self, job: Job) -> None:
        """Queues a turn; a rollout not seen before takes a free slot."""
        request = job.request
        conversation = self._conversations.get(request.rollout_id) or self._open(job)
        self._reserve(len(request.token_ids) + request.max_new_tokens)
        conversation.job = job
        self._columns.set_turn(conversation.slot, request, job.new_token_ids)
        self._ready.append(conversation)

    def drop(self, rollout_id: str) -> None:
        """Forgets a rollout, decoding or not, and frees its slot."""
        conversation = self._conversations.pop(rollout_id, None)
        if conversation is None:
            return
        if conversation in self._ready:
            self._ready.remove(conversation)
        elif conversation.slot < self._num_active:
            self._leaving.add(conversation.slot)
        if self._leaders.get(conversation.prompt) is conversation:
            del self._leaders[conversation.prompt]
        self._occupants[conversation.slot] = None

    def step(self) -> list[Finished]:
        """Feeds what waits, then decodes one token of every active conversation."""
        began = time.perf_counter()
        self._admit()
        admitted = time.perf_counter()
        finished = self._decode() if self._num_active else []
        self.counters.prefill_seconds += admitted - began
        self.counters.decode_seconds += time.perf_counter() - admitted
        return finished

    def _open(self, job: Job) -> _Conversation:
        slot = self._occupants.index(None)
        prompt = job.new_token_ids.tobytes()
        conversation = _Conversation(slot=slot, job=None, prompt=prompt)
        self._occupants[slot] = conversation
        self._conversations[job.request.rollout_id] = conversation
        self._columns.clear(slot)
        return conversation

    def _reserve(self, num_tokens: int) -> None:
        """Grows cache and columns, so that each slot holds `num_tokens`."""
        cache = self._decoder.cache
        if num_tokens <= cache.max_tokens:
            return
        shape = self._decoder.weights.shape
        target = max(num_tokens, min(2 * cache.max_tokens, shape.max_positions))
        self._decoder.cache = cache.grown(shape, max_tokens=target)
        self._columns.grow(self._decoder.cache.max_tokens)

    def _admit(self) -> None:
        """Moves ready conversations into the batch while there is room, and feeds them."""
        room = min(MAX_BATCH, self.num_slots) - self._num_active + len(self._leaving)
        feed = _Feed()
        joining: list[_Conversation] = []
        waiting: list[_Conversation] = []
        while self._ready and len(joining) < room and feed.num_tokens < MAX_FED_TOKENS:
            conversation = self._ready.popleft()
            is_known = self._columns.cached[conversation.slot] or self._share(conversation, feed)
            can_join = is_known and self._plan(conversation, feed)
            (joining if can_join else waiting).append(conversation)
        self._ready.extendleft(reversed(waiting))
        self._run(feed)
        if joining or self._leaving:
            self._rearrange(joining)

    def _share(self, conversation: _Conversation, feed: _Feed) -> bool:
        """Whether the conversation may go on: as the first of its prompt, or with a copy."""
        leader = self._leaders.setdefault(conversation.prompt, conversation)
        num_shared = len(conversation.prompt) // 4 - 1
        if leader is conversation or not num_shared:
            return True
        if self._columns.cached[leader.slot] < num_shared:
            return False  # the leader is being fed: once more in the next pass
        feed.copies.append((leader.slot, conversation.slot, num_shared))
        self._columns.cached[conversation.slot] = num_shared
        self.counters.num_prompt_tokens_copied += num_shared
        return True

    def _plan(self, conversation: _Conversation, feed: _Feed) -> bool:
        """Plans what must be fed before decoding, as much as fits; true when all does."""
        slot, job = conversation.slot, conversation.job
        assert job is not None
        is_prompt = job.request.turn == 0
        cached, last = int(self._columns.cached[slot]), int(self._columns.lengths[slot]) - 1
        if not is_prompt and last - cached < MAX_FORCED_TOKENS:
            return True
        stop = min(last, cached + MAX_FED_TOKENS - feed.num_tokens)
        if stop > cached:
            feed.pieces.append((slot, cached, stop))
            feed.num_tokens += stop - cached
            if is_prompt:
                self.counters.num_prompt_tokens_fed += stop - cached
            else:
                self.counters.num_observation_tokens_fed += stop - cached
        return stop == last

    def _run(self, feed: _Feed) -> None:
        columns = self._columns
        if feed.copies:
            table = np.array(feed.copies, dtype=np.int64)
            self._decoder.cache.copy_slots(
                source=table[:, 0], target=table[:, 1], num_tokens=int(table[:, 2].max())
            )
        if feed.pieces:
            sizes = [stop - start for _, start, stop in feed.pieces]
            slots = np.repeat([slot for slot, _, _ in feed.pieces], sizes)
            ranges = [np.arange(start, stop) for _, start, stop in feed.pieces]
            positions = np.concatenate(ranges)
            token_ids = columns.tokens[slots, positions].astype(np.int64)
            self._decoder.feed(token_ids, slots, positions)
            for slot, _, stop in feed.pieces:
                columns.cached[slot] = stop

    def _rearrange(self, joining: list[_Conversation]) -> None:
        """Lets `joining` take the places of those that left the batch, or stand behind it."""
        batch = [slot for slot in range(self._num_active) if slot not in self._leaving]
        batch += [conversation.slot for conversation in joining]
        self._num_active = len(batch)
        self._leaving.clear()
        outside = [slot for slot in batch if slot >= len(batch)]
        holes = sorted(set(range(len(batch))) - set(batch))
        if holes:
            self._exchange(holes, outside)

    def _exchange(self, left: list[int], right: list[int]) -> None:
        """Exchanges the conversations of two equally long lists of slots."""
        moved = dict(zip(left + right, right + left, strict=True))
        used = [slot for slot in moved if self._occupants[slot] is not None]
        source = np.array(used, dtype=np.int64)
        target = np.array([moved[slot] for slot in used], dtype=np.int64)
        num_tokens = int(self._columns.cached[source].max())
        self._decoder.cache.copy_slots(source=source, target=target, num_tokens=num_tokens)
        self._columns.move(source=source, target=target)
        for slot, conversation in [(moved[slot], self._occupants[slot]) for slot in moved]:
            self._occupants[slot] = conversation
            if conversation is not None:
                conversation.slot = slot

    def _decode(self) -> list[Finished]:
        """One pass. Rows whose next token is known already only move on; the others sample."""
        columns, active = self._columns, self._num_active
        positions = columns.cached[:active].copy()
        rows = np.arange(active)
        logits = self._decoder.decode(columns.tokens[rows, positions].astype(np.int64), positions)
        positions += 1
        columns.cached[:active] = positions
        settings = SamplingRows(
            seeds=columns.seeds[:active],
            positions=positions,
            temperatures=columns.temperatures[:active],
            top_ps=columns.top_ps[:active],
        )
        token_ids, logprobs = sample(logits, settings)
        is_new = positions == columns.lengths[:active]
        new, places = rows[is_new], positions[is_new]
        columns.tokens[new, places] = token_ids[is_new]
        columns.logprobs[new, places] = logprobs[is_new]
        columns.lengths[new] += 1
        self.counters.num_passes += 1
        self.counters.num_sampled_tokens += len(new)
        self.counters.num_observation_tokens_fed += active - len(new)
        is_stop = (columns.stops[:active] == token_ids[:, None]).any(axis=1)
        is_over = is_stop | (columns.lengths[:active] >= columns.limits[:active])
        is_over |= ~np.isfinite(logprobs)
        leaving = np.flatnonzero(is_over & is_new).tolist()
        # They keep their places until the next pass, when others may need them.
        self._leaving.update(leaving)
        return [self._finish(slot, is_stop=bool(is_stop[slot])) for slot in leaving]

    def _finish(self, slot: int, *, is_stop: bool) -> Finished:
        columns, conversation = self._columns, self._occupants[slot]
        assert conversation is not None
        assert conversation.job is not None
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
