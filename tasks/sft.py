"""SFT: the base model, the conversations, and training up to the next checkpoint.

Reads the generated traces, the public sets of the mixture, or a JSONL file of conversations; writes
the base model and checkpoints as parts. The batch of a step is a function of seed and step, so a
resumed SFT ends in the same weights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from data_catalog.sft_sources.mixture import read_mixture
from infra.health import ResourceHealth
from infra.trainer.base_model import make_base_model
from rstar2.config import RecipeConfig, SftConfig
from rstar2.conversations import SftDataError, read_conversations
from rstar2.dialogues import Dialogue, is_dialogue_file, read_dialogues, render_dialogues
from rstar2.sft_data import make_conversations
from rstar2.types import (
    ArtifactRef,
    GateDecision,
    GateVerdict,
    Losses,
    Mask,
    Score,
    StageResult,
    TokenIds,
)
from tasks.evaluation import evaluation_totals
from tasks.inputs import MIXTURE
from tasks.ledger import BASE, SFT, Ledger
from tasks.promotion import artifact_key
from tasks.resources import Resources
from tasks.rollouts import derived_seed
from tasks.training import checkpoint_of, drop_old_checkpoints, save_checkpoint

NOTHING_LOST = Losses()


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
    """The SFT conversations as tokens and loss masks; of dialogues, with counts of what was left out."""
    settings, chat, seed = sft_settings(resources.config), resources.chat, resources.config.seed
    if settings.data == "arithmetic":
        made = make_conversations(settings.num_conversations, derived_seed(seed, SFT))
        return Conversations([chat.render_conversation(each) for each in made])
    if settings.data == MIXTURE:
        mixture = read_mixture(settings.mixture, settings.paths, seed=seed)
        sources = [count.row() for count in mixture.counts]
        return _dialogues(resources, mixture.dialogues, sources)
    if is_dialogue_file(Path(settings.data)):
        return _dialogues(resources, read_dialogues(Path(settings.data), chat.config), [])
    read = read_conversations(Path(settings.data), chat.config)
    return Conversations([chat.render_conversation(each) for each in read])


def _dialogues(
    resources: Resources, dialogues: Sequence[Dialogue], sources: Sequence[Mapping[str, object]]
) -> Conversations:
    """Renders dialogues and commits, once, what they are and what could not be trained on."""
    max_tokens = sft_settings(resources.config).batch_tokens
    rendered = render_dialogues(dialogues, resources.chat, max_tokens=max_tokens)
    if not rendered.rows:
        raise SftDataError(
            f"none of {len(dialogues)} dialogues can be trained on ({dict(rendered.dropped)}): "
            "expected some; raise sft.batch_tokens, or name other data in sft.data"
        )
    if resources.ledger.find("conversations", stage=SFT) is None:
        values = {
            "num_conversations": len(rendered.rows),
            "num_tokens": sum(len(token_ids) for token_ids, _ in rendered.rows),
            "num_trained_tokens": sum(int(mask.sum()) for _, mask in rendered.rows),
            "dropped": dict(rendered.dropped),
            "num_rewritten": sum(each.original is not None for each in dialogues),
            "sources": list(sources),
        }
        resources.ledger.commit("conversations", stage=SFT, values=values)
    return Conversations(rendered.rows)


def show_conversations(ledger: Ledger) -> None:
    """A table on the run's page: what became of the rows of each public set; none without sets."""
    rows = conversation_table(ledger)
    if rows:
        key = artifact_key(ledger.run, "sft-data")
        create_table_artifact(table=rows, key=key, description="SFT data by public set")


def conversation_table(ledger: Ledger) -> list[dict[str, object]]:
    """One row for each public set that SFT reads."""
    manifest = ledger.find("conversations", stage=SFT)
    sources = manifest.values["sources"] if manifest else []
    return [
        {
            "set": row["source"],
            "wanted": row["wanted"],
            "rows": row["rows"],
            "kept": row["kept"],
            "over the share": row["not_drawn"],
            "reasoning": _reasons(row["reasoning"]),
            "unusable": _reasons(row["unusable"]),
        }
        for row in sources
    ]


def _reasons(counts: Mapping[str, int]) -> str:
    parts = [f"{number} {reason}" for reason, number in sorted(counts.items())]
    return "; ".join(parts) or "0"


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
    losses: Losses = NOTHING_LOST,
    healths: Sequence[ResourceHealth] = (),
) -> StageResult:
    """Commits how SFT ended, and what it changed."""
    num_steps = config.sft.num_steps if config.sft else 0
    evidence = _evidence(ledger)
    reason = _sentence(num_steps, evidence) if num_steps else "the profile has no SFT stage"
    result = StageResult(
        stage=SFT,
        checkpoint=checkpoint,
        problem_set=None,
        last_step=num_steps,
        gate=GateDecision(verdict=GateVerdict.PROMOTE, reason=reason, evidence=evidence),
        scores=scores,
        losses=losses,
    )
    ledger.commit_result(result, healths)
    ledger.publish(force=True)
    return result


def _evidence(ledger: Ledger) -> dict[str, float | int | str | bool | None]:
    """What was measured before and after, and what was trained on: those of them that there are."""
    before, after = evaluation_totals(ledger, BASE), evaluation_totals(ledger, SFT)
    found: dict[str, float | int | str | bool | None] = {}
    if before is not None:
        found["accuracy_before"] = before["accuracy"]
    if after is not None:
        found |= {"accuracy_after": after["accuracy"]}
        found |= {key: value for key, value in after.items() if key != "accuracy"}
    data = ledger.find("conversations", stage=SFT)
    if data is not None:
        found["num_conversations"] = int(data.values["num_conversations"])
        found["num_dropped"] = sum(data.values["dropped"].values())
    return found


def _sentence(num_steps: int, evidence: Mapping[str, float | int | str | bool | None]) -> str:
    parts = [f"SFT ran its {num_steps} steps"]
    if "num_conversations" in evidence:
        parts.append(
            f"{evidence['num_conversations']} conversations, {evidence['num_dropped']} left out as too "
            "long or not certain to be masked right"
        )
    if "accuracy_after" in evidence:
        before = evidence.get("accuracy_before")
        was = f"{before:.1%} before, " if before is not None else ""
        parts.append(f"held-out accuracy {was}{evidence['accuracy_after']:.1%} after")
        parts.append(f"{evidence['mean_response_tokens']:.0f} tokens a response")
        num_calls = evidence["num_tool_calls"]
        valid = f"{evidence['valid_call_rate']:.1%} of {num_calls} calls valid"
        parts.append(valid if num_calls else "no tool call")
    return "; ".join(parts)
