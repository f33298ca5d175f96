"""Weights of a policy: made from nothing, read from and written to a Hugging Face folder, hashed.

Reads and writes model folders (`config.json`, `model.safetensors`, tokenizer files). A folder is
written beside its place and renamed, so a killed writer leaves no half folder under the final name.
Downloads nothing: a missing folder is an error, never a request to a hub.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rstar2.config import TinyModel

TINY_MAX_POSITIONS = 2048
"""Longest sequence a tiny model accepts; its rotary embedding has no parameters to outgrow."""


class ModelFolderError(ValueError):
    """A folder holds no model that can be loaded."""


def build_tiny_model(tiny: TinyModel, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 in float32 with tied embeddings; a function of its arguments, of nothing global."""
    config = Qwen3Config(
        hidden_size=tiny.hidden_size,
        num_hidden_layers=tiny.num_layers,
        num_attention_heads=tiny.num_heads,
        num_key_value_heads=tiny.num_kv_heads,
        head_dim=tiny.head_dim,
        intermediate_size=tiny.intermediate_size,
        vocab_size=tiny.vocab_size,
        rope_parameters={"rope_type": "default", "rope_theta": tiny.rope_theta},
        initializer_range=tiny.init_std,
        max_position_embeddings=TINY_MAX_POSITIONS,
        tie_word_embeddings=True,
        dtype="float32",
    )
    # The constructor draws from torch's global generator: hide that, then draw from our own.
    with torch.random.fork_rng(devices=[]):
        model = Qwen3ForCausalLM(config).to(torch.float32)
    _initialise(model, std=tiny.init_std, seed=seed)
    return model.eval()


def _initialise(model: Qwen3ForCausalLM, *, std: float, seed: int) -> None:
    """Norm scales are 1, every other parameter is normal; drawn in order of the names."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, std, generator=generator)


def load_model(folder: Path | str, dtype: Literal["float32", "bfloat16"]) -> PreTrainedModel:
    """The causal language model in `folder`, in evaluation mode, every weight read from there."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ModelFolderError(
            f"{folder}: no config.json there; expected a folder that transformers loads "
            "(config.json and safetensors files). Check model.base, or the checkpoint's path"
        )
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ModelFolderError(
            f"{folder}: cannot be loaded ({type(error).__name__}: {error}); expected a whole folder "
            "that transformers loads. Copy it again, or check model.base"
        ) from error
    if missing := sorted(found["missing_keys"]):
        # Transformers would draw these at random and train on.
        raise ModelFolderError(
            f"{folder}: {len(missing)} weights are missing, the first {missing[0]}; expected all that "
            "config.json names. Copy the folder again, or check model.base"
        )
    return model.eval()


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None, folder: Path | str
) -> None:
    """Writes model and tokenizer to `folder`, replacing one that is there, by rename."""
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        model.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
        for file in partial.iterdir():
            _flush_to_disk(file)
        _replace_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _flush_to_disk(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())


def _replace_folder(source: Path, target: Path) -> None:
    """A folder that is not empty cannot be renamed over: the old one steps aside first."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def weights_checksum(state_dict: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes, in order of the names: 64 hex digits."""
    digest = hashlib.sha256()
    for name in sorted(state_dict):
        tensor = state_dict[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
