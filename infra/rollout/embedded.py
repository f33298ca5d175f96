"""The embedded engine: turns sampled inside this process, for `transformers` Qwen3 and Llama.

Continuous batching over `rollout.max_rows` conversations that keep their keys and values from turn
to turn: a conversation is prefilled once, later turns feed only what is new. Tools run while other
conversations decode. Further conversations wait until one is released.

One lane (a thread and a share of the rows) for each of `num_threads`, each on one thread of torch:
products this small lose more by waking a second thread than they gain. A rollout is a function of
weights, request and seed: neither lanes, tool latency, order of arrival nor other rows change a
bit of it (see `decoder`), which `self_test` checks with the loaded model at every start.

Does not talk to other processes, and holds no rollout over a change of weights (strict on-policy).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from infra.rollout.lane import Counters, Finished, Job
from infra.rollout.lane_thread import LaneThread
from infra.rollout.model_weights import read_shape, read_weights
from infra.rollout.self_test import check_determinism, check_parity
from rstar2.config import RolloutConfig
from rstar2.protocols import GenerateRequest
from rstar2.types import Completion, TokenIds, read_only


class RequestError(ValueError):
    """A request that the engine cannot serve, refused before anything is decoded."""


class SequenceTooLongError(RequestError):
    """Tokens and `max_new_tokens` exceed the model's longest sequence."""


class RolloutsInFlightError(RuntimeError):
    """New weights were offered while rollouts were held: they would mix two policies."""


class EngineClosedError(RuntimeError):
    """The engine is closed, or a lane of it has failed."""


@dataclass(kw_only=True, slots=True, eq=False)
class _Held:
    """A rollout from its first request to its release."""

    lane: int | None = None
    """None while it waits for a free row."""
    history: TokenIds = field(default_factory=lambda: read_only([], np.int32))
    """Tokens of the last request and its completion."""
    next_turn: int = 0


@dataclass(kw_only=True, slots=True, eq=False)
class _Waiter:
    job: Job
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Completion]


class EmbeddedEngine:
    """A `Generate`. Callable from any event loop; `close` it when done."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        config: RolloutConfig,
        num_threads: int,
        policy_version: int = 0,
    ) -> None:
        self.num_rows = config.max_rows
        """Rollouts that are held at once."""
        self._model = model
        self._shape = read_shape(model)
        self.policy_version = policy_version
        weights = read_weights(model, model.state_dict())
        num_lanes = min(num_threads, config.max_rows)
        shares = [len(part) for part in np.array_split(np.arange(config.max_rows), num_lanes)]
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._waiters: dict[str, _Waiter] = {}
        self._unadmitted: OrderedDict[str, Job] = OrderedDict()
        self._free = shares
        self._failure: BaseException | None = None
        self._lanes = [
            LaneThread(
                weights,
                name=f"rollout-lane-{index}",
                num_slots=share,
                policy_version=policy_version,
                deliver=self._deliver,
                fail=self._fail,
            )
            for index, share in enumerate(shares)
        ]
        # A lane sets torch to one thread for itself, which also is the default of later threads.
        torch.set_num_threads(num_threads)
        check_parity(model, weights)
        self.self_test()

    async def __call__(self, request: GenerateRequest, /) -> Completion:
        """The next completion of a rollout.

        Raises `RequestError` for what cannot be served and `EngineClosedError`. Cancelling it
        releases the rollout.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        with self._lock:
            job = self._accept(request)
            self._waiters[request.rollout_id] = _Waiter(job=job, loop=loop, future=future)
            self._dispatch(request.rollout_id, job)
        try:
            return await future
        except asyncio.CancelledError:
            self.release(request.rollout_id)
            raise

    def release(self, rollout_id: str, /) -> None:
        """Frees the rollout's row; a turn that is being sampled is given up. Unknown: ignored."""
        with self._lock:
            held = self._held.pop(rollout_id, None)
            if held is None:
                return
            waiter = self._waiters.pop(rollout_id, None)
            if held.lane is None:
                del self._unadmitted[rollout_id]
            else:
                self._lanes[held.lane].drop(rollout_id)
                self._free[held.lane] += 1
                self._admit_next()
        if waiter is not None:
            error = RequestError(f"rollout {rollout_id} was released while a turn was sampled")
            _settle_on(waiter.loop, [(waiter.future, error)])

    def update_weights(self, state_dict: Mapping[str, torch.Tensor], version: int) -> None:
        """Copies new weights into every lane and flushes all keys and values.

        Raises `RolloutsInFlightError` while any rollout is held, `WeightsError` where the state
        dict does not fit; both leave the old weights live.
        """
        weights = read_weights(self._model, state_dict)
        with self._lock:
            self._check_open()
            if self._held:
                names = ", ".join(sorted(self._held)[:3])
                raise RolloutsInFlightError(
                    f"{len(self._held)} rollouts are held ({names}…): their later tokens would "
                    f"come from policy version {version}; release them before new weights"
                )
            loads = [lane.call(lambda lane: lane.load(weights, version)) for lane in self._lanes]
            self.policy_version = version
        # Not under the lock: a lane may need it first, to hand back what was released meanwhile.
        for load in loads:
            load.result()

    def self_test(self) -> None:
        """Checks with the loaded weights that a token's bits are those of any pass it is in.

        Raises `DeterminismError`, which names the remedy.
        """
        with self._lock:
            self._check_open()
        self._lanes[0].call(lambda lane: check_determinism(lane.weights)).result()

    def counters(self) -> Counters:
        """Counts and times of all lanes together since the engine began."""
        total = Counters()
        for lane in self._lanes:
            total = total.plus(lane.counters)
        return total

    @property
    def num_lanes(self) -> int:
        return len(self._lanes)

    @property
    def num_held(self) -> int:
        """Rollouts between their first request and their release."""
        return len(self._held)

    def close(self) -> None:
        """Ends the lanes; turns that are being sampled fail with `EngineClosedError`."""
        self._fail(EngineClosedError("the engine was closed"))
        for lane in self._lanes:
            lane.stop()

    def _accept(self, request: GenerateRequest) -> Job:
        """Checks the request against what is held for its rollout; returns its new tokens."""
        self._check_open()
        self._check_settings(request)
        held = self._held.get(request.rollout_id, _Held())
        where = f"rollout {request.rollout_id}, turn {request.turn}"
        if request.rollout_id not in self._held and request.turn != 0:
            raise RequestError(
                f"{where}: the rollout is not held (released, or never begun); begin with turn 0"
            )
        if request.rollout_id in self._waiters:
            raise RequestError(f"{where}: a turn is being sampled already; await it first")
        if request.turn != held.next_turn:
            raise RequestError(
                f"{where}: expected turn {held.next_turn}; release a rollout to begin it anew"
            )
        old = held.history
        if not np.array_equal(request.token_ids[: len(old)], old):
            raise RequestError(
                f"{where}: the tokens do not begin with the {len(old)} of the turn before; "
                "a conversation only grows: pass request and completion, then what is new"
            )
        self._held[request.rollout_id] = held
        return Job(request=request, new_token_ids=request.token_ids[len(old) :])

    def _check_settings(self, request: GenerateRequest) -> None:
        where = f"rollout {request.rollout_id}, turn {request.turn}"
        ids, shape = request.token_ids, self._shape
        num_tokens = len(ids) + request.max_new_tokens
        if not len(ids) or request.max_new_tokens < 1:
            raise RequestError(
                f"{where}: {len(ids)} tokens and max_new_tokens = {request.max_new_tokens}; "
                "expected at least 1 of each"
            )
        if num_tokens > shape.max_positions:
            raise SequenceTooLongError(
                f"{where}: {len(ids)} tokens + max_new_tokens {request.max_new_tokens} = "
                f"{num_tokens}, but the model's longest sequence is {shape.max_positions}; "
                "lower max_response_tokens, or take a model with more positions"
            )
        if ids.min() < 0 or ids.max() >= shape.vocab_size:
            raise RequestError(
                f"{where}: token ids from {ids.min()} to {ids.max()}, expected 0 to "
                f"{shape.vocab_size - 1}; the tokenizer is not this model's"
            )
        if request.temperature < 0 or not 0 < request.top_p <= 1 or not 0 <= request.seed < 2**63:
            raise RequestError(
                f"{where}: temperature {request.temperature}, top_p {request.top_p}, seed "
                f"{request.seed}; expected temperature >= 0, 0 < top_p <= 1, seed of 63 bits"
            )

    def _dispatch(self, rollout_id: str, job: Job) -> None:
        held = self._held[rollout_id]
        if held.lane is None:
            self._unadmitted[rollout_id] = job
            self._admit_next()
        else:
            self._lanes[held.lane].begin(job)

    def _admit_next(self) -> None:
        """Gives free rows to those that wait longest, on the emptiest lane."""
        while self._unadmitted and any(self._free):
            rollout_id, job = self._unadmitted.popitem(last=False)
            index = int(np.argmax(self._free))
            self._free[index] -= 1
            self._held[rollout_id].lane = index
            self._lanes[index].begin(job)

    def _deliver(self, finished: list[Finished]) -> None:
        """Called by lanes. What was released meanwhile has no waiter, or another's job."""
        settled: dict[asyncio.AbstractEventLoop, list[_Settled]] = {}
        with self._lock:
            for item in finished:
                rollout_id = item.job.request.rollout_id
                waiter = self._waiters.get(rollout_id)
                if waiter is None or waiter.job is not item.job:
                    continue
                del self._waiters[rollout_id]
                if isinstance(item.outcome, Completion):
                    held, sampled = self._held[rollout_id], item.outcome.token_ids
                    held.history = np.concatenate([item.job.request.token_ids, sampled])
                    held.next_turn += 1
                settled.setdefault(waiter.loop, []).append((waiter.future, item.outcome))
        for loop, outcomes in settled.items():
            _settle_on(loop, outcomes)

    def _fail(self, error: BaseException) -> None:
        """Called by a lane that ends on an error, and by `close`: nobody waits for ever."""
        with self._lock:
            self._failure = self._failure or error
            waiters = list(self._waiters.values())
            self._waiters.clear()
        for waiter in waiters:
            _settle_on(waiter.loop, [(waiter.future, EngineClosedError(_describe(error)))])

    def _check_open(self) -> None:
        if self._failure is not None:
            raise EngineClosedError(_describe(self._failure)) from self._failure


_Settled = tuple[asyncio.Future[Completion], Completion | Exception]


def _settle_on(loop: asyncio.AbstractEventLoop, outcomes: list[_Settled]) -> None:
    # A loop that is closed has nobody left who waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, outcomes)


def _settle(outcomes: list[_Settled]) -> None:
    for future, outcome in outcomes:
        if future.done():  # cancelled while the outcome was on its way
            continue
        if isinstance(outcome, Completion):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)


def _describe(error: BaseException) -> str:
    if isinstance(error, EngineClosedError):
        return f"{error}; open a new engine"
    return f"a lane of the engine failed: {error!r}; see the log, then open a new engine"
