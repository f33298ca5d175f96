"""The embedded engine: what it refuses, and that a refusal harms nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from engine_builders import MODEL, PROMPTS, ask, bits, open_engine, single

from infra.rollout.embedded import (
    EmbeddedEngine,
    EngineClosedError,
    RequestError,
    RolloutsInFlightError,
    SequenceTooLongError,
)
from infra.rollout.model_weights import WeightsError
from rstar2.protocols import GenerateRequest


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    engine = open_engine()
    yield engine
    engine.close()


async def test_release_during_a_turn_fails_that_turn(engine: EmbeddedEngine) -> None:
    turn = asyncio.ensure_future(engine(ask("a", PROMPTS[0], max_new_tokens=1500)))
    await asyncio.sleep(0.02)
    engine.release("a")
    with pytest.raises(RequestError, match="rollout a was released while a turn was sampled"):
        await turn


async def test_releasing_an_unknown_rollout_is_ignored(engine: EmbeddedEngine) -> None:
    engine.release("never seen")


async def test_later_turn_of_a_released_rollout_is_refused(engine: EmbeddedEngine) -> None:
    await single(engine, ask("a", PROMPTS[0]))
    with pytest.raises(RequestError, match=r"turn 1: the rollout is not held \(released"):
        await engine(ask("a", PROMPTS[0], turn=1))


async def test_conversation_that_does_not_only_grow_is_refused(engine: EmbeddedEngine) -> None:
    completion = await engine(ask("a", PROMPTS[0]))
    changed = np.concatenate([PROMPTS[0], completion.token_ids])
    changed[3] += 1
    with pytest.raises(RequestError, match="do not begin with the 17 of the turn before"):
        await engine(ask("a", changed, turn=1))
    with pytest.raises(RequestError, match="expected turn 1"):
        await engine(ask("a", PROMPTS[0], turn=0))
    engine.release("a")


async def test_sequence_beyond_the_models_positions_is_refused(engine: EmbeddedEngine) -> None:
    with pytest.raises(SequenceTooLongError, match=r"9 tokens \+ max_new_tokens 2040 = 2049.*2048"):
        await engine(ask("a", PROMPTS[0], max_new_tokens=2040))
    assert engine.num_held == 0


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask("a", []), "0 tokens"),
        (ask("a", [1], max_new_tokens=0), "max_new_tokens = 0"),
        (ask("a", [448]), "token ids from 448 to 448, expected 0 to 447"),
        (ask("a", [1], temperature=-1.0), "temperature -1.0"),
        (ask("a", [1], top_p=0.0), "top_p 0.0"),
    ],
)
async def test_request_that_cannot_be_served_is_refused(
    engine: EmbeddedEngine, request_: GenerateRequest, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        await engine(request_)


async def test_new_weights_are_refused_while_a_rollout_is_held(engine: EmbeddedEngine) -> None:
    await engine(ask("a", PROMPTS[0]))
    with pytest.raises(RolloutsInFlightError, match=r"1 rollouts are held \(a"):
        engine.update_weights(MODEL.state_dict(), 1)
    engine.release("a")


async def test_weights_that_do_not_fit_leave_the_old_ones_live(engine: EmbeddedEngine) -> None:
    before = await single(engine, ask("a", PROMPTS[0]))
    with pytest.raises(WeightsError, match="missing"):
        engine.update_weights({}, 1)
    assert bits([await single(engine, ask("a", PROMPTS[0]))]) == bits([before])


async def test_logits_that_overflow_fail_the_turn_alone() -> None:
    engine = open_engine()
    state = {k: v.clone() for k, v in MODEL.state_dict().items()}
    state["model.embed_tokens.weight"][5] = 1e38
    engine.update_weights(state, 1)
    with pytest.raises(ArithmeticError, match="policy version 1 are not finite"):
        await single(engine, ask("a", [1, 2, 5]))
    engine.update_weights(MODEL.state_dict(), 2)
    assert len((await single(engine, ask("b", [1, 2, 5]))).token_ids) == 8
    engine.close()


async def test_closing_fails_the_turn_that_is_sampled() -> None:
    engine = open_engine()
    turn = asyncio.ensure_future(engine(ask("a", PROMPTS[0], max_new_tokens=1500)))
    await asyncio.sleep(0.02)
    engine.close()
    with pytest.raises(EngineClosedError, match="the engine was closed; open a new engine"):
        await turn
    with pytest.raises(EngineClosedError):
        await engine(ask("b", PROMPTS[0]))
