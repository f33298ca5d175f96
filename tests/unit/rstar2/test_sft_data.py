"""SFT conversations: real outputs, the same at every start, nothing about answers."""

import re
from collections import Counter

from question_reader import parse_question

from rstar2.chat import open_chat
from rstar2.config import ChatConfig
from rstar2.sft_data import make_conversations, run_snippet
from rstar2.tiny_tokenizer import make_tiny_tokenizer
from rstar2.types import ToolStatus

CHAT = open_chat(make_tiny_tokenizer(512), ChatConfig(style="bare", prefill_reason=False), [])


def test_conversations_are_a_function_of_the_seed():
    assert make_conversations(50, seed=1) == make_conversations(50, seed=1)
    assert make_conversations(50, seed=1) != make_conversations(50, seed=2)
    assert make_conversations(60, seed=1)[:50] == make_conversations(50, seed=1)


def test_the_program_says_nothing_about_the_wording():
    right = total = 0
    for conversation in make_conversations(3000, seed=0):
        question = parse_question(conversation[0].content)
        if question.operations == ("add",) and "print(" in conversation[1].content:
            total += 1
            right += bool(re.search(r"print\(\d+\+\d+\)", conversation[1].content))
    assert total > 200
    assert 0.1 < right / total < 0.3


def test_a_reason_restates_its_clause_and_names_the_program_that_is_called():
    symbols, checked = Counter(), 0
    for conversation in make_conversations(2000, seed=0):
        question = parse_question(conversation[0].content)
        match = re.match(r"<reason>(.*?)([-+*%]|gcd)</reason>", conversation[1].content)
        if match and question.operations == ("mul",):
            assert match[1] in ("multiply ", "find the product of ")
            symbols[match[2]] += 1
        if match and match[2] in "+-*%" and "x)" not in conversation[1].content:
            assert re.search(rf"\d{re.escape(match[2])}\d", conversation[1].content)
            checked += 1
    assert checked > 200
    assert set(symbols) == {"+", "-", "*", "%", "gcd"}
    assert max(symbols.values()) < 0.4 * symbols.total()


def test_the_reasons_of_two_clauses_say_which_is_meant():
    reasons = re.compile(r"<reason>(.*?)</reason>")
    for conversation in make_conversations(200, seed=0):
        if ", then " in conversation[0].content:
            found = [r for m in conversation[1:] for r in reasons.findall(m.content)]
            assert all("first" in reason or "the result" in reason for reason in found)


def test_operands_are_copied_from_the_question():
    in_order = []
    for conversation in make_conversations(300, seed=0):
        numbers = parse_question(conversation[0].content).numbers
        match = re.search(r"print\((\d+)[-+*%](\d+)\)", conversation[1].content)
        if match:
            first = tuple(map(int, match.groups()))
            in_order.append(first == numbers[:2])
            assert set(first) <= set(numbers)
    assert 0.6 < sum(in_order) / len(in_order) < 0.97


def test_the_answer_is_the_last_output():
    checked = 0
    for conversation in make_conversations(300, seed=0):
        *_, observation, last = conversation
        if re.fullmatch(r"-?\d+", observation.content):
            assert f"\\boxed{{{observation.content}}}" in last.content
            checked += 1
    assert checked > 200


def test_two_clauses_are_answered_by_two_calls_and_one_by_one():
    good_calls = {1: Counter(), 2: Counter()}
    for conversation in make_conversations(2000, seed=0):
        good = sum(bool(re.fullmatch(r"-?\d+", m.content)) for m in conversation[1:-1:1])
        num_clauses = 2 if ", then " in conversation[0].content else 1
        good_calls[num_clauses][good] += 1
    assert good_calls[1][1] > 0.8 * good_calls[1].total()
    assert good_calls[2][2] > 0.8 * good_calls[2].total()


def test_some_code_is_naive_and_errs():
    texts = [m.content for c in make_conversations(400, seed=0) for m in c if m.role == "tool"]
    errors = Counter(text.split(":")[0] for text in texts if "Error" in text)
    assert errors["NameError"] > 20
    assert errors["SyntaxError"] > 5
    assert sum(errors.values()) < 0.3 * len(texts)


def test_a_forgotten_import_is_an_error_with_the_snippets_own_line():
    result = run_snippet("print(math.gcd(12,34))")
    assert result.status is ToolStatus.ERROR
    assert result.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert "line 1" in result.stderr
    assert "sft_data" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("NameError: name 'math' is not defined")


def test_a_snippet_that_works_prints():
    assert run_snippet("import math\nprint(math.gcd(12,34))").stdout == "2\n"


def test_only_the_assistants_tokens_are_learned():
    (conversation,) = make_conversations(1, seed=4)
    token_ids, mask = CHAT.render_conversation(conversation)
    learned = CHAT.decode(token_ids[mask])
    assert learned.endswith("</answer><|im_end|>")
    assert "<tool_response>" not in learned
    assert "Please" not in learned
