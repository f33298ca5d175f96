"""The embedded engine's forward pass: Qwen3 and Llama by hand, over rows and a cache of slots.

Reads arrays made by `model_weights`. A *row* is one token of one conversation: decoded tokens,
prompts and observations are all rows of the same arithmetic, so a token's bits cannot depend on
how it came in. Writes keys and values into a `KeyValueCache`.

Bits of a row are those of any pass that contains it, because (measured, and checked at every start
by `self_test`): matrix products see at least 16 rows, in multiples of 16; keys are padded to a
multiple of 16, or of more where heads are so small that short products would take another kernel;
values are summed in blocks of 128 keys, since longer products are cut in halves whose border moves
with the padding; every pass runs on one thread. Where elementwise kernels treat the last few
elements apart, the multiple of 16 keeps their number at zero.

Few calls and no copies, since at these sizes a call costs as much as what it computes: buffers and
their views are kept by number of rows, norms' weights are folded into the products after them, and
the constant under a norm's root rides along as one more column of the hidden state.

Computes in float32 whatever the model's type. Does not sample and knows no conversations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

ROW_MULTIPLE = 16
KEY_BLOCK = 128
MIN_PRODUCT = 400
"""Multiplications of a batched product under which torch takes a kernel of its own (`bmm`)."""
FED_BLOCK = 64
"""Fed rows whose keys are gathered at once: bounds the copy."""
ROTARY_CHUNK = 256
NORM_COLUMNS = 16
"""Added to the hidden state: the first holds sqrt(d * epsilon), the others keep rows aligned."""

Indices = NDArray[np.int64]


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

    @property
    def key_multiple(self) -> int:
        """To which keys are padded: 16, 32, 64 or 128, a part of `KEY_BLOCK`."""
        multiple = 16
        while (
            multiple < KEY_BLOCK and multiple * self.queries_per_key * self.head_dim < MIN_PRODUCT
        ):
            multiple *= 2
        return multiple


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One block's weights, transposed for `mm`; rotary pairs of queries and keys side by side.

    `qkv` and `gate_up` hold the weights of the norm before them, times sqrt(d).
    """

    qkv: torch.Tensor  # [d, (H + 2 KV) hd]
    qk_norm: torch.Tensor | None  # [H + KV, hd], times sqrt(hd); the queries' part over sqrt(hd)
    output: torch.Tensor  # [H hd, d]
    gate_up: torch.Tensor  # [d, 2 ff]
    down: torch.Tensor  # [ff, d]


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    shape: Shape
    embedding: torch.Tensor  # [V, d + NORM_COLUMNS]
    layers: tuple[Layer, ...]
    head: torch.Tensor  # [d, V], with the final norm's weights, times sqrt(d)
    inverse_frequencies: torch.Tensor  # [hd / 2]
    rotary_scale: float


class KeyValueCache:
    """Keys and values of `num_slots` conversations and of one slot for padding rows."""

    def __init__(self, shape: Shape, *, num_slots: int, max_tokens: int) -> None:
        self.num_slots = num_slots
        self.max_tokens = round_up(max_tokens, shape.key_multiple)
        # A multiple, since padded batches read the slots that follow; one more for padding rows.
        self.padding_slot = round_up(num_slots, ROW_MULTIPLE)
        size = (self.padding_slot + 1, shape.num_kv_heads, self.max_tokens, shape.head_dim)
        # Zeros, not empty: a masked key's value is multiplied by 0, which must not meet a NaN.
        self.tensor = torch.zeros(shape.num_layers, 2, *size)  # [layers, 2, slots, KV, T, hd]

    def grown(self, shape: Shape, *, max_tokens: int) -> KeyValueCache:
        """A longer cache with the same conversations in the same slots."""
        longer = KeyValueCache(shape, num_slots=self.num_slots, max_tokens=max_tokens)
        longer.tensor[..., : self.max_tokens, :] = self.tensor
        return longer

    def copy_slots(self, *, source: Indices, target: Indices, num_tokens: int) -> None:
        """Copies the first `num_tokens` of each source slot; sources are read before any write."""
        part = self.tensor[..., :num_tokens, :]
        part[:, :, torch.from_numpy(target)] = part[:, :, torch.from_numpy(source)]

    def indices(self, slots: Indices, positions: Indices) -> torch.Tensor:  # [R 2 KV]
        """Where rows' keys, then values, stand in a layer's [2 slots KV T, hd]."""
        _, _, num_slots, num_kv_heads, max_tokens, _ = self.tensor.shape
        heads = np.arange(num_kv_heads, dtype=np.int64) * max_tokens
        heads = np.concatenate([heads, heads + num_slots * num_kv_heads * max_tokens])
        first = slots * (num_kv_heads * max_tokens) + positions
        return torch.from_numpy((first[:, None] + heads).reshape(-1))


class _Buffers:
    """What a pass over `num_rows` rows writes, and the views that its steps use."""

    def __init__(self, shape: Shape, intermediate_size: int, num_rows: int) -> None:
        num_heads, num_rotated = shape.num_heads, shape.num_heads + shape.num_kv_heads
        heads = torch.zeros(num_rows, num_rotated + shape.num_kv_heads, shape.head_dim)
        self.qkv = heads.flatten(1)  # [R, (H + 2 KV) hd]
        self.rotated = heads[:, :num_rotated]  # [R, H + KV, hd]
        pairs = heads.unflatten(-1, (-1, 2))
        self.pairs = torch.view_as_complex(pairs)[:, :num_rotated]  # [R, H + KV, hd / 2]
        self.query = heads[:, :num_heads]  # [R, H, hd]
        self.key_value = heads[:, num_heads:]  # [R, 2 KV, hd]
        self.mixed = torch.zeros(num_rows, num_heads * shape.head_dim)  # [R, H hd]
        self.gate_up = torch.zeros(num_rows, 2 * intermediate_size)
        self.gate, self.up = self.gate_up.chunk(2, dim=1)  # [R, ff] each


class Decoder:
    """Runs passes over one cache. Not thread-safe; the weights may be shared."""

    def __init__(self, weights: Weights, cache: KeyValueCache) -> None:
        self.weights = weights
        self.cache = cache
        self._buffers: dict[int, _Buffers] = {}
        self._rotary = torch.empty(0, weights.shape.head_dim // 2, dtype=torch.complex64)
        self._head_epsilon = torch.tensor(weights.shape.head_dim * weights.shape.epsilon)

    def decode(self, token_ids: Indices, positions: Indices) -> torch.Tensor:  # [n, V]
        """Feeds one token to each of the slots 0 to n - 1, in order; the logits that follow."""
        num_rows = len(token_ids)
        slots = np.arange(num_rows, dtype=np.int64)
        hidden = self._pass(token_ids, slots, positions, is_decode=True)
        return torch.mm(self._normed(hidden), self.weights.head)[:num_rows]

    def feed(self, token_ids: Indices, slots: Indices, positions: Indices) -> None:
        """Feeds known tokens: any number for any slot, after those that stand before them."""
        self._pass(token_ids, slots, positions, is_decode=False)

    def _pass(
        self, token_ids: Indices, slots: Indices, positions: Indices, *, is_decode: bool
    ) -> torch.Tensor:  # [R, d + NORM_COLUMNS]
        size = round_up(len(token_ids), ROW_MULTIPLE)
        token_ids, positions = _padded(token_ids, size, 0), _padded(positions, size, 0)
        targets = self.cache.indices(_padded(slots, size, self.cache.padding_slot), positions)
        rotary = self._rotary_rows(positions)
        attention = _Attention(self.weights.shape, self.cache, positions)
        gathered = None if is_decode else _padded(slots, size, self.cache.padding_slot)
        buffers = self._buffers_of(size)
        hidden = F.embedding(torch.from_numpy(token_ids), self.weights.embedding)
        state = hidden[:, : self.weights.shape.hidden_size]  # [R, d], a view
        for index, layer in enumerate(self.weights.layers):
            self._project(index, layer, hidden, buffers, rotary=rotary, targets=targets)
            attention.mix(index, buffers.query, buffers.mixed, slots=gathered)
            state.addmm_(buffers.mixed, layer.output)
            torch.mm(self._normed(hidden), layer.gate_up, out=buffers.gate_up)
            F.silu(buffers.gate, inplace=True).mul_(buffers.up)
            state.addmm_(buffers.gate, layer.down)
        return hidden

    def _project(
        self,
        index: int,
        layer: Layer,
        hidden: torch.Tensor,
        buffers: _Buffers,
        *,
        rotary: torch.Tensor,
        targets: torch.Tensor,
    ) -> None:
        """Leaves the rotated queries in the buffers; keys and values go to the cache."""
        torch.mm(self._normed(hidden), layer.qkv, out=buffers.qkv)
        if layer.qk_norm is not None:
            norms = torch.linalg.vector_norm(buffers.rotated, dim=-1, keepdim=True)
            scales = torch.addcmul(self._head_epsilon, norms, norms).rsqrt_()
            buffers.rotated.mul_(scales).mul_(layer.qk_norm)
        buffers.pairs.mul_(rotary)
        flat = self.cache.tensor[index].view(-1, self.weights.shape.head_dim)
        flat.index_copy_(0, targets, buffers.key_value.reshape(-1, flat.shape[1]))

    def _normed(self, hidden: torch.Tensor) -> torch.Tensor:  # [R, d]
        """Over the root of sum of squares plus d * epsilon, which the extra column brings in."""
        norms = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        return hidden[:, : self.weights.shape.hidden_size] / norms

    def _buffers_of(self, num_rows: int) -> _Buffers:
        if num_rows not in self._buffers:
            intermediate_size = self.weights.layers[0].down.shape[0]
            self._buffers[num_rows] = _Buffers(self.weights.shape, intermediate_size, num_rows)
        return self._buffers[num_rows]

    def _rotary_rows(self, positions: Indices) -> torch.Tensor:  # [R, 1, hd / 2] complex
        while len(self._rotary) <= positions.max():
            chunk = _rotary_chunk(self.weights, len(self._rotary))
            self._rotary = torch.cat([self._rotary, chunk])
        return self._rotary[torch.from_numpy(positions)].unsqueeze_(1)


class _Attention:
    """Each row's query over its own slot's keys, up to its own position."""

    def __init__(self, shape: Shape, cache: KeyValueCache, positions: Indices) -> None:
        self._cache = cache.tensor
        self._queries_per_key = shape.queries_per_key
        self._length = round_up(int(positions.max()) + 1, shape.key_multiple)
        hidden = torch.arange(self._length) > torch.from_numpy(positions)[:, None]
        mask = torch.zeros(len(positions), self._length)
        self._mask = mask.masked_fill_(hidden, float("-inf"))[:, None]  # [R, 1, L]

    def mix(
        self, index: int, query: torch.Tensor, out: torch.Tensor, *, slots: Indices | None
    ) -> None:
        """Fills `out` [R, H hd]. Row i reads slot i in place, or a copy of slot `slots[i]`."""
        keys, values = self._cache[index, :, :, :, : self._length].unbind(0)
        if slots is None:
            num_rows = len(query)
            self._mix(query, keys[:num_rows], values[:num_rows], self._mask, out)
            return
        for start in range(0, len(query), FED_BLOCK):
            rows = slice(start, start + FED_BLOCK)
            chosen = torch.from_numpy(slots[rows])
            self._mix(
                query[rows],
                keys.index_select(0, chosen),
                values.index_select(0, chosen),
                self._mask[rows],
                out[rows],
            )

    def _mix(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        num_rows, _, length, head_dim = keys.shape
        grouped = query.reshape(-1, self._queries_per_key, head_dim)  # [R KV, G, hd]
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)  # [R KV, L, hd]
        scores = torch.bmm(grouped, keys.transpose(1, 2))  # [R KV, G, L]
        scores.view(num_rows, -1, length).add_(mask)
        shares = torch.softmax(scores, dim=-1)
        mixed = out.view(grouped.shape)
        if length <= KEY_BLOCK:
            torch.bmm(shares, values, out=mixed)
            return
        torch.bmm(shares[..., :KEY_BLOCK], values[:, :KEY_BLOCK], out=mixed)
        for start in range(KEY_BLOCK, length, KEY_BLOCK):
            block = slice(start, start + KEY_BLOCK)
            mixed.baddbmm_(shares[..., block], values[:, block])


def _rotary_chunk(weights: Weights, start: int) -> torch.Tensor:  # [ROTARY_CHUNK, hd / 2] complex
    """Rotations of fixed pieces of the position axis: a longer table has the same bits."""
    positions = torch.arange(start, start + ROTARY_CHUNK, dtype=torch.float32)
    angles = positions[:, None] * weights.inverse_frequencies
    scale = weights.rotary_scale
    return torch.complex(angles.cos() * scale, angles.sin() * scale)


def _padded(values: Indices, size: int, filling: int) -> Indices:
    if len(values) == size:
        return np.ascontiguousarray(values)
    padded = np.full(size, filling, dtype=np.int64)
    padded[: len(values)] = values
    return padded


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
