"""The laptop problems: right answers, no shortcuts, splits that never meet, the lengths they need."""

import pytest
from question_reader import parse_question

from rstar2.arithmetic import (
    ArithmeticProblemsError,
    Question,
    answer,
    candidate_programs,
    clause_words,
    generate_problems,
    is_own_program,
)
from rstar2.arithmetic_wordings import KNOWN_CLAUSES, OPERATIONS, UNSEEN_CLAUSES
from rstar2.chat import open_chat
from rstar2.config import ChatConfig, EvaluationConfig
from rstar2.conversations import Message
from rstar2.problems import has_prefix, is_held_out, problem_id
from rstar2.profiles import load_config
from rstar2.sft_data import make_conversations, run_snippet
from rstar2.tiny_tokenizer import make_tiny_tokenizer

SHARES = EvaluationConfig().shares
POOLS = [
    (split, seed, share)
    for split, share in (("train", 0.0417), ("train", 0.4584), ("held-out", 0.35), ("unseen", 0.35))
    for seed in (0, 1)
]


def pool(split, seed, share, num_problems=480):
    return generate_problems(split, num_problems, {"arithmetic/two-call": share}, seed)


@pytest.mark.parametrize(("split", "seed", "share"), POOLS)
def test_no_other_program_gives_the_right_answer(split, seed, share):
    shortcuts = []
    for problem in pool(split, seed, share):
        question = parse_question(problem.question)
        for program in candidate_programs(question):
            if str(program.value) == problem.answer and not is_own_program(question, program):
                shortcuts.append((problem.question, program))
    assert shortcuts == []


def test_candidates_of_a_one_clause_question_are_all_programs_on_its_numbers():
    question = Question(operations=("sub",), numbers=(90, 12), text="")
    values = {program.operations: program.value for program in candidate_programs(question)}
    one_call = {operations for operations in values if len(operations) == 1}
    assert one_call == {(name,) for name in OPERATIONS}
    assert values[("add", "half")] == 51
    assert ("sub", "add") not in values
    assert ("half", "add") not in values


def test_candidates_of_two_clauses_are_all_pairs_of_programs_on_all_splits():
    question = Question(operations=("mul", "add"), numbers=(12, 34, 56), text="")
    programs = list(candidate_programs(question))
    binary = {"add", "sub", "mul", "mod", "gcd"}
    pairs = {p.operations for p in programs if len(p.operations) == 2}
    assert pairs == {(first, second) for first in binary for second in binary}
    assert [p.value for p in programs if p.operations == ("sub", "mul")] == [
        -22 * 56,
        -44 * 34,
        -22 * 12,
    ]


def test_the_same_operations_on_other_numbers_are_another_way():
    question = Question(operations=("add", "mul"), numbers=(12, 34, 56), text="")
    own = [p for p in candidate_programs(question) if is_own_program(question, p)]
    assert [(p.operands, p.value) for p in own] == [((12, 34), 46 * 56)]


def test_answer_is_what_the_calls_print():
    for problem in pool("held-out", 3, 0.35, num_problems=200):
        question = parse_question(problem.question)
        value, left = str(question.numbers[0]), [str(n) for n in question.numbers[1:]]
        for name in question.operations:
            operation = OPERATIONS[name]
            other = left.pop(0) if operation.num_operands == 2 else ""
            value = run_snippet(operation.snippet.format(a=value, b=other)).stdout.strip()
        assert value == problem.answer


def test_answers_of_known_questions():
    def solved(text):
        return answer(parse_question(text))

    assert solved("Please decrease 385 by 52.") == 333
    assert solved("Please take the gcd of 12 and 34.") == 2
    assert solved("Please multiply 58 by 70, then find the sum of the result and 42.") == 4102
    assert solved("Please multiply 44 by 39, then take the digit sum of the result.") == 15


@pytest.mark.parametrize(("split", "seed", "share"), POOLS)
def test_generation_is_a_function_of_its_arguments(split, seed, share):
    assert pool(split, seed, share) == pool(split, seed, share)
    assert pool(split, seed, share) != pool(split, seed + 7, share)


def test_the_hash_of_a_question_decides_its_split():
    train = pool("train", 0, 0.4584) + pool("train", 1, 0.0417)
    held_out = generate_problems("held-out", 512, SHARES, 0)
    assert not any(is_held_out(p.problem_id) for p in train)
    assert all(is_held_out(p.problem_id) for p in held_out)
    assert all(p.problem_id == problem_id(p.question) for p in train + held_out)


def test_no_held_out_or_unseen_question_is_in_sft_data():
    asked = {problem_id(c[0].content) for c in make_conversations(2000, seed=0)}
    assert not any(is_held_out(hash_) for hash_ in asked)
    assert not asked & {p.problem_id for p in pool("unseen", 0, 0.35)}


def test_wordings_never_trained_on_share_no_clause_with_the_known_ones():
    known = {clause for clauses in KNOWN_CLAUSES.values() for clause in clauses}
    unseen = {clause for clauses in UNSEEN_CLAUSES.values() for clause in clauses}
    assert len(known) == len(unseen) == 12
    assert not known & unseen


def test_shares_are_counted_exactly_and_named_in_the_source():
    problems = generate_problems("held-out", 512, SHARES, 0)
    two_call = [p for p in problems if p.source.startswith("arithmetic/two-call/")]
    one_call = [p for p in problems if p.source.startswith("arithmetic/one-call/")]
    assert (len(two_call), len(one_call)) == (179, 333)
    assert {p.source for p in one_call} == {
        f"arithmetic/one-call/{name}" for name in ("add", "sub", "mul", "mod", "gcd", "dsum")
    }
    assert len({p.problem_id for p in problems}) == 512


def count_of(prefix, problems):
    return sum(has_prefix(p.source, prefix) for p in problems)


def test_several_shares_are_counted_by_largest_remainder():
    shares = {f"arithmetic/one-call/{name}": 0.25 for name in ("add", "sub", "mul")}
    problems = generate_problems("train", 6, shares, 0)
    assert [count_of(prefix, problems) for prefix in shares] == [2, 2, 1]


def test_a_kind_belongs_to_the_longest_prefix_that_names_it():
    shares = {"arithmetic/one-call": 0.5, "arithmetic/one-call/gcd": 0.1}
    problems = generate_problems("train", 100, shares, 0)
    assert count_of("arithmetic/one-call/gcd", problems) == 10
    assert count_of("arithmetic/one-call", problems) == 60


def test_where_every_one_call_kind_has_a_share_two_call_problems_fill_up():
    problems = generate_problems("train", 100, {"arithmetic/one-call": 0.5}, 0)
    assert count_of("arithmetic/two-call", problems) == 50


def test_unseen_wordings_have_a_source_of_their_own():
    problems = generate_problems("unseen", 20, SHARES, 0)
    assert {p.source.split("/")[0] for p in problems} == {"arithmetic-unseen"}


def test_a_share_of_an_unknown_kind_is_refused():
    with pytest.raises(ArithmeticProblemsError, match="no kind of problem has this source prefix"):
        generate_problems("train", 10, {"arithmetic/three-call": 0.5}, 0)


def test_more_problems_than_there_are_questions_is_refused():
    with pytest.raises(ArithmeticProblemsError, match="distinct questions in the split"):
        generate_problems("held-out", 600, {"arithmetic/one-call/dsum": 1.0}, 0)


def test_differences_have_no_remainder_shortcut():
    for problem in pool("train", 0, 0.0):
        question = parse_question(problem.question)
        if question.operations == ("sub",):
            assert question.numbers[0] > 2 * question.numbers[1]


def shortest_solution(question, chat):
    """Response tokens of the shortest correct conversation: the right calls, then the answer."""
    messages = [Message(role="user", content=question.text)]
    value, left = str(question.numbers[0]), [str(n) for n in question.numbers[1:]]
    for name in question.operations:
        operation = OPERATIONS[name]
        other = left.pop(0) if operation.num_operands == 2 else ""
        code = operation.snippet.format(a=value, b=other).replace("\n", "\\n")
        call = f'{{"name": "python", "arguments": {{"code": "{code}"}}}}'
        value = run_snippet(code.replace("\\n", "\n")).stdout.strip()
        messages.append(Message(role="assistant", content=f"<tool_call>{call}</tool_call>"))
        messages.append(Message(role="tool", content=value))
    messages.append(Message(role="assistant", content=f"<answer>\\boxed{{{value}}}</answer>"))
    return len(chat.render_conversation(messages)[0]) - len(chat.render_prompt(question.text))


@pytest.mark.parametrize(("split", "seed", "share"), POOLS)
def test_stage_one_has_no_room_for_two_calls_and_stage_two_has(split, seed, share):
    config = load_config("laptop")
    tokenizer = make_tiny_tokenizer(config.model.tiny.vocab_size)
    chat = open_chat(tokenizer, ChatConfig.model_validate(config.chat), [])
    lengths = {1: [], 2: []}
    for problem in pool(split, seed, share):
        question = parse_question(problem.question)
        lengths[len(question.operations)].append(shortest_solution(question, chat))
    limit_one = config.stages["rl-1"].max_response_tokens
    limit_two = config.stages["rl-2"].max_response_tokens
    assert max(lengths[1]) <= limit_one < min(lengths[2]), (max(lengths[1]), min(lengths[2]))
    assert max(lengths[2]) <= limit_two


def test_the_words_of_a_clause_end_before_its_first_number():
    question = parse_question("Please multiply 58 by 70, then find the sum of the result and 42.")
    assert clause_words(question, 0) == "multiply "
    assert clause_words(question, 1) == "find the sum of "
