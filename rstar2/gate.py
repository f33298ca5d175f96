"""Gates: whether a stage is over, from its step series alone.

Each rule is a small pure function that says whether it holds, in one sentence, with the numbers it
saw; `decide_gate` combines those that the stage names. Reads the series of one stage; stores
nothing, and asks nobody: a `hold` is for the flow to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rstar2.gate_config import GateConfig
from rstar2.step_metrics import StepMetrics
from rstar2.types import GateDecision, GateVerdict

Evidence = Mapping[str, float | int | str | bool | None]

ROUNDING = 1e-9
"""A mean that equals its threshold but for float rounding is at the threshold."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    holds: bool
    sentence: str
    evidence: Evidence


def decide_gate(
    config: GateConfig,
    series: Sequence[StepMetrics],
    *,
    stage: str,
    max_thin_steps: int | None = None,
) -> GateDecision:
    """What becomes of `stage` after the last step of `series` (its own steps, in order).

    In this order: `abort` where the reward collapsed; `promote` where `min_steps` passed and every
    named rule holds; `at_max_steps` at `max_steps`; `hold` where the last `max_thin_steps` steps
    had no group to train on (None: never); else `continue`. The evidence holds the numbers of every
    rule, and `rule.NAME` says whether it holds.
    """
    results: dict[str, RuleResult] = {name: RULES[name](config, series) for name in config.rules}
    evidence = _evidence(config, series, results)
    collapse = collapsed(config, series)
    verdict, reason = GateVerdict.CONTINUE, ""
    if collapse.holds:
        verdict, reason = GateVerdict.ABORT, collapse.sentence
        evidence |= collapse.evidence
    elif len(series) >= config.min_steps and all(r.holds for r in results.values()):
        verdict, reason = GateVerdict.PROMOTE, _joined(results, holds=True)
    elif len(series) >= config.max_steps:
        verdict = GateVerdict(config.at_max_steps)
        failing = _joined(results, holds=False)
        reason = f"the stage reached its maximum of {config.max_steps} steps; {failing}"
    elif max_thin_steps and _num_idle_steps(series) >= max_thin_steps:
        verdict, reason = GateVerdict.HOLD, _idle_sentence(series)
    else:
        reason = _continue_reason(config, series, results)
    sentence = f"{stage} step {len(series)}: {reason}."
    return GateDecision(verdict=verdict, reason=sentence, evidence=evidence)


def truncation_settled(config: GateConfig, series: Sequence[StepMetrics]) -> RuleResult:
    """The window's mean truncation rate is at most `threshold` and its halves hardly differ.

    The report raised the limit once the rate sat near 10 % (§4.3). Without the halves, a rate on
    its way down would pass at the first step under the threshold, and one on its way up as well.
    """
    window = series[-config.window :]
    if len(window) < config.window:
        return _too_few("truncation_settled", "truncation", config.window, len(series))
    rates = [step.truncation_rate for step in window]
    first, last = _mean(rates[: len(rates) // 2]), _mean(rates[len(rates) // 2 :])
    mean, difference = _mean(rates), abs(first - last)
    is_low = mean <= config.threshold + ROUNDING
    is_steady = difference <= config.max_half_difference + ROUNDING
    sentence = (
        f"truncation {_percent(mean)} over {len(window)} steps "
        f"({'at or under' if is_low else 'above'} {_percent(config.threshold)}), its halves "
        f"{_percent(first)} and {_percent(last)} "
        f"({'within' if is_steady else 'more than'} {100 * config.max_half_difference:g} points"
        f"{'' if is_steady else ' apart'})"
    )
    evidence = {
        "truncation_mean": mean,
        "truncation_first_half": first,
        "truncation_last_half": last,
        "truncation_half_difference": difference,
        "threshold": config.threshold,
        "max_half_difference": config.max_half_difference,
    }
    return RuleResult(is_low and is_steady, sentence, evidence)


def no_collapse(config: GateConfig, series: Sequence[StepMetrics]) -> RuleResult:
    """The window's reward is above zero and near the best of all earlier windows.

    A collapsed policy can stop truncating too, so low truncation alone proves nothing.
    """
    means = _window_means(_rewards(series), config.window)
    if not means:
        return _too_few("no_collapse", "reward", config.window, len(_rewards(series)))
    now, best = means[-1], max(means)
    floor = (1.0 - config.max_reward_drop) * best
    holds = now > 0.0 and now >= floor - ROUNDING
    sentence = (
        f"reward {now:.3f} over {config.window} steps is "
        f"{'not below' if holds else 'below'} {floor:.3f}, "
        f"{_percent(1.0 - config.max_reward_drop)} of its best window's {best:.3f}"
    )
    if now <= 0.0:
        sentence = f"no rollout of the last {config.window} steps earned a reward"
    return RuleResult(
        holds, sentence, {"reward_mean": now, "reward_best_window": best, "reward_floor": floor}
    )


def reward_flat(config: GateConfig, series: Sequence[StepMetrics]) -> RuleResult:
    """A line fitted to the window's rewards gains at most `reward_flat_slope` over the window.

    One-sided: a falling reward is flat here, and `no_collapse` says how far it may fall.
    """
    rewards = _rewards(series)[-config.window :]
    if len(rewards) < config.window:
        return _too_few("reward_flat", "reward", config.window, len(rewards))
    gain = _slope(rewards) * (len(rewards) - 1)
    holds = gain <= config.reward_flat_slope + ROUNDING
    sentence = (
        f"reward gained {gain:+.3f} over {len(rewards)} steps, "
        f"{'at most' if holds else 'more than'} {config.reward_flat_slope:g}"
    )
    return RuleResult(
        holds, sentence, {"reward_gain": gain, "reward_flat_slope": config.reward_flat_slope}
    )


def evaluation_flat(config: GateConfig, series: Sequence[StepMetrics]) -> RuleResult:
    """The last `evaluation_patience` evaluations set no new best, and the latest has not fallen."""
    seen = _evaluations(config, series)
    if seen is None:
        return _no_evaluations("evaluation_flat", config, series)
    holds = not seen.is_new_best and not seen.has_fallen
    return RuleResult(holds, seen.sentence, seen.evidence)


def evaluation_saturated(config: GateConfig, series: Sequence[StepMetrics]) -> RuleResult:
    """No new best in the last `evaluation_patience` evaluations, or the latest has fallen.

    The report ends stage 3 when performance saturates or declines (§4.3).
    """
    seen = _evaluations(config, series)
    if seen is None:
        return _no_evaluations("evaluation_saturated", config, series)
    return RuleResult(not seen.is_new_best or seen.has_fallen, seen.sentence, seen.evidence)


def mostly_solved(config: GateConfig, series: Sequence[StepMetrics]) -> RuleResult:
    """Over the window, at least `solved_threshold` of the problems drawn were always solved.

    The report left stage 2 when over 70 % of a batch was rejected for a perfect pass rate (§4.3).
    """
    window = series[-config.window :]
    if len(window) < config.window:
        return _too_few("mostly_solved", "solved", config.window, len(series))
    mean = _mean([step.solved_rate for step in window])
    holds = mean >= config.solved_threshold - ROUNDING
    sentence = (
        f"{_percent(mean)} of the problems drawn in {len(window)} steps were solved by all their "
        f"rollouts ({'at least' if holds else 'fewer than'} {_percent(config.solved_threshold)})"
    )
    return RuleResult(
        holds, sentence, {"solved_mean": mean, "solved_threshold": config.solved_threshold}
    )


def collapsed(config: GateConfig, series: Sequence[StepMetrics]) -> RuleResult:
    """The last `collapse_steps` rewards all lie below (1 - `collapse_drop`) of the best window's.

    Steps without a decided rollout say nothing about the policy and are passed over.
    """
    rewards = _rewards(series)
    means = _window_means(rewards, config.window)
    if not means or len(rewards) < config.collapse_steps:
        return RuleResult(False, "too few steps to see a collapse", {})
    best = max(means)
    floor = (1.0 - config.collapse_drop) * best
    last = rewards[-config.collapse_steps :]
    sentence = (
        f"reward collapsed: {config.collapse_steps} steps in a row at most {max(last):.3f}, below "
        f"{floor:.3f}, {_percent(1.0 - config.collapse_drop)} of its best window's {best:.3f}; "
        "start again from an earlier checkpoint with a lower learning rate"
    )
    evidence = {"collapse_floor": floor, "collapse_max_reward": max(last), "reward_best": best}
    return RuleResult(max(last) < floor, sentence, evidence)


RULES: Mapping[str, Callable[[GateConfig, Sequence[StepMetrics]], RuleResult]] = {
    "truncation_settled": truncation_settled,
    "no_collapse": no_collapse,
    "reward_flat": reward_flat,
    "evaluation_flat": evaluation_flat,
    "mostly_solved": mostly_solved,
    "evaluation_saturated": evaluation_saturated,
}
"""The names of `GateConfig.rules`."""


@dataclass(frozen=True, slots=True)
class _Evaluations:
    is_new_best: bool
    has_fallen: bool
    sentence: str
    evidence: Evidence


def _evaluations(config: GateConfig, series: Sequence[StepMetrics]) -> _Evaluations | None:
    """The last evaluations against the earlier ones; None where there are too few."""
    scores = [step.evaluation_score for step in series if step.evaluation_score is not None]
    patience = config.evaluation_patience
    if len(scores) <= patience:
        return None
    recent, before = max(scores[-patience:]), max(scores[:-patience])
    floor = (1.0 - config.max_reward_drop) * max(scores)
    is_new_best, has_fallen = recent > before + ROUNDING, scores[-1] < floor - ROUNDING
    sentence = (
        f"best of the last {patience} evaluations {recent:.3f}, best before {before:.3f}"
        f"{': a new best' if is_new_best else ': no new best'}"
        f"{f', and the latest fell to {scores[-1]:.3f}' if has_fallen else ''}"
    )
    evidence = {
        "evaluations": len(scores),
        "evaluation_recent_best": recent,
        "evaluation_earlier_best": before,
        "evaluation_latest": scores[-1],
        "evaluation_floor": floor,
    }
    return _Evaluations(is_new_best, has_fallen, sentence, evidence)


def _no_evaluations(name: str, config: GateConfig, series: Sequence[StepMetrics]) -> RuleResult:
    seen = sum(step.evaluation_score is not None for step in series)
    needed = config.evaluation_patience + 1
    sentence = f"{name} needs {needed} evaluations, {seen} so far"
    return RuleResult(False, sentence, {"evaluations": seen})


def _too_few(name: str, quantity: str, needed: int, seen: int) -> RuleResult:
    return RuleResult(
        False, f"{name} needs {needed} steps, {seen} so far", {f"{quantity}_steps_seen": seen}
    )


def _evidence(
    config: GateConfig, series: Sequence[StepMetrics], results: Mapping[str, RuleResult]
) -> dict[str, float | int | str | bool | None]:
    evidence: dict[str, float | int | str | bool | None] = {
        "steps": len(series),
        "window": config.window,
        "min_steps": config.min_steps,
        "max_steps": config.max_steps,
        "turn_limit_rate": series[-1].turn_limit_rate if series else None,
        "steps_without_groups": _num_idle_steps(series),
    }
    for name, result in results.items():
        evidence[f"rule.{name}"] = result.holds
        evidence |= result.evidence
    return evidence


def _continue_reason(
    config: GateConfig, series: Sequence[StepMetrics], results: Mapping[str, RuleResult]
) -> str:
    failing = _joined(results, holds=False)
    if len(series) >= config.min_steps:
        return failing
    early = f"{len(series)} of at least {config.min_steps} steps"
    return f"{early}; {failing}" if failing else f"{early}, all rules hold so far"


def _joined(results: Mapping[str, RuleResult], *, holds: bool) -> str:
    return "; ".join(r.sentence for r in results.values() if r.holds is holds)


def _num_idle_steps(series: Sequence[StepMetrics]) -> int:
    """Steps without a group to train on, counted back from the last."""
    return sum(1 for _ in takewhile(lambda step: step.num_groups_trained == 0, reversed(series)))


def _idle_sentence(series: Sequence[StepMetrics]) -> str:
    last, num_steps = series[-1], _num_idle_steps(series)
    return (
        f"{num_steps} steps in a row had no group to train on: in the last one all rollouts of a "
        f"problem earned the same in {last.num_groups_without_signal} groups, and "
        f"{last.num_groups_too_small} had too few decided rollouts (reward {last.reward:.3f}, "
        f"{_percent(last.solved_rate)} of the problems always solved); use problems that the "
        "policy solves sometimes, or approve to go on"
    )


def _rewards(series: Sequence[StepMetrics]) -> list[float]:
    """Rewards of the steps that have a decided rollout: the others have no mean."""
    return [step.reward for step in series if step.num_decided]


def _window_means(values: Sequence[float], window: int) -> list[float]:
    return [_mean(values[end - window : end]) for end in range(window, len(values) + 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _slope(values: Sequence[float]) -> float:
    """Of the least-squares line over steps 0, 1, …"""
    middle, mean = (len(values) - 1) / 2, _mean(values)
    covariance = sum((x - middle) * (y - mean) for x, y in enumerate(values))
    return covariance / sum((x - middle) ** 2 for x in range(len(values)))


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"
