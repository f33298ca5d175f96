"""The embedded engine: exactness, seeds, independence of timing and batch, rows and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from engine_builders import MODEL, PROMPTS, ask, bits, open_engine, single

from infra.rollout.embedded import (
    EmbeddedEngine,
)
from rstar2.config import TinyModel
from rstar2.training.weights import build_tiny_model
from rstar2.types import Completion, FinishReason, PolicySpan

OBSERVATION_SIZES = (3, 11, 40, 1)
"""Of the turns of a rollout; 40 is fed at once, the others pass through decoding."""


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    engine = open_engine()
    yield engine
    engine.close()


async def rollout(engine: EmbeddedEngine, number: int, wait: float = 0.0) -> list[Completion]:
    """Rollout `number`: prompt, seed, turns and lengths are functions of it; tools take `wait`."""
    try:
        return await sample_turns(engine, number, wait)
    finally:
        engine.release(f"r{number}")


async def sample_turns(engine: EmbeddedEngine, number: int, wait: float) -> list[Completion]:
    ids, turns = PROMPTS[number % len(PROMPTS)], []
    for turn in range(1 + number % 4):
        request = ask(
            f"r{number}",
            ids,
            turn=turn,
            max_new_tokens=4 + (7 * number + 5 * turn) % 13,
            seed=number,
            top_p=0.9 if number % 5 == 0 else 1.0,
            temperature=(1.0, 0.6, 0.0)[number % 3],
            stop=(7, 8, 9),
        )
        turns.append(await engine(request))
        observation = (np.arange(OBSERVATION_SIZES[turn]) * (number + 3)) % 448
        ids = np.concatenate([ids, turns[-1].token_ids, observation.astype(np.int32)])
        if wait:
            await asyncio.sleep(wait)
    return turns


@pytest.fixture(scope="module")
def alone(engine: EmbeddedEngine) -> dict[int, list[tuple[bytes, bytes]]]:
    """Each of 48 rollouts decoded with nothing beside it."""
    return {n: bits(asyncio.run(rollout(engine, n))) for n in range(48)}


@pytest.mark.parametrize(("max_rows", "num_threads"), [(64, 2), (5, 1), (17, 3)])
@pytest.mark.parametrize("schedule", [0, 1])
def test_no_bit_depends_on_latency_order_or_neighbours(
    alone: dict[int, list[tuple[bytes, bytes]]], max_rows: int, num_threads: int, schedule: int
) -> None:
    chance = np.random.default_rng(schedule)
    order = chance.permutation(48)
    waits = chance.exponential(0.004, size=48)

    async def main(engine: EmbeddedEngine) -> list[list[Completion]]:
        return await asyncio.gather(*(rollout(engine, int(n), float(waits[n])) for n in order))

    engine = open_engine(max_rows=max_rows, num_threads=num_threads)
    together = dict(zip(order, asyncio.run(main(engine)), strict=True))
    engine.close()
    assert {n: bits(turns) for n, turns in together.items()} == alone


def test_cancelled_neighbours_change_no_bit(alone: dict[int, list[tuple[bytes, bytes]]]) -> None:
    chance = np.random.default_rng(5)

    async def main(engine: EmbeddedEngine) -> dict[int, list[Completion]]:
        tasks = {n: asyncio.ensure_future(rollout(engine, n, 0.001)) for n in range(48)}
        for number in range(0, 48, 3):
            await asyncio.sleep(float(chance.exponential(0.004)))
            tasks[number].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        return {n: task.result() for n, task in tasks.items() if not task.cancelled()}

    engine = open_engine(max_rows=20)
    together = asyncio.run(main(engine))
    num_held = engine.num_held
    engine.close()
    assert set(range(48)) - set(range(0, 48, 3)) <= set(together)
    assert {n: bits(t) for n, t in together.items()} == {n: alone[n] for n in together}
    assert num_held == 0


async def test_logprobs_equal_those_of_transformers(engine: EmbeddedEngine) -> None:
    ids = PROMPTS[2]
    first = await engine(ask("a", ids, temperature=0.7, seed=3, max_new_tokens=30))
    ids = np.concatenate([ids, first.token_ids, np.arange(12, dtype=np.int32)])
    second = await engine(ask("a", ids, turn=1, temperature=0.7, seed=3, max_new_tokens=30))
    engine.release("a")
    whole = torch.from_numpy(np.concatenate([ids, second.token_ids])).long()
    with torch.no_grad():
        logits = MODEL(input_ids=whole[None]).logits[0, :-1] / 0.7
    expected = torch.log_softmax(logits, dim=-1).gather(1, whole[1:, None])[:, 0].numpy()
    start = len(PROMPTS[2]) - 1
    assert abs(first.logprobs - expected[start : start + 30]).max() < 1e-4
    assert abs(second.logprobs - expected[-30:]).max() < 1e-4


async def test_zero_temperature_continues_as_greedy_transformers(engine: EmbeddedEngine) -> None:
    completion = await single(engine, ask("a", PROMPTS[1], temperature=0.0, max_new_tokens=20))
    expected = MODEL.generate(
        torch.from_numpy(PROMPTS[1]).long()[None],
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert completion.token_ids.tolist() == expected[0, len(PROMPTS[1]) :].tolist()


async def test_seed_decides_the_completion(engine: EmbeddedEngine) -> None:
    seeds = [5, 5, 6, 2**63 - 1]
    requests = [ask(f"r{i}", PROMPTS[0], seed=s, max_new_tokens=16) for i, s in enumerate(seeds)]
    texts = [c.token_ids.tolist() for c in [await single(engine, r) for r in requests]]
    assert texts[0] == texts[1]
    assert len({tuple(t) for t in texts}) == 3


async def test_stop_token_ends_the_completion_and_is_its_last(engine: EmbeddedEngine) -> None:
    free = await single(engine, ask("a", PROMPTS[0], seed=2, max_new_tokens=20))
    stop = int(free.token_ids[6])
    first = free.token_ids.tolist().index(stop)
    stopped = await single(engine, ask("a", PROMPTS[0], seed=2, max_new_tokens=20, stop=(1, stop)))
    assert stopped.token_ids.tolist() == free.token_ids[: first + 1].tolist()
    assert stopped.finish_reason is FinishReason.STOP
    assert free.finish_reason is FinishReason.LENGTH


async def test_only_new_tokens_are_fed_in_later_turns() -> None:
    engine = open_engine()
    ids = PROMPTS[3]
    for turn, size in enumerate((5, 50, 0)):
        completion = await engine(ask("a", ids, turn=turn, max_new_tokens=6))
        observation = np.zeros(size, dtype=np.int32)
        ids = np.concatenate([ids, completion.token_ids, observation])
    counters = engine.counters()
    engine.close()
    assert counters.num_prompt_tokens_fed == len(PROMPTS[3]) - 1
    # Each turn begins with the last token sampled before it, whose keys are not known yet.
    assert counters.num_observation_tokens_fed == 5 + 50
    assert counters.num_sampled_tokens == 18


async def test_prompt_of_a_group_is_computed_once() -> None:
    engine = open_engine(num_threads=1)
    tasks = (single(engine, ask(f"r{i}", PROMPTS[5], seed=i)) for i in range(16))
    await asyncio.gather(*tasks)
    counters = engine.counters()
    engine.close()
    assert counters.num_prompt_tokens_fed == len(PROMPTS[5]) - 1
    assert counters.num_prompt_tokens_copied == 15 * (len(PROMPTS[5]) - 1)


async def test_other_rollouts_decode_while_a_tool_runs(engine: EmbeddedEngine) -> None:
    completion = await engine(ask("waiting", PROMPTS[0]))
    await single(engine, ask("other", PROMPTS[1]))
    ids = np.concatenate([PROMPTS[0], completion.token_ids])
    again = await engine(ask("waiting", ids, turn=1))
    engine.release("waiting")
    assert len(again.token_ids) == 8


async def test_conversations_beyond_the_rows_wait_for_a_release() -> None:
    engine = open_engine(max_rows=2, num_threads=1)
    for name in ("a", "b"):
        await engine(ask(name, PROMPTS[0]))
    third = asyncio.ensure_future(engine(ask("c", PROMPTS[1])))
    await asyncio.sleep(0.05)
    assert not third.done()
    engine.release("a")
    assert len((await third).token_ids) == 8
    engine.close()


async def test_cancelled_turn_gives_its_row_back() -> None:
    engine = open_engine(max_rows=1, num_threads=1)
    turn = asyncio.ensure_future(engine(ask("a", PROMPTS[0], max_new_tokens=1500)))
    waiting = asyncio.ensure_future(engine(ask("b", PROMPTS[0])))
    await asyncio.sleep(0.05)
    turn.cancel()
    assert len((await waiting).token_ids) == 8
    assert engine.num_held == 1
    engine.close()


async def test_cancelled_while_waiting_for_a_row_is_forgotten() -> None:
    engine = open_engine(max_rows=1, num_threads=1)
    await engine(ask("a", PROMPTS[0]))
    waiting = asyncio.ensure_future(engine(ask("b", PROMPTS[0])))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    engine.release("a")
    assert engine.num_held == 0
    engine.close()


async def test_conversation_longer_than_the_first_cache_grows_it(engine: EmbeddedEngine) -> None:
    long = np.random.default_rng(9).integers(448, size=700).astype(np.int32)
    short, completion = await asyncio.gather(
        single(engine, ask("short", PROMPTS[0], seed=1, max_new_tokens=60)),
        single(engine, ask("long", long, temperature=0.0)),
    )
    with torch.no_grad():
        logits = MODEL(input_ids=torch.from_numpy(long).long()[None]).logits[0, -1]
    assert completion.token_ids[0] == logits.argmax()
    again = await single(engine, ask("short", PROMPTS[0], seed=1, max_new_tokens=60))
    assert bits([again]) == bits([short])


async def test_new_weights_are_used_and_stamped_on_completions() -> None:
    engine = open_engine()
    newer = build_tiny_model(TinyModel(init_std=0.08), seed=12)
    old = await single(engine, ask("a", PROMPTS[0], temperature=0.0))
    engine.update_weights(newer.state_dict(), 7)
    new = await single(engine, ask("a", PROMPTS[0], temperature=0.0))
    engine.close()
    assert old.policy_versions == (PolicySpan(policy_version=0, start=0, stop=8),)
    assert new.policy_versions == (PolicySpan(policy_version=7, start=0, stop=8),)
    expected = newer.generate(
        torch.from_numpy(PROMPTS[0]).long()[None],
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert new.token_ids.tolist() == expected[0, len(PROMPTS[0]) :].tolist()


def test_lanes_leave_torchs_thread_count_alone() -> None:
    engine = open_engine(num_threads=2)
    assert torch.get_num_threads() == 2
    counts = [lane.call(lambda _: torch.get_num_threads()).result() for lane in engine._lanes]
    engine.close()
    torch.set_num_threads(1)
    assert counts == [1, 1]
