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

NUM_TOKENS = 44
SCHEDULES = ((0, 1, 1), (2, 14, 7), (5, 21, 16), (50, 95, 40))
"""Slot of the probe, number of neighbours, tokens fed at once."""
NUM_DECODED = 4
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
    expected = _decode(weights, tokens, slot=0, neighbours=0, piece=NUM_TOKENS)
    for slot, neighbours, piece in SCHEDULES:
        seen = _decode(weights, tokens, slot=slot, neighbours=neighbours, piece=piece)
        if not all(np.array_equal(a, b) for a, b in zip(expected, seen, strict=True)):
            raise DeterminismError(
                f"a token's logits depend on its pass: alone {expected[1][-1]:.9f}, and "
                f"{seen[1][-1]:.9f} in slot {slot} beside {neighbours} conversations, fed by "
                f"{piece}. Expected equal bits with torch {torch.__version__} on "
                f"{torch.backends.cpu.get_cpu_capability()}. Set MKL_CBWR=COMPATIBLE (or "
                "ATEN_CPU_CAPABILITY=default) in the environment and start again"
            )


def _decode(
    weights: Weights, tokens: Indices, *, slot: int, neighbours: int, piece: int
) -> tuple[np.ndarray, np.ndarray]:
    """The probe, fed in pieces of `piece`: drawn tokens with their logprobs, and last logits.

    Neighbours are conversations of other lengths, up to all of `tokens`, in the other slots.
    """
    num_slots = neighbours + 1
    cache = KeyValueCache(weights.shape, num_slots=num_slots, max_tokens=len(tokens))
    decoder = Decoder(weights, cache)
    others = [s for s in range(num_slots) if s != slot]
    lengths = np.full(num_slots, NUM_TOKENS - NUM_DECODED)
    lengths[others] = np.linspace(3, len(tokens) - NUM_DECODED, num=neighbours).astype(int)
    for other in others[-3:]:  # of the longest; the others' keys stay zero
        _feed(decoder, tokens, other, start=0, stop=int(lengths[other]))
    for start in range(0, int(lengths[slot]), piece):
        stop = min(start + piece, int(lengths[slot]))
        _feed(decoder, tokens, slot, start=start, stop=stop)
    drawn = []
    for _ in range(NUM_DECODED):
        logits = decoder.decode(tokens[lengths], lengths)
        lengths = lengths + 1
        token_ids, chances = sample(logits, _settings(lengths))
        drawn.append((token_ids[slot], chances[slot]))
    return np.array(drawn), logits[slot].numpy()


def _feed(decoder: Decoder, tokens: Indices, slot: int, *, start: int, stop: int) -> None:
    positions = np.arange(start, stop)
    decoder.feed(tokens[start:stop], np.full(stop - start, slot), positions)


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
        _feed(decoder, tokens, 0, start=0, stop=NUM_TOKENS - 1)
        ours = decoder.decode(tokens[-1:], np.array([NUM_TOKENS - 1]))[0]
        theirs = model(input_ids=torch.from_numpy(tokens)[None]).logits[0, -1].cpu()
    difference = (ours - theirs).abs().max().item()
    allowed = MAX_LOGIT_DIFFERENCE * max(1.0, theirs.abs().max().item())
    if not difference <= allowed:
        raise ParityError(
            f"logits differ from the model's own by {difference:.2e}, expected at most "
            f"{allowed:.2e}: the configuration has something that the embedded engine does not "
            'compute; use rollout.engine = "sglang" for this model'
        )
