"""From a `transformers` model to the arrays of the embedded engine's forward pass.

Reads a model's configuration and a state dict; the result shares no memory with either, so a
trainer may go on changing its own. Refuses whatever the forward pass does not compute exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from infra.rollout.decoder import NORM_COLUMNS, Layer, Shape, Weights

MODEL_TYPES = ("qwen3", "llama")
FIXED_ROPE_TYPES = ("default", "llama3", "linear", "yarn")
"""Whose frequencies do not change with the sequence's length."""


class UnsupportedModelError(ValueError):
    """The embedded engine cannot run this model exactly."""


class WeightsError(ValueError):
    """A state dict does not fit the engine's model."""


def read_shape(model: PreTrainedModel) -> Shape:
    """The model's sizes; raises `UnsupportedModelError` for what is not computed here."""
    config = model.config
    _refuse("model_type", config.model_type, config.model_type in MODEL_TYPES)
    _refuse("hidden_act", config.hidden_act, config.hidden_act == "silu")
    for name in ("attention_bias", "mlp_bias"):
        _refuse(name, getattr(config, name, False), not getattr(config, name, False))
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    _refuse("layer_types", sorted(kinds), kinds == {"full_attention"})
    rope = model.model.rotary_emb.rope_type
    _refuse("rope_type", rope, rope in FIXED_ROPE_TYPES)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        vocab_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        epsilon=config.rms_norm_eps,
    )


def _refuse(name: str, value: object, is_supported: bool) -> None:
    if not is_supported:
        raise UnsupportedModelError(
            f"{name} = {value!r}: the embedded engine runs {' and '.join(MODEL_TYPES)} with silu, "
            f"full attention, no biases and rotary types {', '.join(FIXED_ROPE_TYPES)}; "
            "choose another model.base"
        )


def read_weights(model: PreTrainedModel, state_dict: Mapping[str, torch.Tensor]) -> Weights:
    """The weights in `state_dict` (names as in `model.state_dict()`), copied as float32.

    A tied head may be absent. Raises `WeightsError` naming what is missing, unknown or misshapen.
    """
    _check_names(model, state_dict)
    shape = read_shape(model)
    root = shape.hidden_size**0.5
    embedding = _copy(state_dict["model.embed_tokens.weight"])
    is_tied = model.config.tie_word_embeddings
    head = embedding if is_tied else _copy(state_dict["lm_head.weight"])
    rotary = model.model.rotary_emb
    return Weights(
        shape=shape,
        embedding=_with_norm_columns(embedding, shape),
        layers=tuple(_read_layer(shape, state_dict, index) for index in range(shape.num_layers)),
        head=(head * (_copy(state_dict["model.norm.weight"]) * root)).t().contiguous(),
        inverse_frequencies=_copy(rotary.inv_freq),
        rotary_scale=float(rotary.attention_scaling),
    )


def _with_norm_columns(embedding: torch.Tensor, shape: Shape) -> torch.Tensor:
    wide = torch.zeros(len(embedding), shape.hidden_size + NORM_COLUMNS)
    wide[:, : shape.hidden_size] = embedding
    wide[:, shape.hidden_size] = (shape.hidden_size * shape.epsilon) ** 0.5
    return wide


def _check_names(model: PreTrainedModel, state_dict: Mapping[str, torch.Tensor]) -> None:
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    optional = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    missing = sorted(set(expected) - optional - set(state_dict))
    unknown = sorted(set(state_dict) - set(expected))
    misshapen = [
        f"{name} is {tuple(state_dict[name].shape)}, expected {tuple(shape)}"
        for name, shape in sorted(expected.items())
        if name in state_dict and state_dict[name].shape != shape
    ]
    if missing or unknown or misshapen:
        raise WeightsError(
            f"state dict does not fit the engine's model: missing {missing[:4]}, "
            f"unknown {unknown[:4]}, misshapen {misshapen[:4]}; pass the state dict of a model "
            "with the same configuration"
        )
    broken = sorted(name for name, tensor in state_dict.items() if not tensor.isfinite().all())
    if broken:
        raise WeightsError(
            f"weights that are not finite: {broken[:4]}; nothing can be sampled from them, load "
            "an earlier checkpoint"
        )


def _read_layer(shape: Shape, state_dict: Mapping[str, torch.Tensor], index: int) -> Layer:
    def weight(name: str) -> torch.Tensor:
        return _copy(state_dict[f"model.layers.{index}.{name}.weight"])

    root = shape.hidden_size**0.5
    query = _pair_up(weight("self_attn.q_proj"), shape.head_dim)
    key = _pair_up(weight("self_attn.k_proj"), shape.head_dim)
    if f"model.layers.{index}.self_attn.q_norm.weight" in state_dict:
        query_norm = _pair_up(weight("self_attn.q_norm"), shape.head_dim)
        key_norm = _pair_up(weight("self_attn.k_norm"), shape.head_dim) * shape.head_dim**0.5
        qk_norm = torch.cat(
            [query_norm.expand(shape.num_heads, -1), key_norm.expand(shape.num_kv_heads, -1)]
        )
    else:
        query, qk_norm = query * shape.head_dim**-0.5, None
    qkv = torch.cat([query, key, weight("self_attn.v_proj")])
    gate_up = torch.cat([weight("mlp.gate_proj"), weight("mlp.up_proj")])
    return Layer(
        qkv=(qkv * (weight("input_layernorm") * root)).t().contiguous(),
        qk_norm=qk_norm,
        output=weight("self_attn.o_proj").t().contiguous(),
        gate_up=(gate_up * (weight("post_attention_layernorm") * root)).t().contiguous(),
        down=weight("mlp.down_proj").t().contiguous(),
    )


def _pair_up(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorders each head's outputs 0, hd/2, 1, hd/2+1, …: rotary pairs become complex numbers.

    Dot products of queries and keys do not change, since both are reordered alike.
    """
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float32, copy=True).contiguous()
