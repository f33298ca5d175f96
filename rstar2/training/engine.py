"""One model and its AdamW on one device: policy steps, SFT steps, exact save and load.

Reads samples with their weights already divided, so it knows neither groups nor rewards. Writes
optimizer state as safetensors and JSON, never pickle. Holds no weights of its own on disk: the
model's folder is `weights`' business. On a CPU every sum runs in a fixed order, so equal inputs and
thread counts give equal bits.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rstar2.batching import micro_batches, padded_width, split_updates
from rstar2.config import OptimizerConfig, SftConfig, TrainerConfig
from rstar2.protocols import TrainMetrics
from rstar2.training.logprobs import token_logprobs
from rstar2.training.losses import NO_SUMS, LossSums, policy_loss, sft_loss
from rstar2.types import Batch, Mask, Sample, TokenIds

MOMENTS = ("exp_avg", "exp_avg_sq")


class TrainingStoppedError(RuntimeError):
    """Training cannot go on. The message says what was seen and what to change."""


@dataclass
class Counters:
    """What an optimizer remembers besides its moments. Kept in `optimizer.json`."""

    num_steps: int = 0
    """Policy or SFT steps since the optimizer was made: warm-up counts these."""
    num_updates: int = 0
    """Updates applied since then."""
    num_skipped: int = 0
    """Updates not applied: gradient not finite, or every token masked."""
    num_not_finite_in_a_row: int = 0


class TrainingEngine:
    """Model and optimizer; `reset_optimizer` starts the second anew and may change its betas."""

    def __init__(self, model: nn.Module, optimizer: OptimizerConfig | SftConfig) -> None:
        self.model = model
        self.counters = Counters()
        self.optimizer = _adamw(model, optimizer)
        # No dropout: it would part the policy's logprobs from the engine's, and a resumed step
        # from the first.
        model.eval()

    def reset_optimizer(self, optimizer: OptimizerConfig | SftConfig) -> None:
        self.counters = Counters()
        self.optimizer = _adamw(self.model, optimizer)

    def train_step(
        self, batch: Batch, *, config: TrainerConfig, learning_rate: float, temperature: float
    ) -> TrainMetrics:
        """One policy step of `num_updates_per_step` updates; warm-up scales `learning_rate`.

        An update whose gradient is not finite, or whose tokens are all masked, is skipped: weights
        and moments stay, the step counts on. Raises `TrainingStoppedError` after
        `max_skipped_steps` non-finite ones in a row.
        """
        started = time.perf_counter()
        rate = learning_rate * _warmup(self.counters.num_steps, config.optimizer.warmup_steps)
        losses, norms, sums = [], [], []
        num_skipped = self.counters.num_skipped
        for samples in split_updates(batch, config.num_updates_per_step):
            loss, update_sums = self._policy_backward(samples, config, temperature)
            norm = self._update(
                rate, config.optimizer.max_grad_norm, is_empty=update_sums.num_tokens == 0
            )
            losses.append(loss)
            norms.append(norm)
            sums.append(update_sums)
            self._stop_if_diverged(config.max_skipped_steps, norm)
        self.counters.num_steps += 1
        num_skipped = self.counters.num_skipped - num_skipped
        return _metrics(
            losses, norms, sums, num_skipped=num_skipped, seconds=time.perf_counter() - started
        )

    def sft_step(
        self,
        conversations: Sequence[tuple[TokenIds, Mask]],
        *,
        config: SftConfig,
        micro_batch_tokens: int,
    ) -> float:
        """One SFT step on these conversations at the schedule's rate; the mean token loss."""
        rate = sft_learning_rate(config, self.counters.num_steps)
        samples = [_sft_sample(index, *item) for index, item in enumerate(conversations)]
        num_tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
        total = 0.0
        for block in self._blocks(samples, micro_batch_tokens):
            logprobs = token_logprobs(self.model, block.token_ids, block.loss_mask, temperature=1.0)
            loss = sft_loss(logprobs, block.loss_mask, num_tokens=num_tokens)
            loss.backward()
            total += float(loss.detach())
        norm = self._update(rate, config.max_grad_norm, is_empty=num_tokens == 0)
        self._stop_if_diverged(1, norm)
        self.counters.num_steps += 1
        return total

    def save_optimizer(self, folder: Path) -> None:
        """`optimizer.safetensors` (moments by parameter name) and `optimizer.json` (counters)."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state.get(parameter, {})
            tensors |= {f"{moment}.{name}": state[moment] for moment in MOMENTS if state}
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "optimizer.safetensors")
        text = json.dumps(vars(self.counters), indent=2, sort_keys=True)
        (folder / "optimizer.json").write_text(text + "\n")

    def load_optimizer(self, folder: Path) -> None:
        """What `save_optimizer` wrote, bit for bit; betas stay those of this engine."""
        tensors = load_file(folder / "optimizer.safetensors")
        self.counters = Counters(**json.loads((folder / "optimizer.json").read_text()))
        self.optimizer.state.clear()
        for name, parameter in self.model.named_parameters():
            if f"exp_avg.{name}" not in tensors:
                continue
            state = {moment: tensors[f"{moment}.{name}"].to(parameter.device) for moment in MOMENTS}
            step = torch.tensor(float(self.counters.num_updates))
            self.optimizer.state[parameter] = {"step": step, **state}

    def _policy_backward(
        self, samples: Sequence[Sample], config: TrainerConfig, temperature: float
    ) -> tuple[float, LossSums]:
        total, sums = 0.0, NO_SUMS
        for block in self._blocks(samples, config.micro_batch_tokens):
            logprobs = token_logprobs(
                self.model, block.token_ids, block.loss_mask, temperature=temperature
            )
            loss, block_sums = policy_loss(
                logprobs,
                block.behaviour_logprobs,
                advantages=block.advantages,
                loss_mask=block.loss_mask,
                loss_weights=block.loss_weights,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
            )
            loss.backward()
            total += float(loss.detach())
            sums = sums + block_sums
        return total, sums

    def _update(self, rate: float, max_grad_norm: float, *, is_empty: bool) -> float:
        """Clips and applies the gradient, or drops it where it is empty or not finite; its norm."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = float(nn.utils.clip_grad_norm_(parameters, max_grad_norm)) if parameters else 0.0
        if is_empty or not math.isfinite(norm):
            self.counters.num_skipped += 1
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.counters.num_updates += 1
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _stop_if_diverged(self, max_skipped: int, norm: float) -> None:
        if math.isfinite(norm):
            self.counters.num_not_finite_in_a_row = 0
            return
        self.counters.num_not_finite_in_a_row += 1
        if self.counters.num_not_finite_in_a_row >= max_skipped:
            raise TrainingStoppedError(
                f"the gradient was not finite {self.counters.num_not_finite_in_a_row} times in a "
                "row; expected finite ones. Lower the learning rate, or check the last batch"
            )

    def _blocks(self, samples: Sequence[Sample], max_padded_tokens: int) -> Iterator[Block]:
        device = next(self.model.parameters()).device
        for rows in micro_batches(samples, max_padded_tokens):
            yield make_block(rows, device)


@dataclass(frozen=True, slots=True)
class Block:
    """A micro-batch as tensors, right-padded to one width."""

    token_ids: Tensor  # [B, T] int64
    loss_mask: Tensor  # [B, T] bool
    behaviour_logprobs: Tensor  # [B, T]
    advantages: Tensor  # [B]
    loss_weights: Tensor  # [B]


def make_block(samples: Sequence[Sample], device: torch.device) -> Block:
    """Padding is id 0, masked out; position 0 has no context and never counts."""
    shape = len(samples), padded_width(max(len(sample.token_ids) for sample in samples))
    token_ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    logprobs = np.zeros(shape, np.float32)
    for row, sample in enumerate(samples):
        length = len(sample.token_ids)
        token_ids[row, :length] = sample.token_ids
        mask[row, :length] = sample.loss_mask
        logprobs[row, :length] = sample.behaviour_logprobs
    mask[:, 0] = False
    weights = [sample.loss_weight for sample in samples]
    return Block(
        token_ids=torch.from_numpy(token_ids).to(device),
        loss_mask=torch.from_numpy(mask).to(device),
        behaviour_logprobs=torch.from_numpy(logprobs).to(device),
        advantages=torch.tensor([s.advantage for s in samples], dtype=torch.float32, device=device),
        loss_weights=torch.tensor(weights, dtype=torch.float32, device=device),
    )


def sft_learning_rate(config: SftConfig, step: int) -> float:
    """The rate of 0-based `step`: linear warm-up, then the schedule's decay to 0 at the end."""
    progress = step / config.num_steps
    if config.schedule == "cosine":
        decay = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        decay = min(1.0, (1.0 - progress) / 0.4)
    return config.learning_rate * _warmup(step, config.warmup_steps) * max(0.0, decay)


def _adamw(model: nn.Module, config: OptimizerConfig | SftConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
    )


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def _sft_sample(index: int, token_ids: TokenIds, mask: Mask) -> Sample:
    return Sample(
        rollout_id=f"{index:08d}",
        problem_id="",
        token_ids=token_ids,
        loss_mask=mask,
        behaviour_logprobs=np.zeros(len(token_ids), np.float32),
        advantage=0.0,
        loss_weight=0.0,
    )


def _metrics(
    losses: Sequence[float],
    norms: Sequence[float],
    sums: Sequence[LossSums],
    *,
    num_skipped: int,
    seconds: float,
) -> TrainMetrics:
    """Means over the updates, or over their tokens; the KL is that of the first update alone, since
    later ones see a policy that has moved."""
    first = sums[0] if sums else NO_SUMS
    total = sum(sums, NO_SUMS)
    num_tokens = max(1.0, total.num_tokens)
    return TrainMetrics(
        loss=math.fsum(losses) / max(1, len(losses)),
        grad_norm=sum(norms) / max(1, len(norms)),
        clip_fraction=total.num_clipped / num_tokens,
        behaviour_kl=first.kl / max(1.0, first.num_tokens),
        entropy=total.entropy / num_tokens,
        num_tokens=int(total.num_tokens),
        num_skipped_updates=num_skipped,
        seconds=seconds,
    )
