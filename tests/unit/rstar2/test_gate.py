from __future__ import annotations

from collections.abc import Sequence

import pytest
from rollout_builders import make_step

from rstar2.gate import decide_gate
from rstar2.gate_config import GateConfig
from rstar2.step_metrics import StepMetrics
from rstar2.types import GateDecision, GateVerdict


def steps(name: str, values: Sequence[float], **fields: float) -> list[StepMetrics]:
    """A series in which the field `name` takes these values."""
    return [make_step(n + 1, **{**fields, name: value}) for n, value in enumerate(values)]


def decide(series: Sequence[StepMetrics], **config: object) -> GateDecision:
    defaults = {"window": 4, "min_steps": 4, "max_steps": 100, "rules": ["truncation_settled"]}
    gate = GateConfig.model_validate(defaults | config)
    return decide_gate(gate, series, stage="rl-1", max_thin_steps=3)


def test_an_empty_series_continues() -> None:
    assert decide([]).verdict is GateVerdict.CONTINUE


def test_settled_truncation_promotes_with_its_numbers() -> None:
    seen = decide(steps("truncation_rate", [0.4, 0.2, 0.09, 0.08, 0.07, 0.08]))
    assert seen.verdict is GateVerdict.PROMOTE
    assert seen.reason == (
        "rl-1 step 6: truncation 8.0 % over 4 steps (at or under 10.0 %), its halves 8.5 % and "
        "7.5 % (within 3 points)."
    )
    assert seen.evidence["truncation_mean"] == pytest.approx(0.08)
    assert seen.evidence["truncation_half_difference"] == pytest.approx(0.01)
    assert seen.evidence["rule.truncation_settled"] is True
    assert (seen.evidence["steps"], seen.evidence["threshold"]) == (6, 0.10)


def test_truncation_exactly_at_the_threshold_is_settled() -> None:
    assert decide(steps("truncation_rate", [0.1] * 4)).verdict is GateVerdict.PROMOTE


def test_truncation_just_above_the_threshold_is_not() -> None:
    seen = decide(steps("truncation_rate", [0.101] * 4))
    assert seen.verdict is GateVerdict.CONTINUE
    assert "above 10.0 %" in seen.reason


def test_halves_exactly_three_points_apart_are_settled() -> None:
    assert decide(steps("truncation_rate", [0.08, 0.08, 0.05, 0.05])).verdict is GateVerdict.PROMOTE


def test_truncation_that_still_falls_or_rises_is_not_settled() -> None:
    for rates in ([0.09, 0.09, 0.05, 0.05], [0.05, 0.05, 0.09, 0.09]):
        seen = decide(steps("truncation_rate", rates))
        assert seen.verdict is GateVerdict.CONTINUE
        assert "more than 3 points apart" in seen.reason


def test_only_the_window_counts() -> None:
    rates = [0.5, 0.6, 0.5, 0.06, 0.06, 0.06, 0.06]
    assert decide(steps("truncation_rate", rates)).verdict is GateVerdict.PROMOTE


def test_no_promotion_before_the_minimum_of_steps() -> None:
    seen = decide(steps("truncation_rate", [0.0] * 5), min_steps=6)
    assert seen.verdict is GateVerdict.CONTINUE
    assert seen.reason == "rl-1 step 5: 5 of at least 6 steps, all rules hold so far."
    assert decide(steps("truncation_rate", [0.0] * 6), min_steps=6).verdict is GateVerdict.PROMOTE


def test_fewer_steps_than_the_window_continue() -> None:
    seen = decide(steps("truncation_rate", [0.0] * 3), min_steps=1)
    assert seen.verdict is GateVerdict.CONTINUE
    assert "truncation_settled needs 4 steps, 3 so far" in seen.reason


def test_a_collapsed_policy_that_stopped_truncating_is_not_promoted() -> None:
    rewards = [0.4, 0.4, 0.4, 0.4, 0.1, 0.1, 0.1, 0.1]
    seen = decide(
        steps("reward", rewards, truncation_rate=0.0), rules=["truncation_settled", "no_collapse"]
    )
    assert seen.verdict is GateVerdict.CONTINUE
    assert seen.evidence["rule.truncation_settled"] is True
    assert seen.evidence["rule.no_collapse"] is False
    assert (
        "reward 0.100 over 4 steps is below 0.340, 85.0 % of its best window's 0.400" in seen.reason
    )


def test_reward_exactly_at_the_allowed_drop_is_no_collapse() -> None:
    rewards = [0.4] * 4 + [0.34] * 4
    assert decide(steps("reward", rewards), rules=["no_collapse"]).verdict is GateVerdict.PROMOTE


def test_a_reward_that_was_never_above_zero_is_not_promoted() -> None:
    seen = decide(steps("reward", [0.0] * 8), rules=["no_collapse"])
    assert seen.verdict is GateVerdict.CONTINUE
    assert "no rollout of the last 4 steps earned a reward" in seen.reason


def test_steps_without_a_decided_rollout_say_nothing_about_reward() -> None:
    series = steps("reward", [0.4] * 4)
    series += [make_step(n, reward=0.0, num_undecided=384) for n in (5, 6, 7, 8)]
    assert decide(series, rules=["no_collapse"]).verdict is GateVerdict.PROMOTE


@pytest.mark.parametrize(
    ("rewards", "verdict"),
    [
        ([0.50, 0.50, 0.50, 0.50], GateVerdict.PROMOTE),
        ([0.50, 0.51, 0.52, 0.53], GateVerdict.CONTINUE),  # gains 0.03
        ([0.500, 0.505, 0.510, 0.515], GateVerdict.PROMOTE),  # gains 0.015: the bound
        ([0.60, 0.55, 0.50, 0.45], GateVerdict.PROMOTE),
    ],
)
def test_reward_flat_bounds_the_fitted_gain(rewards: list[float], verdict: GateVerdict) -> None:
    seen = decide(steps("reward", rewards), rules=["reward_flat"], reward_flat_slope=0.015)
    assert seen.verdict is verdict


def evaluated(scores: Sequence[float]) -> list[StepMetrics]:
    """Every second step is evaluated."""
    series = []
    for n, score in enumerate(scores):
        series += [make_step(2 * n + 1), make_step(2 * n + 2, evaluation_score=score)]
    return series


@pytest.mark.parametrize(
    ("scores", "is_flat", "is_saturated"),
    [
        ([0.3, 0.5, 0.5, 0.5], False, False),  # a new best among the last three
        ([0.3, 0.5, 0.49, 0.5, 0.5], True, True),
        ([0.3, 0.5, 0.49, 0.48, 0.51], False, False),
        ([0.3, 0.5, 0.45, 0.43, 0.425], True, True),  # 15 % under the best: at the bound
        ([0.3, 0.5, 0.45, 0.43, 0.42], False, True),  # fallen
        ([0.3, 0.4, 0.5, 0.3], False, True),  # fallen, though a new best is recent
        ([0.5, 0.5, 0.5], False, False),  # needs four
    ],
)
def test_evaluation_rules(scores: list[float], is_flat: bool, is_saturated: bool) -> None:
    series = evaluated(scores)
    flat = decide(series, rules=["evaluation_flat"])
    saturated = decide(series, rules=["evaluation_saturated"])
    assert (flat.verdict is GateVerdict.PROMOTE) == is_flat
    assert (saturated.verdict is GateVerdict.PROMOTE) == is_saturated


def test_steps_without_a_score_do_not_count_as_evaluations() -> None:
    scores = [0.3, 0.5, 0.5, 0.5, 0.5]
    for gap in (1, 2, 7):
        series = [
            make_step(n + 1, evaluation_score=scores[n // gap] if n % gap == gap - 1 else None)
            for n in range(len(scores) * gap)
        ]
        config = {"rules": ["evaluation_saturated"], "evaluation_patience": 3}
        ends = [n for n in range(4, len(series) + 1) if promotes(series[:n], **config)]
        assert ends == [5 * gap]
        assert decide(series, **config).evidence["evaluations"] == 5


def promotes(series: Sequence[StepMetrics], **config: object) -> bool:
    return decide(series, **config).verdict is GateVerdict.PROMOTE


def test_between_two_evaluations_the_last_one_stands() -> None:
    series = evaluated([0.3, 0.5, 0.49, 0.5, 0.5]) + [make_step(n) for n in (11, 12, 13)]
    assert promotes(series, rules=["evaluation_saturated"])


def test_an_evaluation_rule_without_evaluations_says_so() -> None:
    seen = decide(steps("reward", [0.5] * 8), rules=["evaluation_flat"])
    assert seen.reason == "rl-1 step 8: evaluation_flat needs 4 evaluations, 0 so far."


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ([0.1, 0.7, 0.7, 0.7, 0.7], GateVerdict.PROMOTE),
        ([0.6, 0.65, 0.75, 0.8], GateVerdict.PROMOTE),
        ([0.69] * 4, GateVerdict.CONTINUE),
    ],
)
def test_mostly_solved_at_seventy_percent(rates: list[float], verdict: GateVerdict) -> None:
    assert decide(steps("solved_rate", rates), rules=["mostly_solved"]).verdict is verdict


def test_all_named_rules_must_hold() -> None:
    series = steps("truncation_rate", [0.05] * 4, solved_rate=0.1)
    seen = decide(series, rules=["truncation_settled", "mostly_solved"])
    assert seen.verdict is GateVerdict.CONTINUE
    assert "10.0 % of the problems drawn" in seen.reason
    assert "truncation" not in seen.reason


def test_at_the_maximum_of_steps_the_stage_holds() -> None:
    seen = decide(steps("truncation_rate", [0.3] * 10), max_steps=10)
    assert seen.verdict is GateVerdict.HOLD
    assert seen.reason.startswith(
        "rl-1 step 10: the stage reached its maximum of 10 steps; truncation 30.0 %"
    )


def test_one_step_before_the_maximum_it_continues() -> None:
    seen = decide(steps("truncation_rate", [0.3] * 9), max_steps=10)
    assert seen.verdict is GateVerdict.CONTINUE


def test_at_the_maximum_of_steps_the_stage_promotes_where_configured() -> None:
    seen = decide(steps("truncation_rate", [0.3] * 10), max_steps=10, at_max_steps="promote")
    assert seen.verdict is GateVerdict.PROMOTE


def test_rules_that_hold_at_the_maximum_promote() -> None:
    seen = decide(steps("truncation_rate", [0.05] * 10), max_steps=10)
    assert seen.verdict is GateVerdict.PROMOTE


def test_a_reward_far_below_its_best_for_long_aborts() -> None:
    rewards = [0.4] * 4 + [0.19] * 5
    seen = decide(steps("reward", rewards), collapse_steps=5)
    assert seen.verdict is GateVerdict.ABORT
    assert "5 steps in a row at most 0.190, below 0.200, 50.0 % of its best" in seen.reason
    assert seen.evidence["reward_best"] == pytest.approx(0.4)


@pytest.mark.parametrize("last", [[0.19] * 4, [0.19, 0.19, 0.2, 0.19, 0.19], [0.2] * 5])
def test_a_shorter_or_smaller_drop_does_not_abort(last: list[float]) -> None:
    seen = decide(steps("reward", [0.4] * 4 + last, truncation_rate=0.3), collapse_steps=5)
    assert seen.verdict is GateVerdict.CONTINUE


def test_an_abort_wins_over_rules_that_hold() -> None:
    rewards = [0.4] * 4 + [0.0] * 5
    seen = decide(steps("reward", rewards, truncation_rate=0.0), collapse_steps=5)
    assert seen.verdict is GateVerdict.ABORT


def test_steps_with_nothing_to_train_on_hold() -> None:
    series = steps("truncation_rate", [0.3] * 2)
    series += [make_step(n, num_groups_trained=0, truncation_rate=0.3) for n in (3, 4, 5)]
    seen = decide(series)
    assert seen.verdict is GateVerdict.HOLD
    assert "3 steps in a row had no group to train on" in seen.reason
    assert seen.evidence["steps_without_groups"] == 3


def test_steps_with_nothing_to_train_on_must_be_in_a_row() -> None:
    trained = [0, 0, 1, 0, 0]
    series = [
        make_step(n + 1, num_groups_trained=num, truncation_rate=0.3)
        for n, num in enumerate(trained)
    ]
    assert decide(series).verdict is GateVerdict.CONTINUE


def test_a_thin_step_that_trains_something_does_not_hold() -> None:
    series = [
        make_step(n, num_groups_trained=1, is_thin=True, truncation_rate=0.3) for n in range(1, 9)
    ]
    assert decide(series).verdict is GateVerdict.CONTINUE


def test_nothing_to_train_on_is_no_matter_without_a_limit() -> None:
    series = [make_step(n, num_groups_trained=0, truncation_rate=0.3) for n in range(1, 9)]
    gate = GateConfig(window=4, min_steps=4, rules=("truncation_settled",))
    assert decide_gate(gate, series, stage="rl-1").verdict is GateVerdict.CONTINUE


def test_a_stage_whose_problems_are_all_solved_is_promoted_not_held() -> None:
    series = [make_step(n, num_groups_trained=0, solved_rate=1.0) for n in range(1, 9)]
    assert decide(series, rules=["mostly_solved"]).verdict is GateVerdict.PROMOTE


def test_every_decision_is_one_sentence_with_a_full_stop() -> None:
    for series in ([], steps("truncation_rate", [0.05] * 4), steps("truncation_rate", [0.3] * 4)):
        reason = decide(series).reason
        assert reason.startswith("rl-1 step ")
        assert reason.endswith(".")
        assert "\n" not in reason
