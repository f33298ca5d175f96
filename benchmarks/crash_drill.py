"""One row of the crash matrix: runs that meet the same fault at one phase after the other.

Starts the run, makes the fault where the phase begins, looks at what is left, starts the run again with
the same command until it is complete, and compares it with the undisturbed one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from crash_bench import (
    LIMIT_SECONDS,
    ROOT,
    Bench,
    Deployed,
    Foreground,
    Start,
    wait_for_end,
    wait_for_phase,
)
from crash_checks import committed_rollouts, differences, orphans
from crash_faults import Fault

from infra import services

ORPHAN_SECONDS = 1.0
END = "end"


@dataclass(kw_only=True)
class Drill:
    bench: Bench
    """Its storage is the place in which each run gets one of its own."""
    fault: Fault
    reference: Bench
    """Of the undisturbed run."""
    identity: Callable[[Bench, str], object]
    """Of a stored object, by key: another one where it was written again."""
    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By phase, and at the `end`."""

    def run_through(self, phases: Sequence[str]) -> None:
        """A further run begins where one completes before it has met all phases."""
        left, number = list(phases), 0
        while left:
            number += 1
            left = self._run(replace(self.bench, storage=f"{self.bench.storage}/{number}"), left)

    def _run(self, bench: Bench, left: list[str]) -> list[str]:
        """Starts one run until it is complete; returns the phases that it did not meet."""
        place, ended = left[0], "not started"
        while ended:
            before = self._committed(bench)
            met, ended = self._start(bench, left)
            place, left = met[-1] if met else place, left[len(met) :]
            if again := [k for k, v in before.items() if self.identity(bench, k) != v]:
                self.wrong[place].append(f"sampled again: {', '.join(again)}")
            if not met and (ended or left):
                wrong = f"the resume ended with {ended}" if ended else f"{left[0]} never began"
                self.wrong[place].append(wrong)
                return left[1:]
        if found := differences(bench, self.reference):
            self.wrong[END] += found
        else:
            shutil.rmtree(bench.storage, ignore_errors=True)
        return left

    def _start(self, bench: Bench, left: list[str]) -> tuple[list[str], str]:
        """One start: the phases at which the fault was made, and how it ended."""
        planned = left[:1] if self.fault.ends_run else left
        bench.plan(planned)
        serving = _serve(bench) if self.fault.is_deployed else 0
        start: Start = Deployed(bench) if self.fault.is_deployed else Foreground(bench)
        met = []
        for index, phase in enumerate(planned):
            pid = wait_for_phase(bench, start, index)
            if not pid:
                break
            self.fault.strike(bench, start, pid)
            met.append(phase)
        ended = wait_for_end(start)
        if met:
            self.fault.mend(bench)
            self._look_at(bench, met[-1], ended, serving=serving)
        return met, ended

    def _look_at(self, bench: Bench, phase: str, ended: str, *, serving: int) -> None:
        """Right after the end of a start that met the fault."""
        deadline = time.monotonic() + ORPHAN_SECONDS
        while (left_behind := orphans(bench, serving=serving)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left_behind:
            self.wrong[phase].append(f"left behind: {', '.join(left_behind)}")
        if ended and not self.fault.ends_run:
            self.wrong[phase].append(f"ended the run: {ended}")

    def _committed(self, bench: Bench) -> dict[str, object]:
        return {key: self.identity(bench, key) for key in committed_rollouts(bench.open_store())}


def _serve(bench: Bench) -> int:
    """Process id of what serves the deployments, as `rstar2 up` starts or finds it."""
    subprocess.run(
        [sys.executable, "-m", "flows.commands", "up"],
        env=bench.environment,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=LIMIT_SECONDS,
    )
    pid = services.deployments_health(bench.settings).pid
    assert pid is not None, "rstar2 up serves the deployments"
    return pid
