"""Ctrl-C of a run, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

SWALLOWS = """
import sys, time
from flows.commands.interrupt import stops_when_interrupted

def trains():
    print("runs", flush=True)
    while True:
        time.sleep(0.05)

with stops_when_interrupted(grace_seconds=float(sys.argv[1])):
    while True:
        try:
            trains()
        except KeyboardInterrupt:
            print("swallowed", flush=True)
"""
ENDS = """
import time
from flows.commands.interrupt import stops_when_interrupted

try:
    with stops_when_interrupted(grace_seconds=60):
        print("runs", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("cleaned up")
"""


def interrupted(program: str, *arguments: str, times: int = 1) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)  # two signals that wait at once are one
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_an_interrupt_is_said_at_once_and_lets_the_run_end_by_itself() -> None:
    code, out, err = interrupted(ENDS)
    assert (code, out) == (0, "cleaned up\n")
    assert "stopping; the same command goes on where it was" in err


@pytest.mark.parametrize(("grace_seconds", "times"), [("0.2", 1), ("60", 2)])
def test_an_interrupt_that_was_swallowed_ends_the_run_all_the_same(
    grace_seconds: str, times: int
) -> None:
    code, out, _ = interrupted(SWALLOWS, grace_seconds, times=times)
    assert code == 130
    assert out.startswith("swallowed")
