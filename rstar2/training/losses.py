"""The losses: Clip-Higher policy loss (report E6) and SFT's mean token loss.

Pure functions of tensors. No KL term and no entropy term (report §2.2.1). The normaliser comes with
each sample, so a sum over micro-batches and ranks is the loss of the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the sampled tokens of one micro-batch; they add up over micro-batches."""

    num_tokens: float
    num_clipped: float
    kl: float
    """Behaviour minus policy logprob, in nats."""
    entropy: float
    """Minus the policy logprob, in nats."""

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            self.num_tokens + other.num_tokens,
            self.num_clipped + other.num_clipped,
            self.kl + other.kl,
            self.entropy + other.entropy,
        )


NO_SUMS = LossSums(0.0, 0.0, 0.0, 0.0)


def policy_loss(
    policy_logprobs: Tensor,  # [B, T]
    behaviour_logprobs: Tensor,  # [B, T]
    *,
    advantages: Tensor,  # [B]
    loss_mask: Tensor,  # [B, T] bool
    loss_weights: Tensor,  # [B]
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, LossSums]:
    """Minus the weighted sum of min(ratio A, clip(ratio, 1 - low, 1 + high) A) over sampled tokens.

    A token whose behaviour logprob is not finite leaves the mask. With an empty mask the loss is 0
    and so is its gradient.
    """
    mask = loss_mask & torch.isfinite(behaviour_logprobs)
    # Masked before exp(): a padded position may hold anything, and inf x 0 is not 0.
    log_ratio = torch.where(mask, policy_logprobs - behaviour_logprobs, 0.0)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    advantage = advantages.unsqueeze(1)
    objective = torch.minimum(ratio * advantage, clipped * advantage)
    weighted = torch.where(mask, objective, 0.0).sum(1) * loss_weights
    return -weighted.sum(), _sums(policy_logprobs, log_ratio, ratio != clipped, mask)


def sft_loss(logprobs: Tensor, loss_mask: Tensor, *, num_tokens: int) -> Tensor:
    """Minus the summed logprob of the masked-in tokens, over `num_tokens` of the whole batch."""
    return -torch.where(loss_mask, logprobs, 0.0).sum() / max(1, num_tokens)


def _sums(policy_logprobs: Tensor, log_ratio: Tensor, clipped: Tensor, mask: Tensor) -> LossSums:
    with torch.no_grad():
        chosen = torch.where(mask, policy_logprobs, 0.0)
        return LossSums(
            num_tokens=float(mask.sum()),
            num_clipped=float((clipped & mask).sum()),
            kl=float(-log_ratio.sum()),
            entropy=float(-chosen.sum()),
        )
