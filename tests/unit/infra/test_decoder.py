"""The hand-written forward pass against `transformers`, and the bits of a row."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from infra.rollout.decoder import Decoder, KeyValueCache
from infra.rollout.model_weights import UnsupportedModelError, WeightsError, read_weights
from infra.rollout.self_test import DeterminismError, ParityError, check_determinism, check_parity
from rstar2.config import TinyModel
from rstar2.training.weights import build_tiny_model

NUM_TOKENS = 150


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def llama(**changes: object) -> PreTrainedModel:
    config = LlamaConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        vocab_size=80,
        max_position_embeddings=512,
        initializer_range=0.1,
        **changes,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def qwen3() -> PreTrainedModel:
    model = build_tiny_model(TinyModel(init_std=0.1), seed=4)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):  # ones would hide a norm that is left out
            parameter.copy_(torch.linspace(0.5, 1.5, len(parameter)))
    return model


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "qwen3": qwen3,
    "llama, untied head": lambda: llama(tie_word_embeddings=False),
    "llama, tied head, scaled rotary": lambda: llama(
        tie_word_embeddings=True, rope_parameters=LLAMA3
    ),
}


def decode_all(model: PreTrainedModel, tokens: np.ndarray, num_fed: int) -> torch.Tensor:
    """Logits from position `num_fed` on, of conversations [B, T]: fed, then one by one."""
    weights = read_weights(model, model.state_dict())
    batch, length = tokens.shape
    cache = KeyValueCache(weights.shape, num_slots=batch, max_tokens=length)
    decoder = Decoder(weights, cache)
    slots = np.repeat(np.arange(batch), num_fed)
    positions = np.tile(np.arange(num_fed), batch)
    decoder.feed(tokens[slots, positions], slots, positions)
    steps = [decoder.decode(tokens[:, t], np.full(batch, t)) for t in range(num_fed, length)]
    return torch.stack(steps, dim=1)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str) -> None:
    model = MODELS[name]()
    tokens = np.random.default_rng(0).integers(80, size=(3, NUM_TOKENS))
    expected = model(input_ids=torch.from_numpy(tokens)).logits[:, 40:]
    logits = decode_all(model, tokens, num_fed=40)
    assert expected.abs().max() > 0.5
    assert (logits - expected).abs().max() < 1e-5 * max(1.0, expected.abs().max())


def test_bfloat16_model_is_computed_in_float32() -> None:
    model = llama().to(torch.bfloat16)
    tokens = np.arange(20)[None] % 80
    logits = decode_all(model, tokens, num_fed=10)
    expected = model.float()(input_ids=torch.from_numpy(tokens)).logits[:, 10:]
    assert (logits - expected).abs().max() < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_self_test_passes(name: str) -> None:
    model = MODELS[name]()
    weights = read_weights(model, model.state_dict())
    check_determinism(weights)
    check_parity(model, weights)


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="kernels of MKL are meant")
def test_self_test_refuses_bits_that_depend_on_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = qwen3()
    weights = read_weights(model, model.state_dict())
    # A product with one row is another kernel's than a product with many.
    monkeypatch.setattr("infra.rollout.decoder.ROW_MULTIPLE", 1)
    with pytest.raises(DeterminismError, match=r"Set MKL_CBWR=COMPATIBLE"):
        check_determinism(weights)


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="kernels of MKL are meant")
def test_self_test_sees_sums_whose_parts_move_with_the_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = TinyModel(hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=1, head_dim=16)
    model = build_tiny_model(config, seed=0)
    weights = read_weights(model, model.state_dict())
    monkeypatch.setattr("infra.rollout.decoder.KEY_BLOCK", 4096)  # values are summed at once
    with pytest.raises(DeterminismError, match="from position 150"):
        check_determinism(weights)


def test_short_products_of_small_heads_do_not_take_another_kernel() -> None:
    config = TinyModel(
        hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=16, vocab_size=100
    )
    model = build_tiny_model(config, seed=0)
    weights = read_weights(model, model.state_dict())
    assert weights.shape.key_multiple == 32
    check_determinism(weights)


def test_parity_refuses_other_logits() -> None:
    model = qwen3()
    weights = read_weights(model, model.state_dict())
    wrong = dataclasses.replace(weights, head=weights.head * 1.1)
    with pytest.raises(ParityError, match="differ from the model's own"):
        check_parity(model, wrong)


def test_weights_share_no_memory_with_the_model() -> None:
    model = qwen3()
    weights = read_weights(model, model.state_dict())
    before = weights.embedding.clone()
    model.model.embed_tokens.weight.zero_()
    assert torch.equal(weights.embedding, before)


def test_tied_head_may_be_absent_from_the_state_dict() -> None:
    model = qwen3()
    state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    assert torch.equal(
        read_weights(model, state).head, read_weights(model, model.state_dict()).head
    )


def test_state_dict_that_does_not_fit_is_named() -> None:
    model = qwen3()
    state = dict(model.state_dict())
    state["model.norm.weight"] = torch.ones(95)
    del state["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(WeightsError, match=r"missing \['model.layers.0.mlp.up_proj.weight'\].*95"):
        read_weights(model, state)


def test_weights_that_are_not_finite_are_refused() -> None:
    model = qwen3()
    state = dict(model.state_dict())
    state["model.norm.weight"] = torch.full((96,), float("nan"))
    with pytest.raises(WeightsError, match=r"not finite: \['model.norm.weight'\]"):
        read_weights(model, state)


def test_model_with_biases_is_refused() -> None:
    model = llama(attention_bias=True)
    with pytest.raises(UnsupportedModelError, match="attention_bias = True"):
        read_weights(model, model.state_dict())
