"""Judges batches of rows in processes of their own, in order: one batch each at a time.

A worker lives on its pipe: when the other end is closed, by the end of the work or because the process
that reads is gone, it ends. Knows nothing of what a batch is.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, cycle, islice
from multiprocessing.connection import Connection
from typing import Any, TypeVar

WORTH_STARTING = 3
"""Batches for each worker from which starting them pays."""
Batch = TypeVar("Batch")
Result = TypeVar("Result")


class WorkerError(RuntimeError):
    """A worker ended before its work did."""


def in_order(
    judge: Callable[[Batch], Result], batches: Iterable[Batch], *, num_workers: int
) -> Iterator[Result]:
    """`map` over worker processes; a few batches are not worth the seconds that starting takes."""
    batches = iter(batches)
    first = list(islice(batches, WORTH_STARTING * num_workers))
    if num_workers < 2 or len(first) < WORTH_STARTING * num_workers:
        yield from map(judge, chain(first, batches))
        return
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(judge)) for _ in range(num_workers)]
        busy: list[Connection] = []
        for worker, batch in zip(cycle(workers), chain(first, batches), strict=False):
            if len(busy) == num_workers:
                yield _result(busy.pop(0))
            _give(worker, batch)
            busy.append(worker)
        yield from map(_result, busy)


@contextmanager
def _worker(judge: Callable[[Batch], Result]) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of others
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, judge), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        here.close()
        process.join()


def _work(connection: Connection, judge: Callable[[Batch], Result]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of whoever reads, whose end is ours
    while True:
        try:
            batch = connection.recv()
        except (EOFError, OSError):  # nobody is there to give more
            return
        result = judge(batch)
        try:
            connection.send(result)
        except OSError:  # nobody waits for it
            return


def _give(worker: Connection, batch: object) -> None:
    try:
        worker.send(batch)
    except OSError:
        raise WorkerError(_GONE) from None


def _result(worker: Connection) -> Any:
    try:
        return worker.recv()
    except (EOFError, OSError):
        raise WorkerError(_GONE) from None


_GONE = (
    "a process that judges rows ended before its work was done: expected it to live as long as this "
    "one. Nothing was written; start again, with more memory where it was killed"
)
