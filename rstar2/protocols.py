"""The three protocols: what stands behind them is all that differs between a laptop and a cluster.

`Generate` samples turns, `Execute` runs tool calls, `Trainer` owns weights and optimizer. With them
the values that only they exchange. Reads and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rstar2.types import Batch, Completion, Mask, TokenIds, ToolCall, ToolResult


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainMetrics:
    """What one optimizer step reports."""

    loss: float
    grad_norm: float
    clip_fraction: float
    """Share of sampled tokens whose ratio left [1 - clip_low, 1 + clip_high]."""
    behaviour_kl: float
    """Mean over sampled tokens of behaviour minus policy logprob before the update, in nats."""
    entropy: float
    """Mean of minus the policy logprob of the sampled tokens, in nats: an estimate."""
    num_tokens: int
    """Sampled tokens in the loss."""
    num_skipped_updates: int = 0
    """Of the step's `num_updates_per_step`, those that were not applied (gradient not finite, or
    every token masked): they left weights and optimizer as they were."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GenerateRequest:
    """One turn asked of an engine: continue `token_ids`."""

    rollout_id: str
    turn: int
    """0-based. Turn n's `token_ids` begin with all tokens of turn n-1's request and completion."""
    token_ids: TokenIds  # [p], the whole conversation so far
    max_new_tokens: int
    temperature: float
    """> 0 samples, and logprobs are those of the tempered distribution; 0 is greedy."""
    top_p: float
    seed: int
    """Of the rollout, 63 bits: token number n of the sequence is a function of (seed, n, logits)."""
    stop_token_ids: tuple[int, ...]


class Generate(Protocol):
    """An engine that samples turns. Holds a rollout's KV between turns until `release`."""

    async def __call__(self, request: GenerateRequest, /) -> Completion: ...

    def release(self, rollout_id: str, /) -> None:
        """Frees what is held for the rollout; unknown ids are ignored."""
        ...


class Trainer(Protocol):
    """Owns weights and optimizer. Calls are synchronous and never overlap."""

    def train_step(self, batch: Batch, /, *, learning_rate: float | None = None) -> TrainMetrics:
        """One policy step; `learning_rate` overrides the configured one (a stage's own)."""
        ...

    def sft(
        self, conversations: Sequence[tuple[TokenIds, Mask]], /, *, start: int, stop: int
    ) -> Sequence[float]:
        """SFT steps `[start, stop)` of the configured schedule; the loss of each.

        The batch of step n is a function of the conversations, the seed and n alone.
        """
        ...

    def reset_optimizer(self) -> None:
        """Fresh moments and warm-up: entering RL after SFT, and RL-3 (report §4.3)."""
        ...

    def save(self, folder: Path, /) -> None:
        """Weights and optimizer, such that `load` continues bit for bit. `folder` is empty."""
        ...

    def load(self, folder: Path, /) -> None: ...

    def state_dict(self) -> Mapping[str, Any]:
        """Weights by name (torch tensors, not copies), for the rollout pool."""
        ...

    def close(self) -> None: ...


class Execute(Protocol):
    """Runs one tool call. Never raises for what the code did; `unavailable` is a status."""

    async def __call__(self, call: ToolCall, /, *, call_id: str) -> ToolResult: ...
