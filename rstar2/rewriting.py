"""What is asked of a writing model about a dialogue, and the dialogue with its answers in it.

As the report has it done (§4.1): the responses of the instruction set are written anew, and the
prompts of the chat set. Pure; who is asked, and how often, is `infra.rewriting`'s business. An answer
that does not fit the template, or that teaches reasoning, is refused with a reason, and the dialogue
stays as it was.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rstar2.conversations import Message
from rstar2.dialogues import Dialogue
from rstar2.prompt import SPELLED_TAG
from rstar2.reasoning_markers import reasoning_marker

Part = Literal["responses", "prompts"]
REWRITTEN: Mapping[str, Part] = {"tulu-3": "responses", "nemotron-chat": "prompts"}
"""By source; other dialogues stay as they are."""

RESPONSE_TEXT = (
    "Answer the user's last message. Keep to every instruction and constraint in it exactly, and give "
    "only the answer: no remark on the constraints, no account of how you came to it."
)
PROMPT_TEXT = (
    "Rewrite the user's message that follows. Ask for the same thing, with every fact, number, name and "
    "constraint kept, in clearer and more natural words and in the same language. Do not answer it. "
    "Reply with the rewritten message alone."
)
_ANSWER = re.compile(r"<reason></reason><answer>(?P<text>.*)</answer>", re.DOTALL)


class Refused(ValueError):
    """An answer is not used. The message is one of a few reasons, by which they are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WritingRequest:
    """One question to the writing model."""

    index: int
    """Of the message that its answer stands for."""
    messages: tuple[Mapping[str, str], ...]
    """As the API takes them."""

    def key(self, model: str) -> str:
        """Identity: the same question to the same model is asked once."""
        text = json.dumps([model, self.messages], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def writing_requests(dialogue: Dialogue) -> tuple[WritingRequest, ...]:
    """What is to be asked about a dialogue; nothing where its source stays as it is."""
    part = REWRITTEN.get(dialogue.source)
    if part is None or any(m.role == "tool" for m in dialogue.messages):
        return ()
    role = "user" if part == "prompts" else "assistant"
    return tuple(
        WritingRequest(index=index, messages=tuple(_asked(dialogue.messages, index, part)))
        for index, message in enumerate(dialogue.messages)
        if message.role == role
    )


def rewritten(dialogue: Dialogue, answers: Mapping[int, str]) -> Dialogue:
    """The dialogue with the answers in place of its messages, the messages as they were beside it."""
    messages = list(dialogue.messages)
    for index, answer in answers.items():
        messages[index] = _message(messages[index], answer.strip())
    return replace(dialogue, messages=tuple(messages), original=dialogue.messages)


def _asked(messages: Sequence[Message], index: int, part: Part) -> list[Mapping[str, str]]:
    if part == "prompts":
        return [
            {"role": "system", "content": PROMPT_TEXT},
            {"role": "user", "content": messages[index].content},
        ]
    before = [{"role": m.role, "content": _plain(m)} for m in messages[:index]]
    return [{"role": "system", "content": RESPONSE_TEXT}, *before]


def _plain(message: Message) -> str:
    """What was said, without our tags."""
    said = _ANSWER.fullmatch(message.content)
    return said["text"] if said else message.content


def _message(old: Message, answer: str) -> Message:
    if not answer:
        raise Refused("empty answer")
    if (marker := reasoning_marker({}, [answer])) is not None:
        raise Refused(f"teaches reasoning: {marker}")
    if SPELLED_TAG.search(answer):
        raise Refused("spells a tag of the template")
    if old.role == "user":
        return replace(old, content=answer)
    return replace(old, content=f"<reason></reason><answer>{answer}</answer>")
