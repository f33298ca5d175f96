"""Literal builders of the nouns for tests: short to write, nothing hidden that a test would assert.

`from rollout_builders import make_rollout` (pytest puts `tests/` on the path).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rstar2.step_metrics import StepMetrics
from rstar2.types import (
    Completion,
    FinishReason,
    Group,
    PolicySpan,
    Rollout,
    RolloutStatus,
    Sample,
    ToolCall,
    ToolResult,
    ToolStatus,
    Turn,
    read_only,
)


def make_completion(
    token_ids: Sequence[int], logprobs: Sequence[float] | None = None, *, version: int = 0
) -> Completion:
    """Logprob -0.5 for each token where none are given."""
    return Completion(
        token_ids=read_only(token_ids, np.int32),
        logprobs=read_only([-0.5] * len(token_ids) if logprobs is None else logprobs, np.float32),
        finish_reason=FinishReason.STOP,
        policy_versions=(PolicySpan(policy_version=version, start=0, stop=len(token_ids)),),
    )


def make_turn(
    token_ids: Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    statuses: Sequence[str] = (),
    observation: Sequence[int] = (),
) -> Turn:
    """One turn with a call for each tool status."""
    calls = tuple(ToolCall(name="python", arguments={"code": "1"}) for _ in statuses)
    return Turn(
        completion=make_completion(token_ids, logprobs),
        tool_calls=calls,
        tool_results=tuple(ToolResult(status=ToolStatus(status)) for status in statuses),
        observation_token_ids=read_only(observation, np.int32),
    )


def make_rollout(
    rollout_id: str = "r0",
    *,
    reward: float | None = 1.0,
    turns: Sequence[Turn] | None = None,
    statuses: Sequence[str] = ("ok",),
    num_answer_tags: int = 1,
    status: RolloutStatus = RolloutStatus.COMPLETED,
    problem_id: str = "p0",
    prompt: Sequence[int] = (1, 2),
) -> Rollout:
    """Without `turns`: one turn with calls that ended as `statuses`, then one with the answer.

    `statuses=()` is a single turn without a call.
    """
    if turns is None:
        turns = [make_turn([10, 11], statuses=statuses, observation=[20])] if statuses else []
        turns = [*turns, make_turn([12, 13])]
    return Rollout(
        rollout_id=rollout_id,
        problem_id=problem_id,
        prompt_token_ids=read_only(prompt, np.int32),
        turns=tuple(turns),
        status=status,
        answer="7" if num_answer_tags else None,
        num_answer_tags=num_answer_tags,
        reward=reward,
    )


def make_group(rewards: Sequence[float | None], *, problem_id: str = "p0") -> Group:
    """Rollouts `p0/00`, `p0/01` … with these rewards, clean in tools and format."""
    return Group(
        problem_id=problem_id,
        rollouts=tuple(
            make_rollout(f"{problem_id}/{index:02d}", reward=reward, problem_id=problem_id)
            for index, reward in enumerate(rewards)
        ),
    )


def make_sample(
    token_ids: Sequence[int],
    mask: Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    advantage: float = 1.0,
    loss_weight: float = 1.0,
    rollout_id: str = "r0",
    problem_id: str = "p0",
) -> Sample:
    """Behaviour logprob -1 on each sampled token where none are given."""
    values = [-1.0 * m for m in mask] if logprobs is None else logprobs
    return Sample(
        rollout_id=rollout_id,
        problem_id=problem_id,
        token_ids=read_only(token_ids, np.int32),
        loss_mask=read_only(mask, np.bool_),
        behaviour_logprobs=read_only(values, np.float32),
        advantage=advantage,
        loss_weight=loss_weight,
    )


def make_step(
    step: int,
    *,
    stage: str = "rl-1",
    reward: float = 0.5,
    truncation_rate: float = 0.05,
    solved_rate: float = 0.1,
    num_groups_trained: int = 8,
    is_thin: bool = False,
    evaluation_score: float | None = None,
    num_undecided: int = 0,
) -> StepMetrics:
    """One row of a step series: 24 problems, 384 rollouts."""
    return StepMetrics(
        stage=stage,
        step=step,
        num_problems=24,
        num_rollouts=384,
        num_failed=0,
        num_undecided=num_undecided,
        num_groups_trained=num_groups_trained,
        num_groups_without_signal=24 - num_groups_trained,
        num_groups_too_small=0,
        is_thin=is_thin,
        reward=reward,
        truncation_rate=truncation_rate,
        turn_limit_rate=0.0,
        solved_rate=solved_rate,
        tool_error_rate=0.1,
        tool_error_rate_positives=0.02,
        format_penalty_positives=0.01,
        first_call_success_rate=0.9,
        valid_call_rate=0.95,
        num_tool_calls=400,
        mean_response_tokens=35.0,
        loss=0.0,
        grad_norm=1.0,
        clip_fraction=0.0,
        behaviour_kl=0.0,
        entropy=0.3,
        num_skipped_updates=0,
        collect_seconds=1.0,
        build_seconds=0.1,
        train_seconds=0.5,
        sync_seconds=0.1,
        num_sampled_tokens=10_000,
        evaluation_score=evaluation_score,
    )
