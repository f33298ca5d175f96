"""The laptop's SFT conversations: generated, a function of a seed.

They teach format and tool use, not the problems: the question is one of the training split, but the
program is drawn at random among those that fit the count of numbers, its operands copied from the
question. The one thing they do say is that two clauses ask for two calls. Tool outputs are real: the
snippets come from a fixed list of ours and run in this process. Deliberately does not read files
(`conversations`), batch or train (`infra.trainer`).
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import traceback

from rstar2.arithmetic import Question, call_splits, clause_words, draw_question
from rstar2.arithmetic_wordings import FIRST, ONE_CALL, OPERATIONS, RESULT, TWO_CALL
from rstar2.conversations import Conversation, Message
from rstar2.observation import format_observation
from rstar2.types import ToolResult, ToolStatus

TWO_CLAUSE_SHARE = 0.45
SECOND_CALL_RATE = {1: 0.10, 2: 0.95}
"""By number of clauses, after a first call that worked."""
IN_ORDER_RATE = 0.75
"""Of two-clause questions: the first call takes the numbers that are meant for it. Else any others:
which numbers go into which call is not taught either."""
BUG_RATE = 0.25
RETRY_RATE = 0.80
SAME_PROGRAM_RATE = 0.85
"""Of the retries: the same program, mended; else another program."""
REASON_RATE = 0.80
DOUBLED_ANSWER_RATE = 0.08
MISSING_TAG_RATE = 0.03


def make_conversations(num: int, seed: int) -> tuple[Conversation, ...]:
    """`num` generated conversations, a function of the seed; none asks a held-out question.

    Written for `chat.style = "bare"` without `prefill_reason`, as a tiny model needs it.
    """
    generator = random.Random(f"sft conversations/{seed}")
    return tuple(_conversation(generator) for _ in range(num))


def run_snippet(code: str) -> ToolResult:
    """Runs a snippet of OUR list in this process, with the result the sandbox would give."""
    stdout = io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout):
            exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    except (ArithmeticError, NameError, SyntaxError, TypeError, ValueError) as error:
        return ToolResult(
            status=ToolStatus.ERROR,
            stdout=stdout.getvalue(),
            stderr=_snippet_traceback(error),
        )
    return ToolResult(status=ToolStatus.OK, stdout=stdout.getvalue())


def _snippet_traceback(error: Exception) -> str:
    """The traceback without the frame of this module."""
    entry = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, entry))


def _conversation(generator: random.Random) -> Conversation:
    two_clauses = generator.random() < TWO_CLAUSE_SHARE
    kinds = TWO_CALL if two_clauses else [(name,) for name in ONE_CALL]
    question = draw_question(generator.choice(kinds), "train", generator)
    messages = [Message(role="user", content=question.text)]
    meant, *others = call_splits(question)
    in_order = not others or generator.random() < IN_ORDER_RATE
    operands, left = meant if in_order else generator.choice(others)
    value = _call(messages, question, clause=0, operands=_texts(operands), generator=generator)
    if value is not None and generator.random() < SECOND_CALL_RATE[len(question.operations)]:
        operands_left = (value, *_texts(left))
        value = _call(messages, question, clause=1, operands=operands_left, generator=generator)
    messages.append(Message(role="assistant", content=_answer(value, generator)))
    return tuple(messages)


def _texts(numbers: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(map(str, numbers))


def _call(
    messages: list[Message],
    question: Question,
    *,
    clause: int,
    operands: tuple[str, ...],
    generator: random.Random,
) -> str | None:
    """Adds a call of a random program and what came of it, perhaps a failed one first.

    Returns what the tool printed, or None where it failed and was given up.
    """
    programs = [op.name for op in OPERATIONS.values() if op.num_operands == len(operands)]
    name = generator.choice(programs)
    if generator.random() < BUG_RATE:
        reason = _reason(question, clause, name)
        result = _add_call(messages, _with_bug(name, operands, generator), reason, generator)
        if result.status is ToolStatus.OK:
            return result.stdout.strip()
        if generator.random() >= RETRY_RATE:
            return None
        if generator.random() >= SAME_PROGRAM_RATE:
            name = generator.choice(programs)
    reason = _reason(question, clause, name)
    result = _add_call(messages, _code(name, operands), reason, generator)
    return result.stdout.strip() if result.status is ToolStatus.OK else None


def _reason(question: Question, clause: int, name: str) -> str:
    """The words of the call's clause, then the program that was drawn, right or wrong.

    `multiply *` of a one-clause question; `multiply first*`, then `add the result*` of two.
    """
    if len(question.operations) == 1:
        return clause_words(question, 0) + OPERATIONS[name].symbol
    return clause_words(question, clause) + (FIRST, RESULT)[clause] + OPERATIONS[name].symbol


def _add_call(
    messages: list[Message], code: str, reason: str, generator: random.Random
) -> ToolResult:
    call = json.dumps({"name": "python", "arguments": {"code": code}})
    text = f"<reason>{reason}</reason>" if generator.random() < REASON_RATE else ""
    messages.append(Message(role="assistant", content=f"{text}<tool_call>{call}</tool_call>"))
    result = run_snippet(code)
    messages.append(Message(role="tool", content=format_observation(result, style="bare")))
    return result


def _code(name: str, operands: tuple[str, ...]) -> str:
    return OPERATIONS[name].snippet.format(a=operands[0], b=operands[-1])


def _with_bug(name: str, operands: tuple[str, ...], generator: random.Random) -> str:
    """Naive code: a forgotten import where there is one to forget, else a slip of the pen."""
    code = _code(name, operands)
    if code.startswith("import math\n"):
        return code.removeprefix("import math\n")
    slip = generator.randrange(3)
    if slip == 0:
        return code.removesuffix(")")
    if slip == 1:
        return code.replace("print", "prnt")
    return _code(name, (*operands[:-1], "x"))


def _answer(value: str | None, generator: random.Random) -> str:
    """The final answer: what the tool printed (0 where it never worked), not always well formed."""
    box = f"\\boxed{{{value or 0}}}"
    form = generator.random()
    if form < MISSING_TAG_RATE:
        return box
    if form < MISSING_TAG_RATE + DOUBLED_ANSWER_RATE:
        return f"<answer>{box}</answer><answer>{box}</answer>"
    return f"<answer>{box}</answer>"
