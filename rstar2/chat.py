"""The conversation as token ids: ChatML as Qwen3 writes it, with `<reason>`, `<answer>` and tools.

Reads a tokenizer once and keeps a private copy of it; writes nothing. Token-in, token-out: a
conversation only ever grows by appending, and what the policy sampled is never tokenised again.

Three kinds of text are encoded differently. The template is ours: its tags become their ids. Text
of others (questions, tool output) can spell a tag but never be one: inside it the string of any
added token is cut and becomes ordinary ids that decode to the same text, in its own Unicode form.
Assistant messages of SFT data keep the tags of `MESSAGE_TAGS` and nothing else.

Deliberately not here: the loop over turns (`agent_loop`), parsing of calls (`tool_calls`), answers
(`grading`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from rstar2.config import ChatConfig
from rstar2.conversations import Message, check_conversation, prefill
from rstar2.observation import format_observation
from rstar2.prompt import INSTRUCTION_TEXT, ToolSchema, system_text
from rstar2.types import Mask, TokenIds, ToolResult, read_only

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
MESSAGE_TAGS = (
    *("<tool_call>", "</tool_call>", "<answer>", "</answer>"),
    *("<reason>", "</reason>", "<think>", "</think>"),
)
"""Tags that an assistant message may hold as tags; any other added token in it is plain text."""

CUT_MARKER = {"full": "\n[... cut ...]\n", "bare": "..."}
_PROBE = "2 + 2\nÉ e\u0301 Ω≈√2 你好 🎉"
_UNICODE_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Chat:
    """A tokenizer and a way to render. Safe to share between threads; see `open_chat`."""

    config: ChatConfig
    tools: tuple[ToolSchema, ...]
    stop_token_ids: tuple[int, ...]
    """`<|im_end|>` first, then the tokenizer's own end of text where it is another id."""
    _tagged: Tokenizer = field(repr=False)
    _plain: Tokenizer = field(repr=False)
    """The same without its added tokens and Unicode normal form: it cannot produce a tag, and what
    it encodes decodes to the same text."""
    _added: re.Pattern[str] = field(repr=False)
    """Finds the start of every added token's string, overlapping ones too."""
    _tag_ids: Mapping[str, int] = field(repr=False)
    is_dialogue: bool = False
    """See `of_dialogue`."""

    def of_dialogue(self, tools: Sequence[ToolSchema]) -> Chat:
        """The same for SFT conversations that pose no problem: with tools of their own, asked for no
        box, and a system message of theirs follows ours."""
        return replace(self, tools=tuple(tools), is_dialogue=True)

    def render_prompt(self, question: str) -> TokenIds:
        """The conversation up to the first token that the policy samples."""
        return read_only(self._opening(question) + self._assistant_header(), np.int32)

    def render_observation(
        self, results: Sequence[ToolResult]
    ) -> tuple[TokenIds, tuple[ToolResult, ...]]:
        """The user turn that answers a turn's calls, with the next generation prompt.

        It follows a sampled `<|im_end|>`, whose newline it brings. The results come back with
        `is_truncated` set where a text was cut to `observation_max_tokens`.
        """
        ids, cuts = self._observation([self.format_observation(result) for result in results])
        seen = tuple(
            replace(result, is_truncated=result.is_truncated or is_cut)
            for result, is_cut in zip(results, cuts, strict=True)
        )
        return read_only(ids, np.int32), seen

    def render_conversation(self, messages: Sequence[Message]) -> tuple[TokenIds, Mask]:
        """Token ids of an SFT conversation, and the mask: true on assistant tokens, `<|im_end|>` in.

        One that begins with a user message is rendered as a rollout of that question is, token by
        token. One that begins with a system message is rendered as it stands. Raises `ValueError`
        where `check_conversation` does.
        """
        ids: list[int] = []
        mask: list[bool] = []
        for is_sampled, part in self.conversation_parts(messages):
            ids += part
            mask += [is_sampled] * len(part)
        return read_only(ids, np.int32), read_only(mask, np.bool_)

    def encode_whole(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a rendered text in one piece, every tag in it a tag, and the characters of each."""
        encoding = self._tagged.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, token_ids: TokenIds) -> str:
        """Text of sampled tokens, tags kept."""
        text: str = self._tagged.decode([int(i) for i in token_ids], skip_special_tokens=False)
        return text

    def format_observation(self, result: ToolResult) -> str:
        """The text that answers one call, before it is cut."""
        return format_observation(result, style=self.config.style)

    def conversation_parts(self, messages: Sequence[Message]) -> Iterator[tuple[bool, list[int]]]:
        """The ids of a conversation piece by piece, and whether a piece is the assistant's."""
        check_conversation(messages, self.config)
        tool_texts: list[str] = []
        for index, message in enumerate(messages):
            follows = messages[index + 1].role if index + 1 < len(messages) else None
            if message.role == "system":
                yield False, self._system(message.content)
            elif message.role == "user" and index == 0:
                yield False, self._opening(message.content) + self._assistant_header()
            elif message.role == "user":
                yield False, self._template("\n") + self._turn("user", message.content)
                yield False, self._template("\n") + self._assistant_header()
            elif message.role == "tool":
                tool_texts.append(message.content)
                if follows != "tool":
                    yield False, self._observation(tool_texts)[0]
                    tool_texts = []
            else:
                sampled = self._tagged_text(message.content[len(prefill(self.config)) :])
                yield True, [*sampled, self.stop_token_ids[0]]

    def _opening(self, question: str) -> list[int]:
        if self.config.style == "bare":
            return self._turn("user", question) + self._template("\n")
        asked = "" if self.is_dialogue else INSTRUCTION_TEXT
        head = f"{self._system_head}{IM_END}\n{IM_START}user\n{asked}"
        return self._template(head) + self._foreign(question) + self._template(f"{IM_END}\n")

    @property
    def _system_head(self) -> str:
        return f"{IM_START}system\n{system_text(self.tools)}"

    def _system(self, content: str) -> list[int]:
        if not self.is_dialogue or self.config.style == "bare":
            return self._turn("system", content)
        head = self._template(f"{self._system_head}\n\n")
        return head + self._foreign(content) + self._template(IM_END)

    def _turn(self, role: str, content: str) -> list[int]:
        head, tail = self._template(f"{IM_START}{role}\n"), self._template(IM_END)
        return head + self._foreign(content) + tail

    def _assistant_header(self) -> list[int]:
        return self._template(f"{IM_START}assistant\n{prefill(self.config)}")

    def _observation(self, texts: Sequence[str]) -> tuple[list[int], list[bool]]:
        inner = "\n" if self.config.style == "full" else ""
        ids = self._template(f"\n{IM_START}user\n")
        cuts = []
        for number, text in enumerate(texts):
            between = inner if number else ""
            body, is_cut = self._cut(text)
            ids += self._template(f"{between}<tool_response>{inner}") + body
            ids += self._template(f"{inner}</tool_response>")
            cuts.append(is_cut)
        return ids + self._template(f"{IM_END}\n") + self._assistant_header(), cuts

    def _cut(self, text: str) -> tuple[list[int], bool]:
        """Ids of a tool text, its middle replaced by a marker where they are too many."""
        ids, offsets = self._foreign_offsets(text)
        limit = self.config.observation_max_tokens
        if len(ids) <= limit:
            return ids, False
        marker = self._foreign(CUT_MARKER[self.config.style])
        room = max(limit - len(marker), 0)
        head, tail = (room + 1) // 2, len(ids) - room // 2
        # A character of several ids is kept whole or not at all.
        while head > 0 and offsets[head - 1][1] > offsets[head][0]:
            head -= 1
        while tail < len(ids) and offsets[tail][0] < offsets[tail - 1][1]:
            tail += 1
        return (ids[:head] + marker + ids[tail:])[:limit], True

    def _template(self, text: str) -> list[int]:
        ids: list[int] = self._tagged.encode(text, add_special_tokens=False).ids
        return ids

    def _foreign(self, text: str) -> list[int]:
        return self._foreign_offsets(text)[0]

    def _foreign_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ordinary ids of a text, and the characters [start, stop) of each."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        text = text.encode(errors="replace").decode()
        for start, piece in self._pieces(text):
            encoding = self._plain.encode(piece, add_special_tokens=False)
            ids += encoding.ids
            offsets += [(start + a, start + b) for a, b in encoding.offsets]
        return ids, offsets

    def _pieces(self, text: str) -> Iterator[tuple[int, str]]:
        """The text cut after the first character of every added token's string in it."""
        start = 0
        for match in self._added.finditer(text):
            yield start, text[start : match.start() + 1]
            start = match.start() + 1
        if start < len(text):
            yield start, text[start:]

    def _tagged_text(self, text: str) -> list[int]:
        """Ids of an assistant message: the tags of `MESSAGE_TAGS` are tags, all else is text."""
        ids: list[int] = []
        # A tag that the tokenizer does not know is text like its surroundings.
        pattern = "|".join(map(re.escape, self._tag_ids))
        for part in re.split(f"({pattern})", text) if pattern else [text]:
            ids += [self._tag_ids[part]] if part in self._tag_ids else self._foreign(part)
        return ids


def open_chat(
    tokenizer: PreTrainedTokenizerFast, config: ChatConfig, tools: Sequence[ToolSchema]
) -> Chat:
    """A chat over a private copy of the tokenizer, so that nothing else can change it under threads.

    Raises `ValueError` for a tokenizer without ChatML's tokens, or one whose ids of two texts side
    by side do not decode to the two texts (a prefix space, letters made small): appending would
    change the text.
    """
    tree = json.loads(tokenizer.backend_tokenizer.to_str())
    tree |= {"truncation": None, "padding": None, "post_processor": None}
    tagged = Tokenizer.from_str(json.dumps(tree))
    exact = _without_unicode_forms(tree["normalizer"])
    plain = Tokenizer.from_str(json.dumps(tree | {"added_tokens": [], "normalizer": exact}))
    added = {token["content"]: int(token["id"]) for token in tree["added_tokens"]}
    for text in (IM_START, IM_END):
        if text not in added:
            raise ValueError(
                f"the tokenizer has no added token {text}: expected one with ChatML's tokens; add "
                "them with tokenizer.add_special_tokens and resize the model's embeddings"
            )
    _check_appends(tagged, plain)
    end_of_text = tokenizer.eos_token_id
    others = [end_of_text] if end_of_text not in (None, added[IM_END]) else []
    # Of one character there is no inside to cut; the plain tokenizer spells it in bytes.
    strings = sorted((text for text in added if len(text) > 1), key=len, reverse=True)
    return Chat(
        config=config,
        tools=tuple(tools),
        stop_token_ids=(added[IM_END], *others),
        _tagged=tagged,
        _plain=plain,
        _added=re.compile("|".join(f"(?={re.escape(text)})" for text in strings)),
        _tag_ids={tag: added[tag] for tag in MESSAGE_TAGS if tag in added},
    )


def _without_unicode_forms(normalizer: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A tokenizer's normaliser without its Unicode forms (Qwen's has NFC): they change text."""
    if normalizer is None or normalizer["type"] in _UNICODE_FORMS:
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    kept = [part for each in normalizer["normalizers"] if (part := _without_unicode_forms(each))]
    return {**normalizer, "normalizers": kept}


def _check_appends(tagged: Tokenizer, plain: Tokenizer) -> None:
    ids = plain.encode(_PROBE, add_special_tokens=False).ids
    seen = tagged.decode(ids + ids, skip_special_tokens=False)
    if seen != _PROBE + _PROBE:
        raise ValueError(
            f"the tokenizer turns {_PROBE!r} twice into {seen!r}: expected the same text; use a "
            "byte-level tokenizer without a prefix space (add_prefix_space=False) that changes no letter"
        )
