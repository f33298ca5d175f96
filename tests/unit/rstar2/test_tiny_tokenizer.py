"""The tiny tokenizer: the same ids everywhere, single digits, clauses shared by both kinds."""

import hashlib
import subprocess
import sys

import pytest

from rstar2.tiny_tokenizer import ADDED_TOKENS, make_tiny_tokenizer

TOKENIZER = make_tiny_tokenizer(512)


def tokens(text):
    return TOKENIZER.convert_ids_to_tokens(TOKENIZER.encode(text))


def test_added_tokens_have_the_first_ids_in_order():
    assert TOKENIZER.convert_tokens_to_ids(list(ADDED_TOKENS)) == list(range(len(ADDED_TOKENS)))
    assert TOKENIZER.pad_token == "<|endoftext|>"
    assert len(TOKENIZER) == 512


def test_another_process_makes_the_same_tokenizer():
    code = (
        "import hashlib; from rstar2.tiny_tokenizer import make_tiny_tokenizer as make\n"
        "text = make(512).backend_tokenizer.to_str()\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    text = TOKENIZER.backend_tokenizer.to_str()
    assert printed == hashlib.sha256(text.encode()).hexdigest()


def test_numbers_are_single_digits():
    assert tokens("Please add 807 and 34.")[2:5] == ["8", "0", "7"]


def test_both_kinds_of_question_share_the_tokens_of_a_clause():
    one = tokens("Please multiply 12 by 34.")
    two = tokens("Please multiply 12 by 34, then multiply the result by 56.")
    assert one[1:7] == two[1:7]
    assert two[7] == "ĠthenĠ".join([",", ""])
    assert two[8] == one[1]
    assert two[9] == "theĠresult"


def test_a_call_takes_few_tokens():
    call = '<tool_call>{"name": "python", "arguments": {"code": "print(12+34)"}}</tool_call>'
    assert len(tokens(call)) <= 9


@pytest.mark.parametrize(
    "text",
    [
        "Ω≈√2 你好 🎉",
        "e\u0301 \u1100\u1161 ﬁ",
        "tabs\tand\n\nlines  ",
        "<answer>\\boxed{-7}</answer>",
    ],
)
def test_any_text_survives(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=False) == text
