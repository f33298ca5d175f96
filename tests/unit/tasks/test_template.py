from __future__ import annotations

from pathlib import Path

import pytest
from chat_tokenizer import make_tokenizer

from infra.object_store import open_store
from rstar2.chat import open_chat
from rstar2.config import ChatConfig
from rstar2.prompt import PYTHON_TOOL
from tasks.ledger import Ledger, LedgerError
from tasks.template import check_template

FULL = open_chat(make_tokenizer(), ChatConfig(style="full"), [PYTHON_TOOL])
BARE = open_chat(make_tokenizer(), ChatConfig(style="bare", prefill_reason=False), [PYTHON_TOOL])


def test_a_run_goes_on_under_the_template_it_was_started_with(tmp_path: Path) -> None:
    for _ in range(2):
        check_template(Ledger(open_store(str(tmp_path)), "demo"), FULL)


def test_another_template_is_refused_with_the_lines_that_differ(tmp_path: Path) -> None:
    ledger = Ledger(open_store(str(tmp_path)), "demo")
    check_template(ledger, FULL)
    with pytest.raises(LedgerError, match="another chat template") as refused:
        check_template(ledger, BARE)
    assert "-<|im_start|>system" in str(refused.value)
