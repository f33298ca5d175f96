from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rstar2.training.losses import LossSums, policy_loss, sft_loss

POLICY = [[-1.0, -0.5, -2.0, -0.1], [-0.7, -3.0, -0.2, -1.1], [-0.3, -0.4, -0.5, -0.6]]
BEHAVIOUR = [[-1.2, -0.5, -1.0, -0.4], [-0.7, -2.0, -0.9, -1.1], [-0.2, -0.4, -0.9, -0.6]]
ADVANTAGES = [1.5, -0.5, -1.0]
MASK = [[1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 0]]
WEIGHTS = [0.125, 0.125, 0.25]


def scalar_loss(policy: Sequence[Sequence[float]], behaviour: Sequence[Sequence[float]]) -> float:
    """E6 by hand, in Python floats."""
    total = 0.0
    for row, advantage in enumerate(ADVANTAGES):
        for t, is_sampled in enumerate(MASK[row]):
            if is_sampled:
                ratio = math.exp(policy[row][t] - behaviour[row][t])
                clipped = min(max(ratio, 0.8), 1.28)
                total += WEIGHTS[row] * min(ratio * advantage, clipped * advantage)
    return -total


def loss_of(
    policy: Tensor, behaviour: Tensor, rows: slice = slice(None)
) -> tuple[Tensor, LossSums]:
    return policy_loss(
        policy[rows],
        behaviour[rows],
        advantages=torch.tensor(ADVANTAGES, dtype=policy.dtype)[rows],
        loss_mask=torch.tensor(MASK).bool()[rows],
        loss_weights=torch.tensor(WEIGHTS, dtype=policy.dtype)[rows],
        clip_low=0.2,
        clip_high=0.28,
    )


def test_the_loss_equals_the_equation_computed_by_hand() -> None:
    loss, _ = loss_of(torch.tensor(POLICY).double(), torch.tensor(BEHAVIOUR).double())
    assert float(loss) == pytest.approx(scalar_loss(POLICY, BEHAVIOUR), abs=1e-7)
    single, _ = loss_of(torch.tensor(POLICY), torch.tensor(BEHAVIOUR))
    assert float(single) == pytest.approx(scalar_loss(POLICY, BEHAVIOUR), abs=1e-6)


def test_the_gradient_equals_the_finite_difference_of_the_equation() -> None:
    policy = torch.tensor(POLICY).double().requires_grad_()
    loss_of(policy, torch.tensor(BEHAVIOUR).double())[0].backward()
    assert policy.grad is not None
    for row in range(3):
        for t in range(4):
            up, down = [list(r) for r in POLICY], [list(r) for r in POLICY]
            up[row][t] += 1e-6
            down[row][t] -= 1e-6
            slope = (scalar_loss(up, BEHAVIOUR) - scalar_loss(down, BEHAVIOUR)) / 2e-6
            assert float(policy.grad[row, t]) == pytest.approx(slope, abs=1e-6)


def test_the_split_over_micro_batches_or_ranks_does_not_change_the_loss() -> None:
    policy, behaviour = torch.tensor(POLICY), torch.tensor(BEHAVIOUR)
    whole, sums = loss_of(policy, behaviour)
    parts = [loss_of(policy, behaviour, slice(n, n + 1)) for n in range(3)]
    assert float(sum(loss for loss, _ in parts)) == pytest.approx(float(whole), abs=1e-6)
    added = parts[0][1] + parts[1][1] + parts[2][1]
    assert (added.num_tokens, added.num_clipped) == (sums.num_tokens, sums.num_clipped)
    assert (added.kl, added.entropy) == pytest.approx((sums.kl, sums.entropy), abs=1e-6)


def test_the_upper_clip_stops_a_good_token_and_the_lower_one_a_bad_token() -> None:
    for log_ratio, advantage, is_stopped in (
        (math.log(1.29), 1.0, True),
        (math.log(1.27), 1.0, False),
        (math.log(0.79), -1.0, True),
        (math.log(0.81), -1.0, False),
        (math.log(1.29), -1.0, False),
        (math.log(0.79), 1.0, False),
    ):
        policy = torch.tensor([[log_ratio]], requires_grad=True)
        loss, _ = policy_loss(
            policy,
            torch.zeros(1, 1),
            advantages=torch.tensor([advantage]),
            loss_mask=torch.ones(1, 1).bool(),
            loss_weights=torch.ones(1),
            clip_low=0.2,
            clip_high=0.28,
        )
        loss.backward()
        assert policy.grad is not None
        assert (float(policy.grad) == 0.0) == is_stopped


def test_sums_count_tokens_clips_and_nats() -> None:
    """Ratios that leave [0.8, 1.28]: e^-1 twice, e^0.7 and e^0.4; e^0.2 stays inside."""
    _, sums = loss_of(torch.tensor(POLICY).double(), torch.tensor(BEHAVIOUR).double())
    assert (sums.num_tokens, sums.num_clipped) == (8, 4)
    assert sums.kl == pytest.approx(-(0.2 + 0.0 - 1.0 - 1.0 + 0.7 + 0.0 - 0.1 + 0.4))
    assert sums.entropy == pytest.approx(1.0 + 0.5 + 2.0 + 3.0 + 0.2 + 1.1 + 0.3 + 0.5)


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_behaviour_logprob_that_is_not_finite_clears_its_mask(bad: float) -> None:
    policy = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    loss, sums = policy_loss(
        policy,
        torch.tensor([[bad, -1.0]]),
        advantages=torch.tensor([2.0]),
        loss_mask=torch.ones(1, 2).bool(),
        loss_weights=torch.tensor([0.5]),
        clip_low=0.2,
        clip_high=0.28,
    )
    loss.backward()
    assert (float(loss.detach()), sums.num_tokens) == (-1.0, 1)
    assert policy.grad is not None
    assert policy.grad.tolist() == [[0.0, -1.0]]


def test_padding_that_is_not_finite_reaches_neither_loss_nor_gradient() -> None:
    policy = torch.tensor([[-1.0, math.inf]], requires_grad=True)
    loss, _ = policy_loss(
        policy,
        torch.tensor([[-1.0, 0.0]]),
        advantages=torch.tensor([1.0]),
        loss_mask=torch.tensor([[True, False]]),
        loss_weights=torch.tensor([1.0]),
        clip_low=0.2,
        clip_high=0.28,
    )
    loss.backward()
    assert policy.grad is not None
    assert policy.grad.tolist() == [[-1.0, 0.0]]


def test_an_empty_mask_gives_loss_and_gradient_zero() -> None:
    policy = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    loss, sums = policy_loss(
        policy,
        torch.zeros(1, 2),
        advantages=torch.tensor([1.0]),
        loss_mask=torch.zeros(1, 2).bool(),
        loss_weights=torch.tensor([1.0]),
        clip_low=0.2,
        clip_high=0.28,
    )
    loss.backward()
    assert (float(loss.detach()), sums) == (0.0, LossSums(0.0, 0.0, 0.0, 0.0))
    assert policy.grad is not None
    assert not policy.grad.any()


def test_sft_loss_is_the_mean_over_the_tokens_of_the_whole_batch() -> None:
    logprobs = torch.tensor([[-1.0, -2.0], [-4.0, -8.0]])
    mask = torch.tensor([[True, False], [True, True]])
    assert float(sft_loss(logprobs, mask, num_tokens=3)) == pytest.approx(13 / 3)
