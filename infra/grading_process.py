"""One answer checked in a process of its own that is killed at its deadline.

For the command line and for tests: needs no daemon, pays half a second for each check that text
alone does not decide. Training checks answers in the sandbox's verify tier, many to a process.
Reads and writes nothing but a pipe to its child.
"""

from __future__ import annotations

import json
import resource
import select
import subprocess
import sys
from typing import IO

from rstar2.grading import grade_exact, grade_mathematics
from rstar2.types import Verdict, VerdictKind

START_SECONDS = 60.0
"""For the child to load sympy, on a busy machine; not a part of the deadline."""
MEMORY_BYTES = 4 << 30
_READY = b"ready\n"


def grade_with_deadline(gold: str, answer: str, seconds: float) -> Verdict:
    """The verdict on an answer; `undecided` where the check crashed or was not done in time."""
    verdict = grade_exact(gold, answer)
    if verdict is not None:
        return verdict
    command = [sys.executable, "-m", "infra.grading_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            return _ask(child, gold, answer, seconds)
        finally:
            child.kill()


def _ask(child: subprocess.Popen[bytes], gold: str, answer: str, seconds: float) -> Verdict:
    if child.stdin is None or child.stdout is None:
        raise ValueError("the child has no pipes: expected stdin and stdout to be PIPE")
    if _line(child.stdout, START_SECONDS) != _READY:
        return _undecided("the checking process did not start")
    try:
        child.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        return _undecided("the checking process died")
    line = _line(child.stdout, seconds)
    if line is None:
        return _undecided(f"not decided within {seconds:g} s")
    if not line.endswith(b"\n"):
        return _undecided("the checking process died")
    kind, reason = json.loads(line)
    return Verdict(kind=VerdictKind(kind), reason=reason)


def _line(stream: IO[bytes], seconds: float) -> bytes | None:
    """The next line, or None after so many seconds; the child writes whole lines."""
    ready, _, _ = select.select([stream], [], [], seconds)
    return stream.readline() if ready else None


def _undecided(reason: str) -> Verdict:
    return Verdict(kind=VerdictKind.UNDECIDED, reason=reason)


def _child() -> None:
    """Loads sympy, says so, reads one pair and answers it."""
    grade_mathematics("x", "x + 1")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    gold, answer = json.loads(sys.stdin.buffer.readline())
    verdict = grade_mathematics(gold, answer)
    sys.stdout.buffer.write(json.dumps([verdict.kind, verdict.reason]).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    _child()
