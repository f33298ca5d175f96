"""The model that training starts from: made from nothing, or a folder that the user has.

Reads `model.base`; writes a model folder with its tokenizer. Downloads nothing.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rstar2.config import RecipeConfig
from rstar2.profiles import base_folder
from rstar2.tiny_tokenizer import make_tiny_tokenizer
from rstar2.training.weights import build_tiny_model, load_model, save_model


def make_base_model(folder: Path, config: RecipeConfig) -> None:
    """Writes the base model of `config.model` to `folder`."""
    base = config.model.base
    if base == "tiny":
        model = build_tiny_model(config.model.tiny, config.seed)
        save_model(model, make_tiny_tokenizer(config.model.tiny.vocab_size), folder)
        return
    source = base_folder(base)
    save_model(load_model(source, config.model.dtype), load_tokenizer(source), folder)


def model_folder_of(checkpoint: Path) -> Path:
    """The folder that `transformers` loads: `model/` of a checkpoint, or the folder itself."""
    return checkpoint / "model" if (checkpoint / "model").is_dir() else checkpoint


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)
