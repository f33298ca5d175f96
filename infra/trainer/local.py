"""The trainer as one rank in this process: what the laptop and one GPU use.

Owns a `TrainingEngine`; implements `rstar2.protocols.Trainer`. A checkpoint folder holds `model/`, which
`transformers` loads, and `trainer/`: moments, counters and the phase they belong to. Knows neither
rollouts nor stages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from infra.health import ResourceHealth, not_ready
from infra.trainer.base_model import load_tokenizer, model_folder_of
from rstar2.batching import shuffled_batches
from rstar2.config import ConfigError, RecipeConfig
from rstar2.protocols import TrainMetrics
from rstar2.training.engine import TrainingEngine
from rstar2.training.weights import load_model, save_model, weights_checksum
from rstar2.types import Batch, Mask, TokenIds

Phase = Literal["sft", "rl"]
NAME = "trainer"
REMEDY = (
    "start the same run again: it goes on from its last committed checkpoint; where that one holds "
    "them, start a new run with a lower trainer.optimizer.learning_rate"
)


class CheckpointError(ValueError):
    """A checkpoint folder cannot be loaded. The message names it and what is missing."""


class LocalTrainer:
    """One rank. Starts in phase `rl`; `sft` turns to its own optimizer, `reset_optimizer` back."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast | None,
        config: RecipeConfig,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._phase: Phase = "rl"
        self._engine = TrainingEngine(model, config.trainer.optimizer)

    def train_step(self, batch: Batch, /, *, learning_rate: float | None = None) -> TrainMetrics:
        if self._phase != "rl":
            self.reset_optimizer()
        trainer = self._config.trainer
        return self._engine.train_step(
            batch,
            config=trainer,
            learning_rate=learning_rate or trainer.optimizer.learning_rate,
            temperature=self._config.rollout.temperature,
        )

    def sft(
        self, conversations: Sequence[tuple[TokenIds, Mask]], /, *, start: int, stop: int
    ) -> list[float]:
        """Steps `[start, stop)`; the loss of each. Step n's batch depends on n and the seed alone."""
        sft = self._config.sft
        if sft is None:
            raise ConfigError("the profile has no [sft] table: expected one to run SFT steps")
        if self._phase != "sft":
            self._phase = "sft"
            self._engine.reset_optimizer(sft)
        if self._engine.counters.num_steps != start:
            raise CheckpointError(
                f"SFT was asked to go on from step {start}, but the loaded state has "
                f"{self._engine.counters.num_steps} steps; load the checkpoint of step {start}"
            )
        batches = sft_batches(
            [len(token_ids) for token_ids, _ in conversations],
            batch_tokens=sft.batch_tokens,
            seed=self._config.seed,
            num_steps=stop,
        )
        micro_batch_tokens = self._config.trainer.micro_batch_tokens
        return [
            self._engine.sft_step(
                [conversations[index] for index in batch],
                config=sft,
                micro_batch_tokens=micro_batch_tokens,
            )
            for batch in batches[start:]
        ]

    def reset_optimizer(self) -> None:
        """Fresh moments, warm-up and counters, in phase `rl`."""
        self._phase = "rl"
        self._engine.reset_optimizer(self._config.trainer.optimizer)

    def save(self, folder: Path, /) -> None:
        """Writes `model/` and `trainer/`; the store makes them appear at once or not at all.

        Raises `OSError` where there is no room.
        """
        try:
            save_model(self._engine.model, self._tokenizer, folder / "model")
            self._engine.save_optimizer(folder / "trainer")
        except SafetensorError as error:  # also a full disk, which it does not call an OSError
            raise OSError(
                f"{folder}: the checkpoint could not be written: {error}; make room there, then "
                "start again: what is committed stays"
            ) from error
        (folder / "trainer" / "phase.json").write_text(json.dumps({"phase": self._phase}))

    def load(self, folder: Path, /) -> None:
        """Weights, moments and counters of a saved folder, bit for bit."""
        for part in ("model/config.json", "trainer/optimizer.json", "trainer/phase.json"):
            if not (folder / part).is_file():
                raise CheckpointError(
                    f"{folder}: no {part}; expected a checkpoint folder with model/ and trainer/"
                )
        _load_weights(self._engine.model, folder / "model")
        self._phase = json.loads((folder / "trainer" / "phase.json").read_text())["phase"]
        sft, rl = self._config.sft, self._config.trainer.optimizer
        self._engine.reset_optimizer(sft if self._phase == "sft" and sft else rl)
        self._engine.load_optimizer(folder / "trainer")

    def state_dict(self) -> Mapping[str, Any]:
        """The live weights by name: copy them before the next step if they are kept."""
        weights: Mapping[str, Any] = self._engine.model.state_dict()
        return weights

    @property
    def weights(self) -> str:
        """Checksum of the live weights."""
        return weights_checksum(self._engine.model.state_dict())

    async def check(self) -> ResourceHealth:
        """Looks at every weight."""
        weights = dict(self._engine.model.named_parameters())
        broken = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
        if broken:
            seen = f"{len(broken)} tensors are not finite: {', '.join(broken[:3])}"
            return not_ready(NAME, seen, REMEDY)
        num_weights = sum(tensor.numel() for tensor in weights.values())
        seen = f"one rank in this process, {num_weights:,} weights, all finite"
        return ResourceHealth(name=NAME, is_ready=True, capacity=1, seen=seen)

    def close(self) -> None:
        """Nothing is held besides memory."""


def open_trainer(folder: Path, config: RecipeConfig) -> LocalTrainer:
    """A trainer over the weights of `folder`: a checkpoint, or a folder of `transformers`."""
    model_folder = model_folder_of(folder)
    model = load_model(model_folder, config.model.dtype)
    return LocalTrainer(model, load_tokenizer(model_folder), config)


def sft_batches(
    lengths: Sequence[int], *, batch_tokens: int, seed: int, num_steps: int
) -> list[list[int]]:
    """The index batches of the first `num_steps` steps: epoch after epoch, each shuffled anew."""
    batches: list[list[int]] = []
    epoch = 0
    while len(batches) < num_steps and lengths:
        epoch_seed = seed * 1_000_003 + epoch
        batches += shuffled_batches(lengths, max_padded_tokens=batch_tokens, seed=epoch_seed)
        epoch += 1
    return batches[:num_steps]


def _load_weights(model: PreTrainedModel, folder: Path) -> None:
    """Reads all shards. A tied name (the output layer) is not in them and follows its twin."""
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(shard)
    missing = set(dict(model.named_parameters())) - set(tensors)
    unknown = set(tensors) - set(model.state_dict())
    if missing or unknown:
        raise CheckpointError(
            f"{folder}: weights missing {sorted(missing)}, unknown {sorted(unknown)}; expected "
            "those of this run's model"
        )
    model.load_state_dict(tensors, strict=False)
