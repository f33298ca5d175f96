"""Building, saving, loading and hashing of a policy's weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rstar2.config import TinyModel
from rstar2.training.weights import (
    ModelFolderError,
    build_tiny_model,
    load_model,
    save_model,
    weights_checksum,
)

SMALL = TinyModel(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=32,
    vocab_size=40,
)


def test_tiny_model_has_the_shape_of_its_configuration() -> None:
    model = build_tiny_model(TinyModel(), seed=0)
    assert sum(p.numel() for p in model.parameters()) == 347_952
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.dtype == torch.float32


def test_same_seed_gives_the_same_bits_whatever_the_global_generator() -> None:
    torch.manual_seed(1)
    first = build_tiny_model(SMALL, seed=7)
    torch.manual_seed(2)
    second = build_tiny_model(SMALL, seed=7)
    assert weights_checksum(first.state_dict()) == weights_checksum(second.state_dict())


def test_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_tiny_model(SMALL, seed=7)
    assert torch.equal(torch.rand(3), expected)


def test_other_seed_gives_other_weights() -> None:
    first, second = (build_tiny_model(SMALL, seed=s).state_dict() for s in (1, 2))
    assert weights_checksum(first) != weights_checksum(second)


def test_initial_weights_have_the_configured_spread() -> None:
    weight = build_tiny_model(TinyModel(init_std=0.05), seed=0).model.embed_tokens.weight
    assert abs(weight.std().item() - 0.05) < 0.002


def test_saved_folder_loads_to_the_same_bits(tmp_path: Path) -> None:
    model = build_tiny_model(SMALL, seed=3)
    save_model(model, None, tmp_path / "m")
    loaded = load_model(tmp_path / "m", "float32")
    assert weights_checksum(loaded.state_dict()) == weights_checksum(model.state_dict())


def test_saving_replaces_a_folder_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    save_model(build_tiny_model(SMALL, seed=1), None, tmp_path / "m")
    newer = build_tiny_model(SMALL, seed=2)
    save_model(newer, None, tmp_path / "m")
    loaded = load_model(tmp_path / "m", "float32")
    assert weights_checksum(loaded.state_dict()) == weights_checksum(newer.state_dict())
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_folder_without_a_model_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"no config\.json there; expected a folder"):
        load_model(tmp_path, "float32")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 2000),
        ("config.json", b"{"),
        ("config.json", b"{}"),
        ("config.json", b'{"model_type": "no such model"}'),
    ],
)
def test_a_damaged_folder_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    save_model(build_tiny_model(SMALL, seed=1), None, tmp_path / "m")
    (tmp_path / "m" / name).write_bytes(content)
    with pytest.raises(ModelFolderError, match=rf"{tmp_path}/m: cannot be loaded"):
        load_model(tmp_path / "m", "float32")


def test_a_weight_that_is_missing_is_never_drawn_at_random(tmp_path: Path) -> None:
    save_model(build_tiny_model(SMALL, seed=1), None, tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ModelFolderError, match=r"1 weights are missing, the first model\.layers\.1\.mlp"
    ):
        load_model(tmp_path / "m", "float32")


def test_checksum_sees_a_changed_bit_and_a_changed_name() -> None:
    tensor = torch.tensor([1.0, 2.0])
    other = torch.tensor([1.0, 2.0000002])
    sums = {weights_checksum({"a": tensor}), weights_checksum({"a": other})}
    assert len(sums | {weights_checksum({"b": tensor})}) == 3
