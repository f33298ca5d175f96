"""How a run's conversations are rendered: kept with the run, so that a resumed one is shown the same.

Writes the rendering of one fixed conversation at the first start and compares it at every later one.
The configuration says which style; a newer version of the code could still render it differently.
"""

from __future__ import annotations

import difflib

from rstar2.chat import Chat
from rstar2.conversations import Message, prefill
from tasks.ledger import Ledger, LedgerError

QUESTION = "What is 2 + 2?"
CALL = '<tool_call>{"name": "python", "arguments": {"code": "2 + 2"}}</tool_call>'
KEY = "chat-template.txt"


def check_template(ledger: Ledger, chat: Chat) -> None:
    """Raises `LedgerError` with the lines that differ where the run was started with another."""
    now = rendering(chat)
    key = f"{ledger.run}/{KEY}"
    if ledger.store.put_if_absent(key, now.encode()):
        return
    before = ledger.store.get_bytes(key).decode()
    if before == now:
        return
    lines = difflib.unified_diff(
        before.splitlines(), now.splitlines(), "then", "now", lineterm="", n=0
    )
    raise LedgerError(
        f"the run {ledger.run!r} was started with another chat template:\n  "
        + "\n  ".join(lines)
        + "\ngo on with the version of rstar2 it was started with, or start a new run with another "
        "name (--run NAME)"
    )


def rendering(chat: Chat) -> str:
    """A question, a call, its observation and an answer, as the policy sees them."""
    prompt = chat.decode(chat.render_prompt(QUESTION))
    start = prefill(chat.config)
    messages = [
        Message(role="user", content=QUESTION),
        Message(role="assistant", content=f"{start}{CALL}"),
        Message(role="tool", content="4"),
        Message(role="assistant", content=f"{start}<answer>\\boxed{{4}}</answer>"),
    ]
    return f"{prompt}\n\n{chat.decode(chat.render_conversation(messages)[0])}\n"
