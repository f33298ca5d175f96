"""One rollout: the policy's turns, and the tools that answer them, until it ends.

Reads a problem, an engine (`generate`) and a sandbox (`execute`); returns a `Rollout`, writes
nothing. How a rollout ends is decided in `status_after`. Observations count towards the length
limit; one that leaves no room for a further token ends the rollout and is not appended, so that a
rollout always ends with sampled tokens. Grading comes later: the reward is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rstar2.chat import Chat
from rstar2.grading import count_answer_tags, extract_answer
from rstar2.protocols import Execute, Generate, GenerateRequest
from rstar2.tool_calls import check_arguments, parse_tool_calls
from rstar2.types import (
    Completion,
    FinishReason,
    MalformedToolCall,
    Problem,
    Rollout,
    RolloutStatus,
    TokenIds,
    ToolCall,
    ToolResult,
    ToolStatus,
    Turn,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Of one rollout."""

    max_response_tokens: int
    """Sampled and observation tokens together."""
    max_turns: int
    temperature: float
    top_p: float = 1.0


async def run_rollout(
    problem: Problem,
    chat: Chat,
    generate: Generate,
    execute: Execute,
    *,
    limits: Limits,
    rollout_id: str,
    seed: int,
) -> Rollout:
    """One attempt at the problem. Frees the engine's state for it however it ends.

    The tools that may be called are the chat's. Raises what the engine raises; a sandbox that could
    not run a call ends the rollout as `failed`.
    """
    prompt = chat.render_prompt(problem.question)
    turns: list[Turn] = []
    token_ids = prompt
    room = limits.max_response_tokens
    status: RolloutStatus | None = None
    try:
        while status is None:
            request = GenerateRequest(
                rollout_id=rollout_id,
                turn=len(turns),
                token_ids=token_ids,
                max_new_tokens=room,
                temperature=limits.temperature,
                top_p=limits.top_p,
                seed=seed,
                stop_token_ids=chat.stop_token_ids,
            )
            completion = await generate(request)
            room -= len(completion.token_ids)
            turn, status = await _answer_turn(
                completion,
                chat,
                execute,
                is_last_turn=len(turns) + 1 >= limits.max_turns,
                room=room,
                call_prefix=f"{rollout_id}/{len(turns)}",
            )
            turns.append(turn)
            room -= len(turn.observation_token_ids)
            token_ids = _append(token_ids, completion.token_ids, turn.observation_token_ids)
    finally:
        generate.release(rollout_id)
    text = "\n".join(chat.decode(turn.completion.token_ids) for turn in turns)
    return Rollout(
        rollout_id=rollout_id,
        problem_id=problem.problem_id,
        prompt_token_ids=prompt,
        turns=tuple(turns),
        status=status,
        answer=extract_answer(text, chat.config.answer_tags),
        num_answer_tags=count_answer_tags(text),
    )


def status_after(
    finish_reason: FinishReason,
    *,
    num_calls: int,
    is_last_turn: bool,
    results: Sequence[ToolResult] = (),
    fits: bool = True,
) -> RolloutStatus | None:
    """How the rollout ends after a turn, or None where it goes on. The only place that decides it.

    Asked before the calls run (no `results`) and after (`fits`: the observation leaves room).
    """
    if finish_reason is FinishReason.LENGTH:
        return RolloutStatus.TRUNCATED_LENGTH
    if not num_calls:
        return RolloutStatus.COMPLETED
    if is_last_turn:
        return RolloutStatus.TRUNCATED_TURNS
    if any(result.status is ToolStatus.UNAVAILABLE for result in results):
        return RolloutStatus.FAILED
    return None if fits else RolloutStatus.TRUNCATED_LENGTH


async def _answer_turn(
    completion: Completion,
    chat: Chat,
    execute: Execute,
    *,
    is_last_turn: bool,
    room: int,
    call_prefix: str,
) -> tuple[Turn, RolloutStatus | None]:
    """The turn with its calls answered, and how the rollout ends if it does."""
    reason = completion.finish_reason
    if reason is FinishReason.LENGTH:
        # What the limit cut is no call: the rollout is truncated, not "without a call".
        return Turn(completion=completion), status_after(
            reason, num_calls=0, is_last_turn=is_last_turn
        )
    calls = parse_tool_calls(chat.decode(completion.token_ids))
    status = status_after(reason, num_calls=len(calls), is_last_turn=is_last_turn)
    if status is not None:
        return Turn(completion=completion, tool_calls=calls), status
    results = await _run_calls(calls, chat, execute, call_prefix=call_prefix)
    observation, results = chat.render_observation(results)
    status = status_after(
        reason,
        num_calls=len(calls),
        is_last_turn=is_last_turn,
        results=results,
        fits=len(observation) < room,
    )
    turn = Turn(completion=completion, tool_calls=calls, tool_results=results)
    if status is None:
        turn = Turn(
            completion=completion,
            tool_calls=calls,
            tool_results=results,
            observation_token_ids=observation,
        )
    return turn, status


async def _run_calls(
    calls: Sequence[ToolCall | MalformedToolCall],
    chat: Chat,
    execute: Execute,
    *,
    call_prefix: str,
) -> tuple[ToolResult, ...]:
    """One result for each call, in order. After an unavailable one the rest is not run."""
    results: list[ToolResult] = []
    for index, call in enumerate(calls):
        if results and results[-1].status is ToolStatus.UNAVAILABLE:
            results.append(ToolResult(status=ToolStatus.UNAVAILABLE, detail="Not run."))
            continue
        refusal = _refuse(call, chat)
        if refusal is not None or isinstance(call, MalformedToolCall):
            results.append(refusal or ToolResult(status=ToolStatus.MALFORMED))
        else:
            results.append(await execute(call, call_id=f"{call_prefix}/{index}"))
    return tuple(results)


def _refuse(call: ToolCall | MalformedToolCall, chat: Chat) -> ToolResult | None:
    """The answer to a call that no sandbox needs to see, or None."""
    if isinstance(call, MalformedToolCall):
        detail = f"At character {call.position}: {call.reason}."
        return ToolResult(status=ToolStatus.MALFORMED, detail=detail)
    tools = {tool.name: tool for tool in chat.tools}
    if call.name not in tools:
        detail = f"{call.name[:40]!r} is none of: {', '.join(sorted(tools))}."
        return ToolResult(status=ToolStatus.UNKNOWN_TOOL, detail=detail)
    fault = check_arguments(call, tools[call.name].parameters)
    if fault is not None:
        return ToolResult(status=ToolStatus.MALFORMED, detail=f"In {call.name}: {fault}.")
    return None


def _append(*parts: TokenIds) -> TokenIds:
    return np.concatenate(parts).astype(np.int32, copy=False)
