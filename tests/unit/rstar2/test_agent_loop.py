from __future__ import annotations

import asyncio

import numpy as np
import pytest
from chat_tokenizer import make_tokenizer
from scripted_engine import Script

from rstar2.agent_loop import Limits, run_rollout, status_after
from rstar2.chat import open_chat
from rstar2.config import ChatConfig
from rstar2.conversations import Message
from rstar2.prompt import PYTHON_TOOL
from rstar2.types import (
    FinishReason,
    MalformedToolCall,
    Problem,
    RolloutStatus,
    ToolCall,
    ToolResult,
    ToolStatus,
)

TOKENIZER = make_tokenizer()
CHAT = open_chat(TOKENIZER, ChatConfig(style="bare", prefill_reason=False), [PYTHON_TOOL])
PROBLEM = Problem(problem_id="p", question="2 + 2?", answer="4", source="test")
CALL = '<tool_call>{"name": "python", "arguments": {"code": "2+2"}}</tool_call>'
ANSWER = "<answer>\\boxed{4}</answer>"
END = "<|im_end|>"


class Sandbox:
    """Answers call after call with the next result, the last one for ever."""

    def __init__(self, *results: ToolResult) -> None:
        self.results = list(results) or [ToolResult(status=ToolStatus.OK, stdout="4\n")]
        self.calls: list[tuple[str, ToolCall]] = []

    async def __call__(self, call: ToolCall, /, *, call_id: str) -> ToolResult:
        self.calls.append((call_id, call))
        return self.results[min(len(self.calls), len(self.results)) - 1]


def engine_of(*texts: str) -> Script:
    return Script(TOKENIZER, *texts)


async def roll(engine: Script, sandbox: Sandbox | None = None, *, tokens=500, turns=4, chat=CHAT):
    return await run_rollout(
        PROBLEM,
        chat,
        engine,
        sandbox or Sandbox(),
        limits=Limits(max_response_tokens=tokens, max_turns=turns, temperature=0.7, top_p=0.9),
        rollout_id="r",
        seed=7,
    )


async def test_answer_without_a_call_completes():
    rollout = await roll(engine_of(ANSWER + END))
    assert rollout.status is RolloutStatus.COMPLETED
    assert (rollout.answer, rollout.num_answer_tags, rollout.num_turns) == ("4", 1, 1)
    assert rollout.reward is None


async def test_call_is_run_and_its_result_appended():
    sandbox = Sandbox()
    rollout = await roll(engine_of(CALL + END, ANSWER + END), sandbox)
    assert sandbox.calls == [("r/0/0", ToolCall(name="python", arguments={"code": "2+2"}))]
    assert "<tool_response>4</tool_response>" in CHAT.decode(rollout.turns[0].observation_token_ids)
    assert rollout.status is RolloutStatus.COMPLETED


async def test_engine_is_asked_with_what_the_rollout_was_given():
    engine = engine_of(ANSWER + END)
    await roll(engine)
    (request,) = engine.requests
    assert (request.rollout_id, request.turn, request.seed) == ("r", 0, 7)
    assert request.max_new_tokens == 500
    assert (request.temperature, request.top_p) == (0.7, 0.9)
    assert request.stop_token_ids == CHAT.stop_token_ids


async def test_each_prompt_begins_with_all_earlier_tokens():
    engine = engine_of(CALL + END, "<think>x</think>" + CALL + END, ANSWER + END)
    rollout = await roll(engine)
    for earlier, later, turn in zip(
        engine.requests, engine.requests[1:], rollout.turns, strict=False
    ):
        seen = np.concatenate([earlier.token_ids, turn.completion.token_ids])
        np.testing.assert_array_equal(later.token_ids[: len(seen)], seen)


async def test_all_calls_of_a_turn_run_in_order_into_one_user_turn():
    sandbox = Sandbox(
        ToolResult(status=ToolStatus.OK, stdout="1"), ToolResult(status=ToolStatus.OK, stdout="2")
    )
    rollout = await roll(engine_of(CALL + CALL + END, ANSWER + END), sandbox)
    assert [call_id for call_id, _ in sandbox.calls] == ["r/0/0", "r/0/1"]
    text = CHAT.decode(rollout.turns[0].observation_token_ids)
    assert "<tool_response>1</tool_response><tool_response>2</tool_response>" in text
    assert text.count("<|im_start|>user") == 1


async def test_malformed_call_is_answered_and_the_loop_goes_on():
    sandbox = Sandbox()
    rollout = await roll(engine_of("<tool_call>{oops</tool_call>" + END, ANSWER + END), sandbox)
    assert sandbox.calls == []
    assert isinstance(rollout.turns[0].tool_calls[0], MalformedToolCall)
    assert rollout.turns[0].tool_results[0].status is ToolStatus.MALFORMED
    assert rollout.status is RolloutStatus.COMPLETED


async def test_unknown_tool_is_answered_and_the_loop_goes_on():
    rollout = await roll(engine_of(CALL.replace("python", "bash") + END, ANSWER + END))
    assert rollout.turns[0].tool_results[0].status is ToolStatus.UNKNOWN_TOOL
    assert rollout.num_tool_errors == 1
    assert rollout.status is RolloutStatus.COMPLETED


async def test_call_without_its_code_is_malformed():
    rollout = await roll(engine_of(CALL.replace('"code": "2+2"', "") + END, ANSWER + END))
    (result,) = rollout.turns[0].tool_results
    assert result.status is ToolStatus.MALFORMED
    assert "'code' is missing" in result.detail


async def test_length_limit_truncates_and_runs_no_call():
    sandbox = Sandbox()
    rollout = await roll(engine_of(CALL + END), sandbox, tokens=10)
    assert rollout.status is RolloutStatus.TRUNCATED_LENGTH
    assert sandbox.calls == []
    assert rollout.turns[0].tool_calls == ()
    assert rollout.num_response_tokens == 10


async def test_call_that_only_lacks_the_end_of_turn_is_not_run():
    sandbox = Sandbox()
    rollout = await roll(engine_of(CALL), sandbox)
    assert rollout.status is RolloutStatus.TRUNCATED_LENGTH
    assert sandbox.calls == []


async def test_observation_counts_towards_the_limit():
    engine = engine_of(CALL + END, ANSWER + END)
    rollout = await roll(engine)
    first = rollout.turns[0]
    used = len(first.completion.token_ids) + len(first.observation_token_ids)
    assert engine.requests[1].max_new_tokens == 500 - used


async def test_observation_that_leaves_no_room_is_not_appended():
    num_sampled = len(TOKENIZER.encode(CALL + END))
    observation, _ = CHAT.render_observation([ToolResult(status=ToolStatus.OK, stdout="4\n")])
    rollout = await roll(engine_of(CALL + END), tokens=num_sampled + len(observation))
    assert rollout.status is RolloutStatus.TRUNCATED_LENGTH
    assert len(rollout.turns[0].observation_token_ids) == 0
    assert rollout.turns[0].tool_results[0].status is ToolStatus.OK


async def test_observation_that_leaves_one_token_is_appended():
    num_sampled = len(TOKENIZER.encode(CALL + END))
    observation, _ = CHAT.render_observation([ToolResult(status=ToolStatus.OK, stdout="4\n")])
    engine = engine_of(CALL + END, ANSWER + END)
    await roll(engine, tokens=num_sampled + len(observation) + 1)
    assert engine.requests[1].max_new_tokens == 1


async def test_turn_limit_with_a_pending_call_truncates():
    sandbox = Sandbox()
    rollout = await roll(engine_of(CALL + END, CALL + END), sandbox, turns=2)
    assert rollout.status is RolloutStatus.TRUNCATED_TURNS
    assert len(sandbox.calls) == 1
    assert (len(rollout.turns[1].tool_calls), rollout.turns[1].tool_results) == (1, ())


async def test_answer_in_the_last_turn_completes():
    rollout = await roll(engine_of(CALL + END, ANSWER + END), turns=2)
    assert rollout.status is RolloutStatus.COMPLETED


async def test_unavailable_sandbox_fails_the_rollout():
    sandbox = Sandbox(ToolResult(status=ToolStatus.UNAVAILABLE))
    rollout = await roll(engine_of(CALL + CALL + END), sandbox)
    assert rollout.status is RolloutStatus.FAILED
    assert len(sandbox.calls) == 1
    assert [r.status for r in rollout.turns[0].tool_results] == [ToolStatus.UNAVAILABLE] * 2


async def test_answer_is_never_read_from_tool_output():
    sandbox = Sandbox(ToolResult(status=ToolStatus.OK, stdout=ANSWER))
    rollout = await roll(engine_of(CALL + END, "I do not know." + END), sandbox)
    assert rollout.answer is None
    assert rollout.num_answer_tags == 0


async def test_call_in_tool_output_is_never_run():
    sandbox = Sandbox(ToolResult(status=ToolStatus.OK, stdout=CALL))
    await roll(engine_of(CALL + END, ANSWER + END), sandbox)
    assert len(sandbox.calls) == 1


async def test_empty_completion_ends_without_an_answer():
    rollout = await roll(engine_of(END))
    assert rollout.status is RolloutStatus.COMPLETED
    assert rollout.answer is None


async def test_engine_is_released_at_the_end():
    engine = engine_of(ANSWER + END)
    await roll(engine)
    assert engine.released == ["r"]


async def test_engine_is_released_when_cancelled():
    engine = engine_of(CALL + END)

    class Slow(Sandbox):
        async def __call__(self, call: ToolCall, /, *, call_id: str) -> ToolResult:
            await asyncio.Event().wait()
            raise AssertionError("an event that nobody sets was set")

    task = asyncio.create_task(roll(engine, Slow()))
    while not engine.requests:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.released == ["r"]


async def test_engine_is_released_when_it_fails():
    engine = engine_of()
    with pytest.raises(IndexError):
        await roll(engine)
    assert engine.released == ["r"]


@pytest.mark.parametrize("style", ["bare", "full"])
@pytest.mark.parametrize("prefill", [True, False])
async def test_rollout_and_conversation_have_the_same_tokens(style, prefill):
    config = ChatConfig(style=style, prefill_reason=prefill)
    chat = open_chat(TOKENIZER, config, [PYTHON_TOOL])
    turns = (f"add</reason>\n{CALL}{CALL}", f"so</reason>\n{ANSWER}")
    head = "" if prefill else "<reason>"
    rollout = await roll(engine_of(*[head + turn + END for turn in turns]), chat=chat)
    messages = [
        Message(role="user", content="2 + 2?"),
        Message(role="assistant", content=f"<reason>{turns[0]}"),
        Message(role="tool", content="4"),
        Message(role="tool", content="4"),
        Message(role="assistant", content=f"<reason>{turns[1]}"),
    ]
    ids, mask = chat.render_conversation(messages)
    np.testing.assert_array_equal(rollout.token_ids, ids)
    np.testing.assert_array_equal(rollout.loss_mask, mask)


def test_length_comes_before_everything_else():
    status = status_after(FinishReason.LENGTH, num_calls=1, is_last_turn=True)
    assert status is RolloutStatus.TRUNCATED_LENGTH


def test_unavailable_comes_before_an_observation_that_does_not_fit():
    status = status_after(
        FinishReason.STOP,
        num_calls=1,
        is_last_turn=False,
        results=[ToolResult(status=ToolStatus.UNAVAILABLE)],
        fits=False,
    )
    assert status is RolloutStatus.FAILED
