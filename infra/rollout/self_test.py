"""What the embedded engine's results rest on, checked with the loaded weights at every start.

Linear algebra libraries choose kernels by shape and processor; on some of them a token's bits may
depend on the other rows of its pass after all. Then two runs of one seed would differ, so the
engine refuses to start. Writes nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from infra.rollout.decoder import KEY_BLOCK, Decoder, Indices, KeyValueCache, Weights
from infra.rollout.sampling import SamplingRows, sample

NUM_TOKENS = 24
SCHEDULES = ((0, 1, 1), (2, 14, 7), (5, 21, 16), (50, 95, 22))
"""Slot of the probe, number of neighbours, tokens fed at once."""
FAR_SCHEDULES = ((5, 21, 16),)
FAR = 150
"""A second probe stands so far: sums over many keys are cut into parts, over few they are not."""
NUM_DECODED = 2
"""The last of `NUM_TOKENS`, decoded one by one where the plain schedule feeds them at once."""
MAX_LOGIT_DIFFERENCE = 1e-3


class DeterminismError(RuntimeError):
    """A token's bits depend on what else is in its pass."""


class ParityError(RuntimeError):
    """The engine's logits are not those of the model."""


def check_determinism(weights: Weights) -> None:
    """Feeds one conversation by several schedules, alone and among others; compares bits."""
    longest = min(2 * KEY_BLOCK + 24, weights.shape.max_positions)
    tokens = np.random.default_rng(0).integers(weights.shape.vocab_size, size=longest)
    _compare(weights, tokens, first=0, schedules=SCHEDULES)
    if longest > FAR + NUM_TOKENS:
        _compare(weights, tokens, first=FAR, schedules=FAR_SCHEDULES)


def _compare(
    weights: Weights,
    tokens: Indices,
    *,
    first: int,
    schedules: tuple[tuple[int, int, int], ...],
) -> None:
    expected = _decode(weights, tokens, slot=0, neighbours=0, piece=NUM_TOKENS, first=first)
    for slot, neighbours, piece in schedules:
        seen = _decode(weights, tokens, slot=slot, neighbours=neighbours, piece=piece, first=first)
        if not all(np.array_equal(a, b) for a, b in zip(expected, seen, strict=True)):
            difference = abs(expected[1] - seen[1]).max()
            raise DeterminismError(
                f"a token's bits depend on its pass: logits alone and in slot {slot} beside "
                f"{neighbours} conversations, fed by {piece} from position {first}, differ by "
                f"{difference:.1e}; expected equal bits. This is torch {torch.__version__} on "
                f"{torch.backends.cpu.get_cpu_capability()}. Set MKL_CBWR=COMPATIBLE (or "
                "ATEN_CPU_CAPABILITY=default) in the environment and start again"
            )


def _decode(
    weights: Weights, tokens: Indices, *, slot: int, neighbours: int, piece: int, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """The probe, fed in pieces of `piece`: drawn tokens with their logprobs, and last logits.

    It begins at position `first`, after made-up keys. Neighbours stand at other lengths, up to
    all of `tokens`; their keys may be zero, since only shapes matter.
    """
    num_slots = neighbours + 1
    cache = KeyValueCache(weights.shape, num_slots=num_slots, max_tokens=len(tokens))
    decoder = Decoder(weights, cache)
    lengths = np.linspace(3, len(tokens) - NUM_DECODED, num=num_slots).astype(int)
    made_up = torch.randn(cache.tensor[:, :, 0, :, :first].shape, generator=_generator())
    cache.tensor[:, :, slot, :, :first] = made_up
    lengths[slot] = known = first + NUM_TOKENS - NUM_DECODED
    for start in range(first, known, piece):
        positions = np.arange(start, min(start + piece, known))
        beside = np.arange(neighbours % 5)  # tokens of another conversation in the same pass
        decoder.feed(
            np.concatenate([tokens[beside], tokens[positions]]),
            np.repeat([(slot + 1) % num_slots, slot], [len(beside), len(positions)]),
            np.concatenate([beside, positions]),
        )
    drawn = []
    for _ in range(NUM_DECODED):
        logits = decoder.decode(tokens[lengths], lengths)
        lengths = lengths + 1
        token_ids, chances = sample(logits, _settings(lengths))
        drawn.append((token_ids[slot], chances[slot]))
    return np.array(drawn), logits[slot].numpy()


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _settings(positions: Indices) -> SamplingRows:
    size = len(positions)
    return SamplingRows(
        seeds=np.full(size, 1234, dtype=np.uint64),
        positions=positions,
        temperatures=np.full(size, 0.7, dtype=np.float32),
        top_ps=np.full(size, 0.9, dtype=np.float32),
    )


def check_parity(model: PreTrainedModel, weights: Weights) -> None:
    """Compares last logits with the model's own forward pass, where that is in float32."""
    if model.dtype != torch.float32:
        return
    tokens = np.random.default_rng(1).integers(weights.shape.vocab_size, size=NUM_TOKENS)
    cache = KeyValueCache(weights.shape, num_slots=1, max_tokens=NUM_TOKENS)
    decoder = Decoder(weights, cache)
    with torch.no_grad():
        positions = np.arange(NUM_TOKENS - 1)
        decoder.feed(tokens[:-1], np.zeros_like(positions), positions)
        ours = decoder.decode(tokens[-1:], np.array([NUM_TOKENS - 1]))[0]
        theirs = model(input_ids=torch.from_numpy(tokens)[None]).logits[0, -1].cpu()
    difference = (ours - theirs).abs().max().item()
    allowed = MAX_LOGIT_DIFFERENCE * max(1.0, theirs.abs().max().item())
    if not difference <= allowed:
        raise ParityError(
            f"logits differ from the model's own by {difference:.2e}, expected at most "
            f"{allowed:.2e}: the configuration has something that the embedded engine does not "
            "compute; choose another model.base"
        )
