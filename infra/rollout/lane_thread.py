"""A lane's thread: runs what is sent to it between passes, hands finished turns back.

Everything a lane does happens on this thread, with torch on one thread and without gradients.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from infra.rollout.decoder import Weights
from infra.rollout.lane import Counters, Finished, Job, Lane
from infra.rollout.self_test import DeterminismError

Result = TypeVar("Result")
_ANSWERS = (DeterminismError,)
"""What a call may raise without ending the lane."""


class LaneThread:
    """Owns one `Lane`. `deliver` and `fail` are called on its thread."""

    def __init__(
        self,
        weights: Weights,
        *,
        name: str,
        num_slots: int,
        policy_version: int,
        deliver: Callable[[list[Finished]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._inbox: queue.SimpleQueue[Callable[[Lane], None]] = queue.SimpleQueue()
        self._deliver = deliver
        self._fail = fail
        self._is_stopping = False
        self._lane = Lane(weights, num_slots=num_slots, policy_version=policy_version)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.call(lambda _: None).result()

    @property
    def counters(self) -> Counters:
        return self._lane.counters

    def begin(self, job: Job) -> None:
        """Queues a turn, after what was sent before."""
        self._inbox.put(lambda lane: lane.begin(job))

    def drop(self, rollout_id: str) -> None:
        """Forgets a rollout, after what was sent before."""
        self._inbox.put(lambda lane: lane.drop(rollout_id))

    def call(self, work: Callable[[Lane], Result]) -> Future[Result]:
        """Runs `work` on the lane's thread; the future holds its result, or what it raised."""
        future: Future[Result] = Future()

        def run(lane: Lane) -> None:
            try:
                future.set_result(work(lane))
            except BaseException as error:  # whatever it is: a caller waits for the future
                future.set_exception(error)
                if not isinstance(error, _ANSWERS):
                    raise

        self._inbox.put(run)
        return future

    def stop(self) -> None:
        """Ends the thread after the work at hand."""

        def end(_: Lane) -> None:
            self._is_stopping = True

        self._inbox.put(end)
        self._thread.join()

    def _run(self) -> None:
        try:
            # Holds for this thread alone, once it has been read here: until then a thread of its
            # own takes over, at its first parallel loop, what another thread set last.
            torch.set_num_threads(1)
            torch.get_num_threads()
            with torch.inference_mode():
                self._loop()
        except BaseException as error:  # whatever ends the thread: rollouts wait for its turns
            self._fail(error)
            raise

    def _loop(self) -> None:
        lane = self._lane
        while not self._is_stopping:
            self._take_inbox()
            if lane.has_work and not self._is_stopping:
                finished = lane.step()
                if finished:
                    self._deliver(finished)

    def _take_inbox(self) -> None:
        """Runs all that was sent; waits for something when there is nothing to decode."""
        lane = self._lane
        if not lane.has_work:
            began = time.perf_counter()
            work = self._inbox.get()
            lane.counters.idle_seconds += time.perf_counter() - began
            work(lane)
        while not self._is_stopping:
            try:
                work = self._inbox.get_nowait()
            except queue.Empty:
                return
            work(lane)
