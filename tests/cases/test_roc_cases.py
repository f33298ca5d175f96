"""RoC, advantages and losses on the inputs that broke other systems (rows G of the cases)."""

from __future__ import annotations

import itertools

import pytest
import torch
from chat_tokenizer import make_tokenizer
from pydantic import ValidationError
from rollout_builders import make_group, make_rollout, make_sample
from scripted_engine import Script

from rstar2.advantage import group_advantages
from rstar2.agent_loop import Limits, run_rollout
from rstar2.batching import build_samples, micro_batches, split_updates
from rstar2.chat import open_chat
from rstar2.config import ChatConfig, ConfigError, OptimizerConfig, TinyModel, TrainerConfig
from rstar2.grading import grade_exact
from rstar2.profiles import load_config
from rstar2.prompt import PYTHON_TOOL
from rstar2.reward import apply_verdict, known_verdict
from rstar2.roc import penalties, resample_on_correct
from rstar2.training.engine import TrainingEngine
from rstar2.training.logprobs import token_logprobs
from rstar2.training.weights import build_tiny_model
from rstar2.types import Batch, Group, Problem, Rollout, ToolCall, ToolResult, ToolStatus, Turn

TINY = TinyModel(
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=32,
    vocab_size=40,
)


@pytest.mark.parametrize("rule", ["paper", "released-code", "random"])
@pytest.mark.parametrize(
    ("num_rollouts", "num_wrong", "kept"), [(30, 7, 15), (30, 23, 15), (20, 1, 16)]
)
def test_g1_odd_counts_keep_exactly_g(
    rule: str, num_rollouts: int, num_wrong: int, kept: int
) -> None:
    group = make_group([0.0] * num_wrong + [1.0] * (num_rollouts - num_wrong))
    seen = resample_on_correct(group, group_size=kept, rule=rule, seed=0)
    assert seen is not None
    assert len({rollout.rollout_id for rollout in seen.rollouts}) == kept
    assert seen.has_signal


def with_result(result: ToolResult) -> Turn:
    turn = make_rollout().turns[0]
    return Turn(completion=turn.completion, tool_calls=turn.tool_calls, tool_results=(result,))


@pytest.mark.parametrize(
    ("result", "p_err"),
    [
        (ToolResult(status=ToolStatus.TIMEOUT, detail="worker_timeout"), 1.0),
        (ToolResult(status=ToolStatus.MALFORMED, detail="not JSON"), 1.0),
        (ToolResult(status=ToolStatus.ERROR, stderr=""), 1.0),
        (ToolResult(status=ToolStatus.OK, stdout="mean squared error: 0.1"), 0.0),
    ],
)
def test_g2_a_call_counts_by_its_status_and_not_by_its_words(
    result: ToolResult, p_err: float
) -> None:
    assert penalties(make_rollout(turns=[with_result(result)]))[0] == p_err


def test_g4_a_correct_answer_in_one_turn_has_no_format_penalty() -> None:
    assert penalties(make_rollout(statuses=(), num_answer_tags=1))[1] == 0.0


TOKENIZER = make_tokenizer()
CHAT = open_chat(TOKENIZER, ChatConfig(style="bare", prefill_reason=False), [PYTHON_TOOL])
CALL = '<tool_call>{"name": "python", "arguments": {"code": "4"}}</tool_call><|im_end|>'
ANSWER = r"<answer>\boxed{4}</answer>"
NAMED = "I must put it in `<answer>` tags. "


async def attempt(rollout_id: str, *texts: str) -> Rollout:
    """A rollout whose policy says `texts`, graded against 4."""

    async def execute(call: ToolCall, /, *, call_id: str) -> ToolResult:
        return ToolResult(status=ToolStatus.OK, stdout="4")

    rollout = await run_rollout(
        Problem(problem_id="p", question="2 + 2?", answer="4", source="test"),
        CHAT,
        Script(TOKENIZER, *texts),
        execute,
        limits=Limits(max_response_tokens=500, max_turns=4, temperature=0.7),
        rollout_id=rollout_id,
        seed=1,
    )
    verdict = known_verdict(rollout) or grade_exact("4", rollout.answer or "")
    assert verdict is not None
    return apply_verdict(rollout, verdict)


@pytest.mark.parametrize(
    ("texts", "reward", "p_format"),
    [
        ([f"{ANSWER}<|im_end|>"], 1.0, 0.0),
        ([f"{NAMED}{ANSWER}<|im_end|>"], 1.0, 1.0),
        ([f"{ANSWER}{ANSWER}<|im_end|>"], 1.0, 1.0),
        ([CALL, f"{ANSWER}{ANSWER}<|im_end|>"], 1.0, 0.5),
        ([CALL, f"{NAMED}{ANSWER}<|im_end|>"], 1.0, 0.5),
        ([r"\boxed{4}<|im_end|>"], 0.0, 1.0),
        ([r"<answer>\boxed{4}<|im_end|>"], 0.0, 0.0),
        ([rf"<answer>\boxed{{5{ANSWER}<|im_end|>"], 1.0, 1.0),
    ],
)
async def test_g5_format_penalty_from_the_text_of_a_rollout(
    texts: list[str], reward: float, p_format: float
) -> None:
    rollout = await attempt("r", *texts)
    assert (rollout.reward, penalties(rollout)[1]) == (reward, p_format)


async def test_g5_roc_prefers_the_text_without_a_format_fault() -> None:
    rollouts = [
        await attempt("twice", CALL, f"{ANSWER}{ANSWER}<|im_end|>"),
        await attempt("once", CALL, f"{ANSWER}<|im_end|>"),
        await attempt("named", CALL, f"{NAMED}{ANSWER}<|im_end|>"),
        await attempt("unclosed", CALL, rf"<answer>\boxed{{5{ANSWER}<|im_end|>"),
        await attempt("untagged", CALL, r"\boxed{4}<|im_end|>"),
        await attempt("wrong", CALL, r"<answer>\boxed{5}</answer><|im_end|>"),
    ]
    for seed in range(10):
        group = Group(problem_id="p", rollouts=tuple(rollouts))
        kept = resample_on_correct(group, group_size=2, rule="paper", seed=seed)
        assert kept is not None
        assert [r.rollout_id for r in kept.rollouts if r.reward] == ["once"]


def test_g6_no_call_is_exactly_half() -> None:
    assert penalties(make_rollout(statuses=()))[0] == 0.5


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_g7_a_group_of_equal_rewards_has_no_signal_and_no_gradient(reward: float) -> None:
    group = make_group([reward] * 32)
    assert not group.has_signal
    kept = resample_on_correct(group, group_size=16, rule="paper", seed=0)
    assert kept is not None
    assert {sample.advantage for sample in build_samples([kept])} == {0.0}


@pytest.mark.parametrize("rule", ["paper", "released-code", "random"])
def test_g9_ties_are_not_broken_by_arrival(rule: str) -> None:
    rollouts = make_group([1.0, 0.0] * 3).rollouts
    seen = set()
    for order in itertools.permutations(rollouts):
        kept = resample_on_correct(
            Group(problem_id="p0", rollouts=order), group_size=3, rule=rule, seed=7
        )
        assert kept is not None
        seen.add(tuple(rollout.rollout_id for rollout in kept.rollouts))
    assert len(seen) == 1


@pytest.mark.parametrize("num_updates", [1, 2, 3])
def test_g10_no_row_is_lost_whatever_the_split(num_updates: int) -> None:
    kept = [make_group([1.0, 0.0, 0.0], problem_id=f"p{n}") for n in range(7)]
    batch = Batch(stage="s", step=1, policy_version=0, samples=build_samples(kept))
    parts = split_updates(batch, num_updates)
    rows = [row.rollout_id for part in parts for block in micro_batches(part, 16) for row in block]
    assert sorted(rows) == sorted(sample.rollout_id for sample in batch.samples)


def test_g13_a_group_of_one_is_refused_by_the_configuration() -> None:
    with pytest.raises(ConfigError, match="a group baseline needs at least 2"):
        load_config("laptop", ["stages.rl-1.group_size=1"])


def test_g16_a_batch_whose_tokens_are_all_masked_is_skipped_without_a_nan() -> None:
    samples = tuple(
        make_sample([1, 2, 3], [0, 0, 0], rollout_id=f"r{n}", advantage=1.0) for n in range(4)
    )
    engine = TrainingEngine(build_tiny_model(TINY, seed=0), OptimizerConfig())
    metrics = engine.train_step(
        Batch(stage="s", step=1, policy_version=0, samples=samples),
        config=TrainerConfig(),
        learning_rate=1e-3,
        temperature=1.0,
    )
    assert (metrics.loss, metrics.num_skipped_updates, engine.counters.num_updates) == (0.0, 1, 0)
    assert all(torch.isfinite(p).all() for p in engine.model.parameters())


@pytest.mark.parametrize("temperature", ["0", "0.0", "-1"])
def test_g19_temperature_zero_is_refused_by_the_configuration(temperature: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match="temperature"):
        load_config("laptop", [f"rollout.temperature={temperature}"])


def test_g23_each_of_128_samples_keeps_its_own_reward() -> None:
    kept = [
        make_group([float(n == p % 16) for n in range(16)], problem_id=f"p{p}") for p in range(8)
    ]
    samples = build_samples(kept)
    assert len(samples) == 128
    assert [s.rollout_id for s in samples if s.advantage > 0] == [f"p{p}/{p:02d}" for p in range(8)]


def test_g11_rewards_that_differ_by_rounding_do_not_blow_up() -> None:
    """The lesson of the leave-one-out row: a floor lies under the deviation."""
    assert max(map(abs, group_advantages([0.35] * 7 + [0.35000000000000003]))) < 1e-6
    assert max(map(abs, group_advantages([0.35] * 7 + [0.0]))) < 3.0


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_g18_ratios_are_one_at_step_zero_at_the_sampling_temperature(temperature: float) -> None:
    ids = torch.tensor([[1, 7, 3, 9, 4, 2, 8, 5]])
    mask = torch.tensor([[False, False, True, True, True, False, True, True]])
    with torch.no_grad():
        logits = build_tiny_model(TINY, seed=0)(ids).logits[0, :-1] / temperature
    sampled = [0.0, *logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].tolist()]
    trained = token_logprobs(build_tiny_model(TINY, seed=0), ids, mask, temperature=temperature)
    ratio = (trained[mask] - torch.tensor([sampled])[mask]).exp()
    assert float((ratio - 1.0).detach().abs().max()) < 1e-4
