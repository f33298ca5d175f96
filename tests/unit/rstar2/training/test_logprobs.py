from __future__ import annotations

import pytest
import torch

from rstar2.config import TinyModel
from rstar2.training import logprobs as module
from rstar2.training.logprobs import token_logprobs
from rstar2.training.weights import build_tiny_model

TINY = TinyModel(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=32,
    vocab_size=40,
    init_std=0.3,
)
IDS = torch.tensor([[3, 14, 15, 9, 2, 6, 0, 0], [5, 3, 5, 8, 9, 7, 9, 3]])
MASK = torch.tensor([[0, 0, 1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1]]).bool()


def reference(temperature: float) -> torch.Tensor:
    """From the full float64 logits of each row, unpadded."""
    model = build_tiny_model(TINY, seed=1).double()
    out = torch.zeros(2, 8, dtype=torch.float64)
    for row, length in enumerate((6, 8)):
        logits = model(IDS[row : row + 1, :length]).logits[0] / temperature
        for t in range(1, length):
            if MASK[row, t]:
                out[row, t] = torch.log_softmax(logits[t - 1], -1)[IDS[row, t]]
    return out


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_tempered_distribution(temperature: float) -> None:
    model = build_tiny_model(TINY, seed=1)
    seen = token_logprobs(model, IDS, MASK, temperature=temperature)
    torch.testing.assert_close(seen.double(), reference(temperature), atol=1e-5, rtol=0)


def test_positions_outside_the_mask_are_zero() -> None:
    seen = token_logprobs(build_tiny_model(TINY, seed=1), IDS, MASK, temperature=1.0)
    assert torch.equal(seen[~MASK], torch.zeros(int((~MASK).sum())))


def test_chunks_give_the_same_logprobs_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = []
    for max_logits in (2**25, 3 * 40):
        monkeypatch.setattr(module, "MAX_LOGITS", max_logits)
        model = build_tiny_model(TINY, seed=1)
        token_logprobs(model, IDS, MASK, temperature=0.7).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for whole, chunked in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, chunked, atol=1e-5, rtol=1e-5)


def test_an_empty_mask_gives_zeros_and_zero_gradients() -> None:
    model = build_tiny_model(TINY, seed=1)
    seen = token_logprobs(model, IDS, torch.zeros(2, 8, dtype=torch.bool), temperature=1.0)
    seen.sum().backward()
    assert not seen.any()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_temperature_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rollout.temperature above 0"):
        token_logprobs(build_tiny_model(TINY, seed=1), IDS, MASK, temperature=0.0)


def test_position_zero_is_refused() -> None:
    mask = MASK.clone()
    mask[0, 0] = True
    with pytest.raises(ValueError, match="position 0"):
        token_logprobs(build_tiny_model(TINY, seed=1), IDS, mask, temperature=1.0)
