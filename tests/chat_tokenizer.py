"""A byte-level BPE of a few hundred tokens with the tags of a chat, for tests."""

from __future__ import annotations

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|im_start|>", "<|im_end|>")
TAGS = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<answer>", "</answer>", "<reason>", "</reason>"),
)


def make_tokenizer(
    *,
    extra_tokens: tuple[str, ...] = (),
    add_prefix_space: bool = False,
    normalizer: normalizers.Normalizer | None = None,
):
    backend = Tokenizer(models.BPE())
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = 'What is the answer? user assistant error print {"name": "python", "arguments": {"code"'
    backend.train_from_iterator([text] * 10, trainer)
    backend.add_special_tokens([AddedToken(tag, special=True) for tag in SPECIAL])
    backend.add_tokens([AddedToken(tag, special=False) for tag in (*TAGS, *extra_tokens)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<pad>"
    )
