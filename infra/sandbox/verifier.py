"""Answer checking in bulk: equal text at once, the rest in batches that may hang or die.

Reads and writes nothing: the batch runner is given. A batch is checked by one process that reports
verdict by verdict; where it dies or is stopped, the first pair without a verdict is the offender
and becomes `undecided`, and the pairs after it run again. A fault of the sandbox itself blames
nobody. No pair is ever called wrong for want of a verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from infra.sandbox.protocol import RETRYABLE, SandboxStatus
from rstar2.grading import grade_exact
from rstar2.types import Verdict, VerdictKind

BATCH_PAIRS = 32
UNAVAILABLE_REASON = "the checker was unavailable"
WALL_FACTOR = 4.0
"""Wall limit of a pair over its CPU limit: against a checker that sleeps, not a busy machine."""

Pair = tuple[str, str]
CheckBatch = Callable[[Sequence[Pair]], Awaitable[tuple[list[list[str]], str]]]
"""Verdict records of the first pairs, as far as it came, and the sandbox status it ended with."""


async def grade_pairs(pairs: Sequence[Pair], check_batch: CheckBatch) -> list[Verdict]:
    """One verdict per pair, in order. Pairs that occur more than once are checked once."""
    known: dict[Pair, Verdict] = {}
    open_pairs: list[Pair] = []
    for pair in dict.fromkeys(pairs):
        verdict = _at_once(*pair)
        if verdict is None:
            open_pairs.append(pair)
        else:
            known[pair] = verdict
    batches = [open_pairs[i : i + BATCH_PAIRS] for i in range(0, len(open_pairs), BATCH_PAIRS)]
    answers = await asyncio.gather(*(_grade_batch(batch, check_batch) for batch in batches))
    for batch, verdicts in zip(batches, answers, strict=True):
        known.update(zip(batch, verdicts, strict=True))
    return [known[pair] for pair in pairs]


def _at_once(gold: str, answer: str) -> Verdict | None:
    verdict = grade_exact(gold, answer)
    if verdict is not None:
        return verdict
    try:
        (gold + answer).encode()
    except UnicodeEncodeError:
        return Verdict(kind=VerdictKind.UNDECIDED, reason="not valid Unicode: not checked")
    return None


async def _grade_batch(batch: Sequence[Pair], check_batch: CheckBatch) -> list[Verdict]:
    verdicts: list[Verdict] = []
    while len(verdicts) < len(batch):
        records, status = await check_batch(batch[len(verdicts) :])
        verdicts += [Verdict(kind=VerdictKind(kind), reason=why) for kind, why in records]
        if len(verdicts) == len(batch):
            break
        if status in RETRYABLE:
            rest = len(batch) - len(verdicts)
            undecided = Verdict(kind=VerdictKind.UNDECIDED, reason=UNAVAILABLE_REASON)
            return verdicts + [undecided] * rest
        verdicts.append(Verdict(kind=VerdictKind.UNDECIDED, reason=_offence(status)))
    return verdicts


def _offence(status: str) -> str:
    if status in (SandboxStatus.TIMEOUT_CPU, SandboxStatus.TIMEOUT_WALL):
        return "the check took longer than its deadline"
    return f"the check ended without a verdict ({status})"
