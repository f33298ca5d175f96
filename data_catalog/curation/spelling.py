"""A question as the curation compares it: its words and formulas, apart from how they are spelled.

Two questions with the same `Spelling.tokens` differ in case, spacing, punctuation, Unicode and LaTeX
spelling, or a courtesy ("please") at most. Numbers, operators, variables and every word of the problem
are content: whatever could change the answer is kept. Pure functions of strings; reads and writes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rstar2 import answers
from rstar2.problems import normalised_question

_TOKEN = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)*|\\[a-z]+|\S")
_APOSTROPHE = re.compile(r"(?<=[^\W\d_])['’](?=[^\W\d_])")
_TEXT = re.compile(r"\\(?:text(?:bf|rm|it|sf)?|mathrm|mathbf|operatorname|mbox) ?\{([^{}]*)\}")
_SHORT_SCRIPT = re.compile(r"([\^_]) ?\{ ?([^\W_]) ?\}")
_DOTS = re.compile(r"\.\.\.|…|\\[lc]dots\b")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,)\]}])")
_SPELLINGS = {
    **{
        r"\leq": r"\le",
        r"\geq": r"\ge",
        r"\neq": r"\ne",
        r"\leqslant": r"\le",
        r"\geqslant": r"\ge",
    },
    **{r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\colon": ":", r"\ast": "*"},
    **{r"\lbrace": "{", r"\rbrace": "}", r"\land": r"\wedge", r"\gets": r"\leftarrow"},
}
_PUNCTUATION = str.maketrans("。？！；：、", ".?!;:,")
_BREAKS = frozenset(".?;:!,")
"""Where a clause may end."""
_QUOTES = frozenset("\"“”„«»`‘’'")
_DASHES = frozenset("-")

_CUES = ("please", "kindly", "thank", "you ", "tell me", "help me", "to know", "step by step")
"""No courtesy is without one of them: most questions are spared the pattern."""
_COURTESY = re.compile(
    r"""(?:^|(?<=[.?!:,]\ ))(?:(?:can|could|would|will)\ you\ )?(?:please\ |kindly\ )?
        (?:tell\ me|help\ me(?:\ to)?|i\ (?:want|need|would\ like)\ to\ know)\ (?=\w)
    | (?:^|(?<=[.?!:,]\ ))(?:can|could|would|will)\ you\ (?:please\ |kindly\ )?
        (?=(?:find|solve|compute|calculate|determine|evaluate|work\ out|figure\ out)\b)
    | (?:please\ |let's\ )?\b(?:think|reason)\ step\ by\ step
        (?:,?\ and\ (?:put|give|write)\ (?:your|the)\ final\ answer\ (?:with)?in\ \\boxed\{[^{}]*\})?
    | \b(?:if\ you\ )?(?:please|kindly)\b
    | \b(?:many\ )?(?:thanks|thank\ you)(?:\ (?:very\ much|so\ much|a\ lot|in\ advance))?\b
    """,
    re.VERBOSE,
)

CRITICAL = frozenset(
    re.findall(
        "[a-z]+",
        """not no none neither nor never without except only unless assume assuming suppose given let
        where such least most more less fewer greater larger smaller greatest largest smallest
        minimum maximum minimal maximal even odd positive negative nonnegative prime composite
        distinct different same equal integer integers real rational next previous half twice
        thrice double triple dozen pair zero two three four five six seven eight nine ten eleven
        twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty
        fifty sixty seventy eighty ninety hundred thousand million percent increasing decreasing
        clockwise counterclockwise""",
    )
)
"""Words that an added phrase never holds: they can change an answer."""


@dataclass(frozen=True, slots=True)
class Spelling:
    tokens: tuple[str, ...]
    """Words, numbers, commands and symbols, in one spelling; without the punctuation of prose."""
    breaks: frozenset[int]
    """Positions in `tokens` at which a clause begins or ends."""


def spell(question: str) -> Spelling:
    """The question in one spelling. Equal for all questions of one identity (`problem_id`)."""
    raw = _TOKEN.findall(_one_spelling(normalised_question(question)))
    tokens: list[str] = []
    breaks = {0}
    for index, token in enumerate(raw):
        if token.isalnum() or token[0].isdigit():
            tokens.append(token)
        elif _is_content(
            token, raw[index - 1] if index else "", "".join(raw[index + 1 : index + 2])
        ):
            tokens.append(_SPELLINGS.get(token, token))
        elif token in _BREAKS:
            breaks.add(len(tokens))
    if not tokens:  # nothing but punctuation: it is all that there is to compare
        tokens = raw
    return Spelling(tuple(tokens), frozenset(breaks | {len(tokens)}))


def is_word(token: str) -> bool:
    """Whether it is a word of prose, and no number, variable, command or symbol."""
    return len(token) > 1 and token[0].isalpha()


def content(tokens: Sequence[str]) -> list[str]:
    """What no rewording touches: numbers, formulas, and the words that turn a problem around."""
    return [t for t in tokens if t in CRITICAL or not (t.isalpha() and (len(t) > 1 or t in "ai"))]


def phrase_words(tokens: Sequence[str]) -> list[str]:
    """The words of prose, with each formula or number between them as one word."""
    words: list[str] = []
    is_open = False
    for token in tokens:
        if len(token) > 1 and token[0].isalpha():
            words.append(token)
            is_open = False
        elif is_open:
            words[-1] += f" {token}"
        else:
            words.append(token)
            is_open = True
    return words


def _one_spelling(text: str) -> str:
    if any(cue in text for cue in _CUES):
        text = _COURTESY.sub(" ", text)
    if "..." in text or "…" in text or "dots" in text:
        text = _DOTS.sub(r" \\dots ", text)
    if not text.isascii() or any(mark in text for mark in "\\~^_{<>"):
        text = (
            answers.clean(text.translate(_PUNCTUATION))
            .replace("<=", r" \le ")
            .replace(">=", r" \ge ")
        )
        text = _SHORT_SCRIPT.sub(r"\1\2", _TEXT.sub(r" \1 ", text))
    if "," in text:
        text = _GROUPED.sub(_without_commas, text)
    return _APOSTROPHE.sub("", text) if "'" in text or "’" in text else text


def _without_commas(match: re.Match[str]) -> str:
    """A number without the commas between its thousands; `(1,234)` may be a pair and stays."""
    before = match.string[match.start() - 1 : match.start()]
    is_part = before.isalnum() or (before and before in ",.([{")
    return match[0] if is_part else match[0].replace(",", "")


def _is_content(token: str, before: str, after: str) -> bool:
    """Whether a symbol belongs to a formula; else it is punctuation of prose."""
    if token in ".?;$" or token in _QUOTES:
        return token == "'" and len(before) == 1 and before.isalpha()  # f'(x)
    if token == "!":
        return bool(before) and not is_word(before) and before not in _BREAKS
    if token == ",":
        return not (is_word(before) or is_word(after) or not before or not after)
    if token == ":":
        return before[:1].isdigit() and after[:1].isdigit()
    if token in _DASHES:
        return not is_word(after) and bool(after)
    return True
