"""Figures from graded groups: avg@k with its interval, and the rates of a step.

Pure. Reads groups as sampled, before RoC and before any is dropped. A rate without a case is 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypedDict

from rstar2.roc import penalties
from rstar2.types import Group, Rollout, RolloutStatus, Score, ToolStatus

NORMAL_95 = 1.959963984540054
INVALID_CALLS = frozenset({ToolStatus.MALFORMED, ToolStatus.UNKNOWN_TOOL})


def score(name: str, groups: Sequence[Group]) -> Score:
    """avg@k over problems: the mean of each problem's share of correct decided attempts.

    Undecided and failed attempts are left out and counted; a problem without a decided one does not
    enter the mean. The 95 % interval is Wilson's with the effective number of attempts: problems,
    not attempts, are independent, so the variance is that between the problems' means. With one
    attempt each it is exactly Wilson's binomial interval, and it stays inside [0, 1] with a width
    at 0 % and 100 %.
    """
    rates = [_mean_reward(group.decided) for group in groups if group.decided]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    num_decided = sum(len(group.decided) for group in groups)
    mean = math.fsum(rates) / len(rates) if rates else 0.0
    effective = effective_attempts(rates, num_decided)
    low, high = wilson_interval(mean, effective)
    return Score(
        name=name,
        mean=mean,
        low=low,
        high=high,
        standard_error=math.sqrt(mean * (1.0 - mean) / effective) if rates else 0.5,
        num_problems=len(groups),
        num_attempts=len(rollouts),
        num_undecided=len(rollouts) - num_decided,
        mean_response_tokens=_mean(r.num_response_tokens for r in rollouts),
        truncation_rate=_mean(r.is_truncated for r in rollouts),
    )


def effective_attempts(rates: Sequence[float], num_attempts: int) -> float:
    """Independent attempts that would give the mean of `rates` the variance seen between them.

    Between the number of problems and that of attempts: attempts at one problem cannot tell more
    than independent ones, nor less than a single one.
    """
    if not rates:
        return 0.0
    mean = math.fsum(rates) / len(rates)
    between = math.fsum((rate - mean) ** 2 for rate in rates) / len(rates)
    independent = mean * (1.0 - mean)
    if independent <= 0.0:
        return float(len(rates))
    highest = max(num_attempts, len(rates))
    if between * highest <= independent * len(rates):
        return float(highest)
    return max(len(rates) * independent / between, float(len(rates)))


def wilson_interval(mean: float, num_attempts: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion; (0, 1) without attempts."""
    if num_attempts <= 0:
        return 0.0, 1.0
    z2 = NORMAL_95**2 / num_attempts
    centre = (mean + z2 / 2) / (1 + z2)
    spread = NORMAL_95 * math.sqrt(mean * (1 - mean) / num_attempts + z2 / (4 * num_attempts))
    half = spread / (1 + z2)
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


class RolloutStatistics(TypedDict):
    """The part of `StepMetrics` that the sampled groups give, under its field names."""

    num_problems: int
    num_rollouts: int
    num_failed: int
    num_undecided: int
    num_groups_without_signal: int
    num_groups_too_small: int
    reward: float
    truncation_rate: float
    turn_limit_rate: float
    solved_rate: float
    tool_error_rate: float
    tool_error_rate_positives: float
    format_penalty_positives: float
    first_call_success_rate: float
    valid_call_rate: float
    num_tool_calls: int
    mean_response_tokens: float
    num_sampled_tokens: int


def rollout_statistics(groups: Sequence[Group], *, group_size: int) -> RolloutStatistics:
    """Over ALL groups sampled in a step, refill rounds included: `StepMetrics(**these, …)`."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    positives = [r for r in rollouts if r.reward == 1.0]
    large = [group for group in groups if len(group.decided) >= group_size]
    num_failed = sum(r.status is RolloutStatus.FAILED for r in rollouts)
    return RolloutStatistics(
        num_problems=len(groups),
        num_rollouts=len(rollouts),
        num_failed=num_failed,
        num_undecided=sum(r.reward is None for r in rollouts) - num_failed,
        num_groups_without_signal=sum(not group.has_signal for group in large),
        num_groups_too_small=len(groups) - len(large),
        reward=_mean_reward(rollouts),
        truncation_rate=_mean(r.is_truncated for r in rollouts),
        turn_limit_rate=_mean(r.status is RolloutStatus.TRUNCATED_TURNS for r in rollouts),
        solved_rate=_mean(is_solved(group) for group in groups),
        tool_error_rate=tool_error_rate(rollouts),
        tool_error_rate_positives=tool_error_rate(positives),
        format_penalty_positives=_mean(penalties(r)[1] for r in positives),
        first_call_success_rate=first_call_success_rate(positives),
        valid_call_rate=valid_call_rate(rollouts),
        num_tool_calls=sum(r.num_tool_calls for r in rollouts),
        mean_response_tokens=_mean(r.num_response_tokens for r in rollouts),
        num_sampled_tokens=sum(r.num_sampled_tokens for r in rollouts),
    )


def is_solved(group: Group) -> bool:
    """All rollouts are correct. One that failed or is undecided is not known to solve anything."""
    return bool(group.rollouts) and all(r.reward == 1.0 for r in group.rollouts)


def tool_error_rate(rollouts: Sequence[Rollout]) -> float:
    """Errors / calls, over all calls of all rollouts."""
    num_calls = sum(r.num_tool_calls for r in rollouts)
    return sum(r.num_tool_errors for r in rollouts) / num_calls if num_calls else 0.0


def first_call_success_rate(rollouts: Sequence[Rollout]) -> float:
    """Among rollouts with a call, the share whose first ended `ok`."""
    statuses = ([x.status for t in r.turns for x in t.tool_results] for r in rollouts)
    return _mean(s[0] is ToolStatus.OK for s in statuses if s)


def valid_call_rate(rollouts: Sequence[Rollout]) -> float:
    """Share of calls that were well formed and named a known tool."""
    return _mean(
        result.status not in INVALID_CALLS
        for rollout in rollouts
        for turn in rollout.turns
        for result in turn.tool_results
    )


def _mean_reward(rollouts: Sequence[Rollout]) -> float:
    return _mean(r.reward for r in rollouts if r.reward is not None)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else 0.0
