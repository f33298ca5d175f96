"""Stops a run exactly when it enters a phase, so that a fault can be made there; changes nothing else.

Python loads this file at the start of every process that has its folder on PYTHONPATH. In the process
of a run it reads the plan that `RSTAR2_CRASH_PLAN` names: phases in order, each a list of `[part of a
file's path, functions, count]`. When the last of a phase is entered for the count-th time, the process
id is written to the plan's folder and the process stops itself (SIGSTOP) until somebody goes on with
it. Observes calls by `sys.settrace`: the product has no hooks for this and needs none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

PLAN = os.environ.get("RSTAR2_CRASH_PLAN")


class Observer:
    """Follows the calls of the main thread through the phases of a plan."""

    def __init__(self, phases: list[list[tuple[str, str, int]]], folder: Path) -> None:
        self._phases = phases
        self._folder = folder
        self._phase = 0
        self._place = 0
        self._num_calls = 0
        self._expect()

    def _expect(self) -> None:
        self._path, functions, self._count = self._phases[self._phase][self._place]
        self._functions = frozenset(functions.split("|"))

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code.co_name not in self._functions or self._path not in code.co_filename:
            return
        self._num_calls += 1
        if self._num_calls == self._count:
            self._arrive()

    def _arrive(self) -> None:
        self._num_calls = 0
        self._place += 1
        if self._place < len(self._phases[self._phase]):
            self._expect()
            return
        reached = self._phase
        self._phase, self._place = self._phase + 1, 0
        if self._phase < len(self._phases):
            self._expect()
        else:
            sys.settrace(None)
        self._stop(reached)

    def _stop(self, phase: int) -> None:
        partial = self._folder / f"{phase}.partial"
        partial.write_text(str(os.getpid()))
        partial.rename(self._folder / f"hit-{phase}")
        os.kill(os.getpid(), signal.SIGSTOP)


def _is_run() -> bool:
    """Whether this process will run the recipe, in the foreground or for a deployment."""
    words = sys.orig_argv
    return "prefect.engine" in words or ("flows.commands" in words and "run" in words)


if PLAN and _is_run() and Path(PLAN).is_file():
    sys.settrace(Observer(json.loads(Path(PLAN).read_text()), Path(PLAN).parent))
