"""Ctrl-C while a run trains: said at once, over within seconds, never lost.

Python raises `KeyboardInterrupt` wherever the main thread is; in a callback of the interpreter, or in a
library that treats it as a failed call, it is swallowed and the training goes on. A run may end at
any moment without losing anything, so what does not end by itself is ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from types import FrameType

GRACE_SECONDS = 10.0
"""Prefect tells its server how the flow run ended: up to 8 s on a busy machine."""
INTERRUPTED = 130
_NOTICE = b"\nstopping; the same command goes on where it was (again Ctrl-C: at once)\n"


@contextmanager
def stops_when_interrupted(grace_seconds: float = GRACE_SECONDS) -> Iterator[None]:
    """The first SIGINT raises `KeyboardInterrupt` and ends the process after `grace_seconds`; the
    second ends it at once. Call it in the main thread."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        os.write(2, _NOTICE)  # the interrupted code may hold the lock of sys.stderr
        timer = Timer(grace_seconds, os._exit, [INTERRUPTED])
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is stop:
            signal.signal(signal.SIGINT, before)
