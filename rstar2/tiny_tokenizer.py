"""The tokenizer of the tiny model: byte-level BPE, made on the spot and always the same.

Learned from a fixed corpus of generated SFT conversations, independent of any run's seed, so that
checkpoints of all runs share their ids. Single digits (a tiny model copies numbers digit by digit);
merges may cross spaces ("superwords": the text around a call becomes a token or two); the
connecting words of a question stand apart. Writes nothing.
"""

from __future__ import annotations

import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rstar2.arithmetic_wordings import CONNECTING_WORDS, OPERATIONS
from rstar2.sft_data import make_conversations

PAD = "<|endoftext|>"
TURN_TOKENS = ("<|im_start|>", "<|im_end|>")
TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<answer>",
    "</answer>",
    "<reason>",
    "</reason>",
)
ADDED_TOKENS = (PAD, *TURN_TOKENS, *TAGS)
"""Their ids are 0, 1, 2 … in this order."""
CORPUS_CONVERSATIONS = 3000
WEIGHT = {"user": 2, "assistant": 2, "tool": 1}
"""How often a message counts: most merges go to questions and calls, in few tokens a clause."""
MAX_TOKEN_LENGTH = 64


def make_tiny_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """The tokenizer with `vocab_size` ids; the same ids in every process."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[
            AddedToken(t, special=t not in TAGS, normalized=False) for t in ADDED_TOKENS
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=MAX_TOKEN_LENGTH,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    words = "|".join(re.escape(word) for word in CONNECTING_WORDS)
    symbols = "|".join(re.escape(op.symbol) for op in OPERATIONS.values())
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rf"{words}|(?:{symbols})$"), behavior="isolated"),
            pre_tokenizers.Split(Regex(r"\d"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _corpus() -> list[str]:
    """What stands between added tokens: role lines, questions, calls, observations, answers."""
    between = re.compile("|".join(re.escape(token) for token in ADDED_TOKENS))
    texts: list[str] = []
    for conversation in make_conversations(CORPUS_CONVERSATIONS, seed=0):
        for message in conversation:
            role = "user" if message.role == "tool" else message.role
            texts += [f"{role}\n"]
            # The advice at the end of an error message differs between versions of Python.
            content = message.content.split(". ")[0]
            texts += WEIGHT[message.role] * [t for t in between.split(content) if t]
    return texts
