"""The embedded engine's forward pass: Qwen3 and Llama by hand, over rows and a cache of slots.

Reads the weights of a `transformers` model, never its code. A *row* is one token of one
conversation: decoded tokens, prompts and observations are all fed as rows of the same pass, so a
token's bits cannot depend on how it came in. Writes keys and values into a `KeyValueCache`.

Bits of a row are those of any pass that contains it, because (measured, and checked at every start
by `self_test`): matrix products see at least 16 rows, in multiples of 16; keys are padded to a
multiple of 16; values are summed in blocks of 128 keys, since longer products are cut in halves
whose border moves with the padding; every pass runs on one thread. Where elementwise kernels treat
the last few elements apart, the multiple of 16 keeps their number at zero.

Computes in float32 whatever the model's type. Does not sample and knows no conversations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

ROW_MULTIPLE = 16
KEY_MULTIPLE = 16
KEY_BLOCK = 128
FED_BLOCK = 64
"""Fed rows whose keys are gathered at once: bounds the copy."""
ROTARY_CHUNK = 256

Indices = NDArray[np.int64]


class UnsupportedModelError(ValueError):
    """The embedded engine cannot run this model exactly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    epsilon: float

    @property
    def queries_per_key(self) -> int:
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One block's weights; queries and keys have their rotary pairs side by side."""

    input_norm: torch.Tensor  # [d]
    qkv: torch.Tensor  # [(H + 2 KV) hd, d]
    qk_norm: torch.Tensor | None  # [H + KV, hd]; queries' part holds the 1/sqrt(hd)
    output: torch.Tensor  # [H hd, d], transposed for addmm
    mlp_norm: torch.Tensor  # [d]
    gate_up: torch.Tensor  # [2 ff, d]
    down: torch.Tensor  # [ff, d], transposed for addmm


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    shape: Shape
    embedding: torch.Tensor  # [V, d]
    layers: tuple[Layer, ...]
    final_norm: torch.Tensor  # [d]
    head: torch.Tensor  # [V, d]
    inverse_frequencies: torch.Tensor  # [hd / 2]
    rotary_scale: float


class KeyValueCache:
    """Keys and values of `num_slots` conversations and of one slot for padding rows."""

    def __init__(self, shape: Shape, *, num_slots: int, max_tokens: int) -> None:
        self.num_slots = num_slots
        self.max_tokens = _round_up(max_tokens, KEY_MULTIPLE)
        size = (shape.num_layers, num_slots + 1, shape.num_kv_heads, self.max_tokens)
        # Zeros, not empty: a masked key's value is multiplied by 0, which must not meet a NaN.
        self.keys = torch.zeros(*size, shape.head_dim)  # [layers, slots + 1, KV, T, hd]
        self.values = torch.zeros(*size, shape.head_dim)

    def grown(self, shape: Shape, *, max_tokens: int) -> KeyValueCache:
        """A longer cache with the same conversations in the same slots."""
        longer = KeyValueCache(shape, num_slots=self.num_slots, max_tokens=max_tokens)
        longer.keys[:, :, :, : self.max_tokens] = self.keys
        longer.values[:, :, :, : self.max_tokens] = self.values
        return longer

    def copy_slots(self, *, source: Indices, target: Indices, num_tokens: int) -> None:
        """Copies the first `num_tokens` of each source slot; sources are read before any write."""
        read, written = torch.from_numpy(source), torch.from_numpy(target)
        for tensor in (self.keys, self.values):
            tensor[:, written, :, :num_tokens] = tensor[:, read, :, :num_tokens]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """The tokens of one pass: first one for each of the slots 0 to `num_decoded` - 1, in order."""

    token_ids: Indices  # [n]
    slots: Indices  # [n]
    positions: Indices  # [n]
    num_decoded: int


class Decoder:
    """Runs passes over one cache. Not thread-safe; the weights may be shared."""

    def __init__(self, weights: Weights, cache: KeyValueCache) -> None:
        self.weights = weights
        self.cache = cache
        self._rotary = torch.empty(0, weights.shape.head_dim // 2, dtype=torch.complex64)

    def forward(self, rows: Rows) -> torch.Tensor:  # [num_decoded, V]
        """Writes the rows' keys and values; returns the logits of the decoded rows."""
        weights, shape = self.weights, self.weights.shape
        num_rows = len(rows.token_ids)
        token_ids, slots, positions = _pad_rows(rows, self.cache.num_slots)
        rotary = self._rotary_table(positions)[:, None]  # [R, 1, hd / 2]
        targets = _cache_indices(slots, positions, shape.num_kv_heads, self.cache.max_tokens)
        masks = _Masks(positions[:num_rows], rows.num_decoded)
        hidden = F.embedding(torch.from_numpy(token_ids), weights.embedding)  # [R, d]
        mixed = hidden.new_zeros(len(token_ids), shape.num_heads * shape.head_dim)
        for index, layer in enumerate(weights.layers):
            query = self._project(index, layer, hidden, rotary=rotary, targets=targets)
            self._attend(index, query, slots[:num_rows], masks=masks, out=mixed)
            hidden = torch.addmm(hidden, mixed, layer.output)
            normed = F.rms_norm(hidden, (shape.hidden_size,), layer.mlp_norm, shape.epsilon)
            gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = torch.addmm(hidden, F.silu(gate).mul_(up), layer.down)
        return self._logits(hidden, rows.num_decoded)

    def _logits(self, hidden: torch.Tensor, num_decoded: int) -> torch.Tensor:
        weights, shape = self.weights, self.weights.shape
        kept = hidden[: _round_up(num_decoded, ROW_MULTIPLE)]
        normed = F.rms_norm(kept, (shape.hidden_size,), weights.final_norm, shape.epsilon)
        return F.linear(normed, weights.head)[:num_decoded]

    def _project(
        self,
        index: int,
        layer: Layer,
        hidden: torch.Tensor,
        *,
        rotary: torch.Tensor,
        targets: torch.Tensor,
    ) -> torch.Tensor:  # [R, H, hd]
        """The rotated queries; keys and values go to the cache."""
        shape = self.weights.shape
        num_rotated = shape.num_heads + shape.num_kv_heads
        normed = F.rms_norm(hidden, (shape.hidden_size,), layer.input_norm, shape.epsilon)
        qkv = F.linear(normed, layer.qkv).view(len(hidden), -1, shape.head_dim)
        rotated = qkv[:, :num_rotated]
        if layer.qk_norm is not None:
            rotated = F.rms_norm(rotated, (shape.head_dim,), None, shape.epsilon) * layer.qk_norm
        pairs = torch.view_as_complex(rotated.unflatten(-1, (-1, 2)))
        rotated = torch.view_as_real(pairs * rotary).flatten(-2)  # [R, H + KV, hd]
        for cache, new in (
            (self.cache.keys, rotated[:, shape.num_heads :]),
            (self.cache.values, qkv[:, num_rotated:]),
        ):
            flat = cache[index].view(-1, shape.head_dim)
            flat.index_copy_(0, targets, new.reshape(-1, shape.head_dim))
        return rotated[:, : shape.num_heads]

    def _attend(
        self, index: int, query: torch.Tensor, slots: Indices, *, masks: _Masks, out: torch.Tensor
    ) -> None:
        """Fills `out` [R, H hd]: decoded rows read their slots in place, fed rows a copy."""
        keys, values = self.cache.keys[index], self.cache.values[index]
        decoded = masks.num_decoded
        if decoded:
            length = masks.decoded.shape[-1]
            out[:decoded] = self._attention(
                query[:decoded],
                keys[:decoded, :, :length],
                values[:decoded, :, :length],
                masks.decoded,
            )
        for start, mask in masks.fed:
            stop, length = start + len(mask), mask.shape[-1]
            chosen = torch.from_numpy(slots[start:stop])
            out[start:stop] = self._attention(
                query[start:stop],
                keys[:, :, :length].index_select(0, chosen),
                values[:, :, :length].index_select(0, chosen),
                mask,
            )

    def _attention(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:  # [n, H hd]
        """One query a row, [n, H, hd], over keys [n, KV, L, hd] with mask [n, 1, L]."""
        shape = self.weights.shape
        num_rows, _, length, head_dim = keys.shape
        grouped = query.reshape(-1, shape.queries_per_key, head_dim)  # [n KV, G, hd]
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)  # [n KV, L, hd]
        scores = torch.bmm(grouped, keys.transpose(1, 2))  # [n KV, G, L]
        scores.view(num_rows, -1, length).add_(mask)
        probabilities = torch.softmax(scores, dim=-1)
        mixed = torch.bmm(probabilities[..., :KEY_BLOCK], values[:, :KEY_BLOCK])
        for start in range(KEY_BLOCK, length, KEY_BLOCK):
            block = slice(start, start + KEY_BLOCK)
            mixed.baddbmm_(probabilities[..., block], values[:, block])
        return mixed.view(num_rows, -1)

    def _rotary_table(self, positions: Indices) -> torch.Tensor:  # [R, hd / 2] complex
        while len(self._rotary) <= positions.max():
            chunk = _rotary_chunk(self.weights, len(self._rotary))
            self._rotary = torch.cat([self._rotary, chunk])
        return self._rotary[torch.from_numpy(positions)]


class _Masks:
    """What each row may see, as numbers to add: 0 up to its own position, minus infinity after.

    Fed rows come in blocks `(first row, mask)`, each with the key length that it needs.
    """

    def __init__(self, positions: Indices, num_decoded: int) -> None:
        self.num_decoded = num_decoded
        self.decoded = _mask(positions[:num_decoded])
        self.fed = [
            (start, _mask(positions[start : start + FED_BLOCK]))
            for start in range(num_decoded, len(positions), FED_BLOCK)
        ]


def _mask(positions: Indices) -> torch.Tensor:  # [n, 1, L]
    length = _round_up(int(positions.max(initial=0)) + 1, KEY_MULTIPLE)
    hidden = torch.arange(length) > torch.from_numpy(positions)[:, None]
    return torch.zeros(len(positions), length).masked_fill_(hidden, float("-inf"))[:, None]


def _pad_rows(rows: Rows, padding_slot: int) -> tuple[Indices, Indices, Indices]:
    """Token ids, slots, positions, filled up with token 0 at position 0 of the spare slot."""
    size = _round_up(len(rows.token_ids), ROW_MULTIPLE)
    token_ids, slots, positions = np.zeros((3, size), dtype=np.int64)
    slots[:] = padding_slot
    for padded, given in (
        (token_ids, rows.token_ids),
        (slots, rows.slots),
        (positions, rows.positions),
    ):
        padded[: len(given)] = given
    return token_ids, slots, positions


def _cache_indices(
    slots: Indices, positions: Indices, num_kv_heads: int, max_tokens: int
) -> torch.Tensor:  # [R KV], into [(slots + 1) KV T]
    heads = np.arange(num_kv_heads, dtype=np.int64) * max_tokens
    first = slots * (num_kv_heads * max_tokens) + positions
    return torch.from_numpy((first[:, None] + heads).reshape(-1))


def _rotary_chunk(weights: Weights, start: int) -> torch.Tensor:  # [ROTARY_CHUNK, hd / 2] complex
    """Rotations of fixed pieces of the position axis: a longer table has the same bits."""
    positions = torch.arange(start, start + ROTARY_CHUNK, dtype=torch.float32)
    angles = positions[:, None] * weights.inverse_frequencies
    scale = weights.rotary_scale
    return torch.complex(angles.cos() * scale, angles.sin() * scale)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
