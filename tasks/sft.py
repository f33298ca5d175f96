"""SFT: the base model, the conversations, and training up to the next checkpoint.

Reads the generated traces or a JSONL file of conversations; writes the base model and checkpoints as
parts. The batch of a step is a function of seed and step, so a resumed SFT ends in the same weights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.trainer.base_model import make_base_model
from rstar2.config import RecipeConfig, SftConfig
from rstar2.conversations import read_conversations
from rstar2.sft_data import make_conversations
from rstar2.types import ArtifactRef, GateDecision, GateVerdict, Mask, Score, StageResult, TokenIds
from tasks.ledger import SFT, Ledger
from tasks.resources import Resources
from tasks.rollouts import derived_seed
from tasks.training import checkpoint_of, drop_old_checkpoints, save_checkpoint


class Conversations:
    """Rendered conversations. No dataclass and no tuple: Prefect would walk into every array."""

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[tuple[TokenIds, Mask]]) -> None:
        self.rows = rows


@task(name="prepare base model", cache_policy=NO_CACHE)
def prepare_base(ledger: Ledger, config: RecipeConfig) -> ArtifactRef:
    """The model that training starts from, as an artefact of the run."""
    known = ledger.find("base", stage=SFT)
    if known is not None:
        return known.parts["checkpoint"]
    with tempfile.TemporaryDirectory() as folder:
        make_base_model(Path(folder), config)
        ref = ledger.store.put_folder(Path(folder), ledger.key(SFT, "base"), kind="checkpoint")
    ledger.commit("base", stage=SFT, parts={"checkpoint": ref}, values={"base": config.model.base})
    return ref


@task(name="prepare conversations", cache_policy=NO_CACHE)
def prepare_conversations(resources: Resources) -> Conversations:
    """The SFT conversations as tokens and loss masks."""
    settings = sft_settings(resources.config)
    if settings.data == "arithmetic":
        seed = derived_seed(resources.config.seed, SFT)
        conversations = make_conversations(settings.num_conversations, seed)
    else:
        conversations = read_conversations(Path(settings.data), resources.config.chat)
    return Conversations([resources.chat.render_conversation(each) for each in conversations])


@task(name="train sft", cache_policy=NO_CACHE)
def train_sft(
    resources: Resources, *, conversations: Conversations, start: int
) -> tuple[int, float, ArtifactRef]:
    """Trains from step `start` to the next checkpoint and commits it: its step, the mean loss, itself.

    Committed before (its files were damaged), it is only written again.
    """
    settings = sft_settings(resources.config)
    stop = min(start + settings.checkpoint_every_steps, settings.num_steps)
    losses = resources.trainer.sft(conversations.rows, start=start, stop=stop)
    loss = sum(losses) / len(losses)
    known = resources.ledger.find("checkpoint", stage=SFT, step=stop)
    if known is not None:
        return stop, loss, checkpoint_of(resources, known)
    checkpoint = save_checkpoint.fn(resources, stage=SFT, step=stop)
    resources.ledger.commit(
        "checkpoint",
        stage=SFT,
        step=stop,
        parts={"checkpoint": checkpoint},
        values={"loss": loss, "num_steps": settings.num_steps},
    )
    drop_old_checkpoints(resources, stage=SFT, last_step=stop, kind="checkpoint")
    return stop, loss, checkpoint


def sft_settings(config: RecipeConfig) -> SftConfig:
    assert config.sft is not None, "the flow skips SFT where the profile has none"
    return config.sft


def finish_sft(
    ledger: Ledger,
    config: RecipeConfig,
    *,
    checkpoint: ArtifactRef,
    scores: tuple[Score, ...],
) -> StageResult:
    """Commits how SFT ended."""
    num_steps = config.sft.num_steps if config.sft else 0
    reason = f"SFT ran its {num_steps} steps" if num_steps else "the profile has no SFT stage"
    result = StageResult(
        stage=SFT,
        checkpoint=checkpoint,
        problem_set=None,
        last_step=num_steps,
        gate=GateDecision(verdict=GateVerdict.PROMOTE, reason=reason, evidence={}),
        scores=scores,
    )
    ledger.commit("stage", stage=SFT, values=asdict(result))
    ledger.publish(force=True)
    return result
