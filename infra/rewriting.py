"""Has dialogues rewritten by a model, so many questions at a time, and nothing asked twice.

Every answer is appended to a journal and synced before it counts; started again, only what the journal
lacks is asked. Questions that were under way when the process died are asked anew: nobody knows their
answers. The journal belongs to one process at a time.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from infra.chat_endpoint import Declined, Endpoint, Unanswered, complete, open_client
from rstar2.dialogues import Dialogue
from rstar2.rewriting import Refused, WritingRequest, rewritten, writing_requests


class JournalError(ValueError):
    """The journal cannot be used. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewriting:
    """The dialogues, rewritten where that could be done, and what became of the questions."""

    dialogues: tuple[Dialogue, ...]
    num_rewritten: int
    num_asked: int
    """Questions of this start; the others were in the journal."""
    kept_as_they_were: Mapping[str, int]
    """Dialogues that were to be rewritten and were not, by reason."""
    num_unanswered: int
    """Questions that failed on every attempt: the same command asks them again."""


def rewrite_dialogues(
    dialogues: Sequence[Dialogue],
    endpoint: Endpoint,
    journal: Path,
    *,
    in_flight: int,
    on_answer: Callable[[int, int], None],
) -> Rewriting:
    """`on_answer` is told how many questions are answered, of how many."""
    with _opened(journal) as (file, answers):
        asked: dict[str, WritingRequest] = {}
        for dialogue in dialogues:
            for request in writing_requests(dialogue):
                asked.setdefault(request.key(endpoint.model), request)
        pending = {key: request for key, request in asked.items() if key not in answers}
        work = _Work(file=file, answers=answers, asked=frozenset(asked), on_answer=on_answer)
        asyncio.run(_ask_all(pending, endpoint, work, in_flight))
    counts: Counter[str] = Counter()
    done = tuple(_applied(d, endpoint.model, answers, counts) for d in dialogues)
    return Rewriting(
        dialogues=done,
        num_rewritten=counts.pop("", 0),
        num_asked=len(pending),
        kept_as_they_were=dict(counts),
        num_unanswered=sum(key not in answers for key in asked),
    )


Answer = Mapping[str, str]
"""`text` of an answer, or why the endpoint `declined`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    file: IO[bytes]
    answers: dict[str, Answer]
    asked: frozenset[str]
    on_answer: Callable[[int, int], None]

    def keep(self, key: str, answer: Answer) -> None:
        line = json.dumps({"key": key, **answer}, ensure_ascii=False) + "\n"
        self.file.write(line.encode(errors="replace"))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.answers[key] = answer
        self.on_answer(len(self.answers.keys() & self.asked), len(self.asked))


async def _ask_all(
    pending: Mapping[str, WritingRequest], endpoint: Endpoint, work: _Work, in_flight: int
) -> None:
    questions = iter(pending.items())
    async with open_client(endpoint, in_flight=in_flight) as client:

        async def ask() -> None:
            for key, request in questions:
                try:
                    text = await complete(client, endpoint, request.messages)
                except Unanswered:
                    continue
                except Declined as reason:
                    work.keep(key, {"declined": str(reason)})
                    continue
                work.keep(key, {"text": text})

        tasks = [asyncio.create_task(ask()) for _ in range(min(in_flight, len(pending)))]
        try:
            await asyncio.gather(*tasks)
        finally:  # the first error ends them all
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _applied(
    dialogue: Dialogue, model: str, answers: Mapping[str, Answer], counts: Counter[str]
) -> Dialogue:
    """The dialogue rewritten, or as it was with the reason counted; "" counts those rewritten."""
    requests = writing_requests(dialogue)
    if not requests:
        return dialogue
    found = {request.index: answers.get(request.key(model)) for request in requests}
    texts = {
        index: answer["text"] for index, answer in found.items() if answer and "text" in answer
    }
    if len(texts) < len(requests):
        declined = [
            answer["declined"] for answer in found.values() if answer and "declined" in answer
        ]
        counts[f"declined: {declined[0]}" if declined else "unanswered"] += 1
        return dialogue
    try:
        done = rewritten(dialogue, texts)
    except Refused as reason:
        counts[str(reason)] += 1
        return dialogue
    counts[""] += 1
    return done


@contextmanager
def _opened(journal: Path) -> Iterator[tuple[IO[bytes], dict[str, Answer]]]:
    """The journal for appending, and what is in it; a half-written last line is cut off."""
    with journal.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalError(
                f"{journal} belongs to a process that is still asking; wait for it, or stop it"
            ) from None
        file.seek(0)
        answers: dict[str, Answer] = {}
        whole = 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            key, answer = _journal_row(line, journal)
            answers[key] = answer
        file.truncate(whole)
        yield file, answers


def _journal_row(line: bytes, journal: Path) -> tuple[str, Answer]:
    try:
        row = json.loads(line)
        return str(row["key"]), {k: str(row[k]) for k in ("text", "declined") if k in row}
    except (ValueError, KeyError, TypeError):
        raise JournalError(
            f"{journal}: {line[:80]!r} is no row of a journal; expected the file that an earlier start "
            "of the same command wrote: remove it to ask everything anew"
        ) from None
