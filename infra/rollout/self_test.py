"""What the embedded engine's results rest on, checked with the loaded weights at every start.

Linear algebra libraries choose kernels by shape and processor; on some of them a token's bits may
depend on the other rows of its pass after all. Then two runs of one seed would differ, so the
engine refuses to start. Writes nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from infra.rollout.decoder import KEY_BLOCK, Decoder, Indices, KeyValueCache, Rows, Weights
from infra.rollout.sampling import SamplingRows, sample

NUM_TOKENS = 44
NUM_DECODED = 4
"""The last of `NUM_TOKENS`, decoded one by one where the plain schedule feeds them at once."""
MAX_LOGIT_DIFFERENCE = 1e-3


class DeterminismError(RuntimeError):
    """A token's bits depend on what else is in its pass."""


class ParityError(RuntimeError):
    """The engine's logits are not those of the model."""


@torch.inference_mode()
def check_determinism(weights: Weights) -> None:
    """Feeds one conversation by several schedules, alone and among others; compares bits."""
    longest = min(2 * KEY_BLOCK + 24, weights.shape.max_positions)
    tokens = np.random.default_rng(0).integers(weights.shape.vocab_size, size=longest)
    expected = _decode(weights, tokens, slot=0, neighbours=0, piece=NUM_TOKENS)
    for slot, neighbours, piece in ((0, 1, 1), (2, 14, 7), (5, 21, 16), (30, 31, 40)):
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
) -> tuple[Indices, np.ndarray, np.ndarray]:
    """Token ids, logprobs and last logits of the probe after feeding it in pieces of `piece`.

    Neighbours are conversations of other lengths, up to all of `tokens`, in the other slots.
    """
    num_slots = neighbours + 1
    cache = KeyValueCache(weights.shape, num_slots=num_slots, max_tokens=len(tokens))
    decoder = Decoder(weights, cache)
    others = [s for s in range(num_slots) if s != slot]
    lengths = np.full(num_slots, NUM_TOKENS - NUM_DECODED)
    lengths[others] = np.linspace(3, len(tokens) - NUM_DECODED, num=neighbours).astype(int)
    last_neighbours = others[-3:]
    for other in last_neighbours:
        decoder.forward(_fed(tokens, other, 0, int(lengths[other])))
    for start in range(0, int(lengths[slot]), piece):
        decoder.forward(_fed(tokens, slot, start, min(start + piece, int(lengths[slot]))))
    drawn = []
    for _ in range(NUM_DECODED):
        slots = np.arange(num_slots)
        rows = Rows(
            token_ids=tokens[lengths], slots=slots, positions=lengths, num_decoded=num_slots
        )
        logits = decoder.forward(rows)
        lengths = lengths + 1
        token_ids, logprobs = sample(logits, _settings(lengths))
        drawn.append((token_ids[slot], logprobs[slot]))
    ids, logprobs = zip(*drawn, strict=True)
    return np.array(ids), np.array(logprobs), logits[slot].numpy()


def _fed(tokens: Indices, slot: int, start: int, stop: int) -> Rows:
    positions = np.arange(start, stop)
    slots = np.full(stop - start, slot)
    return Rows(token_ids=tokens[start:stop], slots=slots, positions=positions, num_decoded=0)


def _settings(positions: Indices) -> SamplingRows:
    size = len(positions)
    return SamplingRows(
        seeds=np.full(size, 1234, dtype=np.uint64),
        positions=positions,
        temperatures=np.full(size, 0.7, dtype=np.float32),
        top_ps=np.full(size, 0.9, dtype=np.float32),
    )


@torch.inference_mode()
def check_parity(model: PreTrainedModel, weights: Weights) -> None:
    """Compares last logits with the model's own forward pass, where that is in float32."""
    if model.dtype != torch.float32:
        return
    tokens = np.random.default_rng(1).integers(weights.shape.vocab_size, size=NUM_TOKENS)
    cache = KeyValueCache(weights.shape, num_slots=1, max_tokens=NUM_TOKENS)
    rows = Rows(
        token_ids=np.roll(tokens, 1),
        slots=np.zeros(NUM_TOKENS, dtype=np.int64),
        positions=np.roll(np.arange(NUM_TOKENS), 1),
        num_decoded=1,
    )
    ours = Decoder(weights, cache).forward(rows)[0]
    theirs = model(input_ids=torch.from_numpy(tokens)[None]).logits[0, -1].float().cpu()
    difference = (ours - theirs).abs().max().item()
    allowed = MAX_LOGIT_DIFFERENCE * max(1.0, theirs.abs().max().item())
    if not difference <= allowed:
        raise ParityError(
            f"logits differ from the model's own by {difference:.2e}, expected at most "
            f"{allowed:.2e}: the configuration has something that the embedded engine does not "
            'compute; use rollout.engine = "sglang" for this model'
        )
