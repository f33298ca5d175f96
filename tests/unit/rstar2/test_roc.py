from __future__ import annotations

from collections import Counter

import pytest
from rollout_builders import make_group, make_rollout, make_turn

from rstar2.roc import paper_counts, penalties, released_code_counts, resample_on_correct
from rstar2.types import Group, Rollout


def keep(rollouts: list[Rollout], *, group_size: int, rule: str = "paper", seed: int = 0) -> Group:
    kept = resample_on_correct(
        Group(problem_id="p0", rollouts=tuple(rollouts)),
        group_size=group_size,
        rule=rule,
        seed=seed,
    )
    assert kept is not None
    return kept


def ids(group: Group) -> list[str]:
    return [rollout.rollout_id for rollout in group.rollouts]


def test_p_err_is_half_without_a_call() -> None:
    assert penalties(make_rollout(statuses=())) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("statuses", "p_err"),
    [
        (["ok"], 0.0),
        (["ok", "error"], 0.5),
        (["timeout"], 1.0),
        (["malformed", "ok", "ok", "unknown_tool"], 0.5),
        (["ok", "ok", "error"], 1 / 3),
    ],
)
def test_p_err_is_errors_over_calls_by_status(statuses: list[str], p_err: float) -> None:
    assert penalties(make_rollout(statuses=statuses))[0] == pytest.approx(p_err)


@pytest.mark.parametrize(
    ("num_turns", "num_tags", "p_format"),
    [(1, 1, 0.0), (1, 0, 1.0), (2, 2, 0.5), (2, 3, 1.0), (1, 5, 1.0), (4, 2, 0.25)],
)
def test_p_format_is_tags_too_many_per_turn(num_turns: int, num_tags: int, p_format: float) -> None:
    turns = [make_turn([5]) for _ in range(num_turns)]
    assert penalties(make_rollout(turns=turns, num_answer_tags=num_tags))[1] == p_format


@pytest.mark.parametrize(
    ("positives", "negatives", "group_size", "kept"),
    [
        (16, 16, 16, (8, 8)),
        (15, 17, 16, (8, 8)),  # floor of 17 / 2; the positives are the remainder
        (17, 15, 16, (9, 7)),
        (1, 31, 16, (1, 15)),
        (31, 1, 16, (15, 1)),  # floor gives 0 negatives: one is kept
        (30, 2, 16, (15, 1)),
        (32, 0, 16, (16, 0)),
        (0, 32, 16, (0, 16)),
        (8, 8, 8, (4, 4)),
        (7, 23, 15, (4, 11)),
        (10, 10, 16, (8, 8)),
        (1, 15, 16, (1, 15)),
        (1, 1, 2, (1, 1)),
    ],
)
def test_paper_counts(
    positives: int, negatives: int, group_size: int, kept: tuple[int, int]
) -> None:
    assert paper_counts(positives, negatives, group_size) == kept


@pytest.mark.parametrize(
    ("positives", "kept"),
    [
        (1, (1, 15)),
        (2, (2, 14)),
        (3, (2, 14)),
        (4, (2, 14)),
        (5, (2, 14)),
        (6, (3, 13)),
        (8, (4, 12)),
        (16, (8, 8)),
        (26, (13, 3)),
        (27, (14, 2)),
        (28, (14, 2)),
        (29, (14, 2)),
        (30, (14, 2)),
        (31, (15, 1)),
    ],
)
def test_released_code_counts_of_32_are_those_measured(
    positives: int, kept: tuple[int, int]
) -> None:
    assert released_code_counts(positives, 32 - positives, 16) == kept


@pytest.mark.parametrize("count", [paper_counts, released_code_counts])
@pytest.mark.parametrize("group_size", [2, 3, 4, 8, 15, 16])
def test_every_count_sums_to_g_and_keeps_a_class_that_was_there(count, group_size) -> None:
    for total in range(group_size, 2 * group_size + 1):
        for positives in range(total + 1):
            kept = count(positives, total - positives, group_size)
            assert sum(kept) == group_size
            assert 0 <= kept[0] <= positives
            assert 0 <= kept[1] <= total - positives
            assert (kept[0] > 0) == (positives > 0)
            assert (kept[1] > 0) == (positives < total)


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="group size of at least 2"):
        paper_counts(1, 1, 1)


def test_fewer_than_g_decided_give_none() -> None:
    group = make_group([1.0, 0.0, None, None])
    assert resample_on_correct(group, group_size=3, rule="paper", seed=0) is None


def test_undecided_rollouts_are_never_kept() -> None:
    kept = keep(list(make_group([1.0, None, 0.0, None]).rollouts), group_size=2)
    assert ids(kept) == ["p0/00", "p0/02"]


def test_the_draw_does_not_depend_on_the_order_of_arrival() -> None:
    rollouts = [make_rollout(f"r{n:02d}", reward=float(n % 2)) for n in range(32)]
    assert ids(keep(rollouts, group_size=16, seed=5)) == ids(
        keep(rollouts[::-1], group_size=16, seed=5)
    )


def test_another_seed_draws_another_set() -> None:
    rollouts = [make_rollout(f"r{n:02d}", reward=float(n % 2)) for n in range(32)]
    drawn = {tuple(ids(keep(rollouts, group_size=16, seed=seed))) for seed in range(5)}
    assert len(drawn) == 5


def test_one_seed_draws_other_positions_for_another_problem() -> None:
    drawn = set()
    for problem_id in ("p0", "p1", "p2"):
        group = make_group([0.0] * 16 + [1.0] * 16, problem_id=problem_id)
        kept = resample_on_correct(group, group_size=16, rule="paper", seed=0)
        assert kept is not None
        drawn.add(tuple(rollout_id.partition("/")[2] for rollout_id in ids(kept)))
    assert len(drawn) == 3


def test_clean_successes_come_before_any_other() -> None:
    clean = [make_rollout(f"clean{n}") for n in range(4)]
    faulty = [make_rollout(f"faulty{n}", statuses=["ok", "error"]) for n in range(4)]
    wrong = [make_rollout(f"wrong{n}", reward=0.0) for n in range(8)]
    for seed in range(20):
        kept = ids(keep(faulty + clean + wrong, group_size=8, seed=seed))
        assert [i for i in kept if not i.startswith("wrong")] == [f"clean{n}" for n in range(4)]


def test_clean_successes_are_drawn_evenly_among_themselves() -> None:
    rollouts = [make_rollout(f"c{n}") for n in range(4)]
    rollouts += [make_rollout(f"w{n}", reward=0.0) for n in range(4)]
    drawn = Counter(i for seed in range(2000) for i in ids(keep(rollouts, group_size=4, seed=seed)))
    for rollout_id in ("c0", "c1", "c2", "c3"):
        assert drawn[rollout_id] / 2000 == pytest.approx(0.5, abs=0.05)


def test_successes_are_drawn_in_inverse_proportion_to_their_penalty() -> None:
    """One of two successes is kept; penalties 1/4 and 1 give 4 : 1."""
    rollouts = [
        make_rollout("low", statuses=["ok", "ok", "ok", "error"]),
        make_rollout("high", statuses=["error"]),
        make_rollout("w0", reward=0.0),
        make_rollout("w1", reward=0.0),
    ]
    drawn = Counter(i for seed in range(4000) for i in ids(keep(rollouts, group_size=2, seed=seed)))
    assert drawn["low"] / 4000 == pytest.approx(0.8, abs=0.03)


def test_failures_are_drawn_evenly_whatever_their_penalty() -> None:
    rollouts = [
        make_rollout("ok", reward=0.0),
        make_rollout("bad", reward=0.0, statuses=["error"], num_answer_tags=0),
        make_rollout("c0"),
        make_rollout("c1"),
    ]
    drawn = Counter(i for seed in range(4000) for i in ids(keep(rollouts, group_size=2, seed=seed)))
    assert drawn["bad"] / 4000 == pytest.approx(0.5, abs=0.03)


def test_released_code_keeps_the_lowest_penalties_in_id_order() -> None:
    rollouts = [
        make_rollout("b", statuses=["error"]),
        make_rollout("d"),
        make_rollout("a", statuses=["ok", "error"]),
        make_rollout("c"),
        *(make_rollout(f"w{n}", reward=0.0) for n in (3, 1, 0, 2)),
    ]
    kept = keep(rollouts, group_size=4, rule="released-code", seed=9)
    assert ids(kept) == ["c", "d", "w0", "w1"]


def test_random_ignores_penalties_and_keeps_the_counts_of_paper() -> None:
    rollouts = [make_rollout(f"c{n}", statuses=["ok"] if n else ["error"]) for n in range(4)]
    rollouts += [make_rollout(f"w{n}", reward=0.0) for n in range(4)]
    drawn = Counter(
        i
        for seed in range(2000)
        for i in ids(keep(rollouts, group_size=4, rule="random", seed=seed))
    )
    assert sum(drawn[f"c{n}"] for n in range(4)) == 2 * 2000
    assert drawn["c0"] / 2000 == pytest.approx(0.5, abs=0.05)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="expected paper, released-code or random"):
        keep(list(make_group([1.0, 0.0]).rollouts), group_size=2, rule="best")
