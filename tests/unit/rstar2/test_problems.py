"""Identity of problems, and draws that a resumed step repeats exactly."""

import subprocess
import sys
from collections import Counter

import pytest

from rstar2.problems import (
    DrawError,
    draw_problems,
    has_prefix,
    is_held_out,
    problem_id,
    problem_set_hash,
)
from rstar2.types import Problem


def problems(num_one=40, num_two=10):
    kinds = ["one-call/add"] * num_one + ["two-call/mul>add"] * num_two
    return tuple(
        Problem(
            problem_id=problem_id(f"question {i}"),
            question=f"question {i}",
            answer=str(i),
            source=f"arithmetic/{kind}",
        )
        for i, kind in enumerate(kinds)
    )


def draw(pool, step, *, round=0, num=8, shares=None, seed=0, drawn=(), stage="rl-1"):
    return draw_problems(
        pool,
        stage=stage,
        step=step,
        round=round,
        num=num,
        shares=shares or {},
        seed=seed,
        drawn=drawn,
    )


def ids(drawn):
    return [problem.problem_id for problem in drawn]


def test_problem_id_ignores_case_spaces_and_unicode_form():
    assert problem_id("  What is\n2+2? ") == problem_id("what is 2+2?")
    assert problem_id("Cafe\u0301") == problem_id("CAF\u00c9")
    assert problem_id("what is 2+2?") != problem_id("what is 2+3?")


def test_problem_id_is_sixteen_hex_digits_and_never_changes():
    assert problem_id("What is 2+2?") == "61a3385003d9b9d3"


def test_about_a_quarter_is_held_out():
    held_out = sum(is_held_out(problem_id(f"question {i}")) for i in range(4000))
    assert 900 < held_out < 1100


def test_set_hash_ignores_order_and_sees_answers():
    pool = problems()
    assert problem_set_hash(pool) == problem_set_hash(pool[::-1])
    assert problem_set_hash(pool) != problem_set_hash(pool[1:])


def test_prefix_ends_at_a_slash():
    assert has_prefix("arithmetic/two-call/mul", "arithmetic/two-call")
    assert not has_prefix("arithmetic/two-calls", "arithmetic/two-call")


def test_a_draw_repeats_and_other_steps_seeds_and_stages_differ():
    pool = problems()
    assert draw(pool, 3) == draw(pool, 3)
    assert draw(pool, 3) == draw(pool[::-1], 3)
    assert ids(draw(pool, 3)) != ids(draw(pool, 4))
    assert ids(draw(pool, 3)) != ids(draw(pool, 3, seed=1))
    assert ids(draw(pool, 3)) != ids(draw(pool, 3, stage="rl-2"))


def test_a_draw_does_not_depend_on_the_hash_seed_of_python():
    code = (
        "from rstar2.problems import *; from rstar2.types import Problem\n"
        "pool = [Problem(problem_id=problem_id(str(i)), question=str(i), answer='1', source='a/b')"
        " for i in range(30)]\n"
        "print([p.question for p in draw_problems(pool, stage='s', step=2, round=1, num=9,"
        " shares={'a': .5}, seed=0, drawn=[pool[0].problem_id])])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_nothing_repeats_within_an_epoch():
    pool = problems(num_one=40, num_two=0)
    epoch = [i for step in range(1, 6) for i in ids(draw(pool, step))]
    assert len(set(epoch)) == 40


def test_shares_are_exact_at_every_step():
    pool = problems()
    for step in range(1, 12):
        drawn = draw(pool, step, shares={"arithmetic/two-call": 0.25})
        assert Counter("two-call" in p.source for p in drawn) == {True: 2, False: 6}


def test_fractions_of_a_problem_are_spread_over_the_steps():
    pool = problems()
    counts = [
        sum("two-call" in p.source for p in draw(pool, step, shares={"arithmetic/two-call": 0.2}))
        for step in range(1, 11)
    ]
    assert set(counts) == {1, 2}
    assert sum(counts) == 16


def test_a_small_stratum_starts_its_next_epoch_without_repeats_in_a_step():
    pool = problems(num_one=40, num_two=3)
    for step in range(1, 20):
        drawn = draw(pool, step, shares={"arithmetic/two-call": 0.25})
        assert len(set(ids(drawn))) == 8
        assert sum("two-call" in p.source for p in drawn) == 2


def test_a_share_without_problems_goes_to_the_rest():
    drawn = draw(problems(num_one=20, num_two=0), 1, shares={"arithmetic/two-call": 0.5})
    assert len(drawn) == 8


def test_shares_of_which_no_problem_exists_are_refused():
    with pytest.raises(DrawError, match="no problem can be drawn"):
        draw(problems(num_one=4, num_two=0), 1, shares={"arithmetic/two-call": 1.0})


FOUR_KINDS = ("alpha", "beta", "gamma", "delta")


def four_kinds(num=120):
    """`num` problems of each of four kinds."""
    return tuple(
        Problem(problem_id=problem_id(text), question=text, answer="1", source=f"mix/{kind}")
        for kind in FOUR_KINDS
        for text in (f"{kind} {i}" for i in range(num))
    )


def kind_counts(drawn):
    return Counter(problem.source.removeprefix("mix/") for problem in drawn)


@pytest.mark.parametrize("num", [3, 5, 8, 24])
@pytest.mark.parametrize(
    "shares",
    [
        (0.3, 0.3, 0.3),
        (0.13, 0.17, 0.29),
        (0.05, 0.07, 0.11),
        (0.26, 0.34, 0.4),  # nothing left for the rest
        (0.45, 0.1, 0.05),
    ],
)
def test_several_shares_are_exact_at_every_step_and_over_all_steps(num, shares):
    pool = four_kinds()
    expected = dict(zip(FOUR_KINDS, (*shares, 1 - sum(shares)), strict=True))
    by_prefix = {f"mix/{kind}": share for kind, share in zip(FOUR_KINDS, shares, strict=False)}
    total = Counter()
    for step in range(1, 61):
        drawn = draw(pool, step, num=num, shares=by_prefix)
        assert len(set(ids(drawn))) == num
        counts = kind_counts(drawn)
        total += counts
        for kind, share in expected.items():
            assert abs(counts[kind] - share * num) < 1
            assert abs(total[kind] - share * num * step) < 1.5


def test_several_shares_repeat_nothing_within_an_epoch():
    shares = {"mix/alpha": 0.3, "mix/beta": 0.3, "mix/gamma": 0.3}
    drawn = [
        i for step in range(1, 81) for i in ids(draw(four_kinds(), step, num=5, shares=shares))
    ]
    assert len(set(drawn)) == len(drawn) == 400


def test_equal_shares_by_largest_remainder_start_with_the_longest_prefix():
    shares = {"mix/alpha": 0.25, "mix/beta": 0.25, "mix/gamma": 0.25}
    drawn = draw(four_kinds(), 1, num=6, shares=shares)
    assert kind_counts(drawn) == {"alpha": 2, "gamma": 2, "beta": 1, "delta": 1}


def test_a_longer_prefix_takes_its_problems_out_of_the_shorter_ones_share():
    shares = {"mix": 0.75, "mix/alpha": 0.25}
    for step in range(1, 9):
        assert kind_counts(draw(four_kinds(), step, num=8, shares=shares))["alpha"] == 2


def test_what_a_small_share_lacks_is_drawn_from_the_others():
    pool = four_kinds()[:122]  # all of alpha, two of beta
    for step in range(1, 9):
        drawn = draw(pool, step, num=8, shares={"mix/beta": 0.5})
        assert kind_counts(drawn) == {"alpha": 6, "beta": 2}
        assert len(set(ids(drawn))) == 8


def test_a_share_of_zero_is_never_drawn():
    pool = four_kinds(3)
    first = draw(pool, 1, num=6, shares={"mix/alpha": 0.0})
    second = draw(pool, 1, round=1, num=6, drawn=ids(first), shares={"mix/alpha": 0.0})
    assert kind_counts(first + second) == {"beta": 3, "gamma": 3, "delta": 3}


def test_a_refill_with_several_shares_repeats_nothing_and_gives_each_its_part():
    shares = {"mix/alpha": 0.5, "mix/beta": 0.25, "mix/gamma": 0.125}
    for step in range(1, 21):
        first = ids(draw(four_kinds(), step, num=16, shares=shares))
        second = draw(four_kinds(), step, round=1, num=8, drawn=first, shares=shares)
        assert kind_counts(second) == {"alpha": 4, "beta": 2, "gamma": 1, "delta": 1}
        assert not set(ids(second)) & set(first)


def test_a_refill_of_exhausted_shares_goes_on_with_what_is_left():
    pool = four_kinds(4)
    shares = {"mix/alpha": 0.5, "mix/beta": 0.5}
    first = ids(draw(pool, 1, num=6, shares=shares))
    second = ids(draw(pool, 1, round=1, num=6, drawn=first, shares=shares))
    assert len(second) == 2  # gamma and delta have no share
    third = draw(pool, 1, round=2, num=6, drawn=first + second, shares=shares)
    assert third == ()


def test_rounds_of_a_step_never_repeat_a_problem():
    pool = problems()
    first = ids(draw(pool, 5))
    second = ids(draw(pool, 5, round=1, num=6, drawn=first))
    third = ids(draw(pool, 5, round=2, num=6, drawn=first + second))
    assert len(set(first + second + third)) == 8 + 6 + 6
    assert second == ids(draw(pool, 5, round=1, num=6, drawn=first))


def test_a_refill_keeps_the_shares_on_average():
    pool = problems(num_one=200, num_two=200)
    first = ids(draw(pool, 1))
    shares = {"arithmetic/two-call": 0.1}
    drawn = [
        p
        for step in range(1, 201)
        for p in draw(pool, step, round=1, num=5, drawn=first, shares=shares)
    ]
    assert 70 < sum("two-call" in p.source for p in drawn) < 130


def test_a_refill_without_what_was_drawn_is_refused():
    with pytest.raises(ValueError, match="pass the ids of the problems"):
        draw(problems(), 1, round=1)


def test_a_refill_of_an_exhausted_set_is_short():
    pool = problems(num_one=10, num_two=0)
    first = ids(draw(pool, 1))
    assert len(draw(pool, 1, round=1, num=8, drawn=first)) == 2


def test_more_than_the_set_gives_the_whole_set_once():
    pool = problems(num_one=5, num_two=0)
    assert sorted(ids(draw(pool, 1))) == sorted(ids(pool))
