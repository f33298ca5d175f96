"""Identity of problems, and draws that a resumed step repeats exactly."""

import subprocess
import sys
from collections import Counter

import pytest

from rstar2.problems import (
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
    with pytest.raises(ValueError, match="no problem can be drawn"):
        draw(problems(num_one=4, num_two=0), 1, shares={"arithmetic/two-call": 1.0})


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
