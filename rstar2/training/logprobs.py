"""Logprobs of given tokens under a causal model, at the sampling temperature.

Reads a right-padded block of tokens, gives one number a position. Never keeps a full [T, V] matrix
of floats: only the asked positions meet the output layer, and beyond a size they do so in chunks
whose logits the backward pass makes again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

MAX_LOGITS = 2**25
"""Logits held at once (134 MB in float32). A 150K vocabulary gives chunks of some 220 positions."""


def token_logprobs(
    model: nn.Module, token_ids: Tensor, mask: Tensor, *, temperature: float
) -> Tensor:  # [B, T] ids, [B, T] bool -> [B, T] float32
    """log p(token t | tokens before t) where `mask` is true, 0.0 elsewhere.

    Rows are right-padded, so causal attention alone keeps padding out of every real token and no
    attention mask is needed. Position 0 has nothing before it and must not be asked for.
    The distribution is that of logits / `temperature`, as the engine sampled it.
    """
    if temperature <= 0.0:
        raise ValueError(
            f"temperature = {temperature}: greedy sampling has no logprobs to train on; set "
            "rollout.temperature above 0"
        )
    if bool(mask[:, 0].any()):
        raise ValueError("the mask asks for position 0, which has no context to be predicted from")
    hidden = model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state  # [B, T, H]
    rows, columns = mask.nonzero(as_tuple=True)
    picked = _gathered(
        hidden[rows, columns - 1],
        token_ids[rows, columns],
        model.get_output_embeddings(),
        temperature,
    )
    out = torch.zeros(token_ids.shape, dtype=torch.float32, device=token_ids.device)
    return out.index_put((rows, columns), picked)


def _gathered(hidden: Tensor, targets: Tensor, head: nn.Module, temperature: float) -> Tensor:
    """[N, H], [N] -> [N]: in one piece where the logits are few, else in chunks."""
    size = max(1, MAX_LOGITS // head.weight.shape[0])
    if len(targets) <= size:
        return _chunk(hidden, targets, head, temperature)
    return torch.cat(
        [
            checkpoint(_chunk, part, target, head, temperature, use_reentrant=False)
            for part, target in zip(hidden.split(size), targets.split(size), strict=True)
        ]
    )


def _chunk(hidden: Tensor, targets: Tensor, head: nn.Module, temperature: float) -> Tensor:
    logits = head(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    chosen = logits.gather(-1, targets.unsqueeze(-1).long()).squeeze(-1)
    return chosen - logits.logsumexp(-1)
