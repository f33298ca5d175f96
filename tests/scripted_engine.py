"""An engine whose policy is a list of texts, for tests of the loop around it."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerFast

from rstar2.protocols import GenerateRequest
from rstar2.types import Completion, FinishReason, PolicySpan, read_only


class Script:
    """Answers each request with the next text, cut to what is allowed, whatever it is asked."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *texts: str) -> None:
        self.tokenizer = tokenizer
        self.texts = texts
        self.requests: list[GenerateRequest] = []
        self.released: list[str] = []

    async def __call__(self, request: GenerateRequest, /) -> Completion:
        self.requests.append(request)
        ids = self.tokenizer.encode(self.texts[len(self.requests) - 1])[: request.max_new_tokens]
        stopped = bool(ids) and ids[-1] in request.stop_token_ids
        return Completion(
            token_ids=read_only(ids, np.int32),
            logprobs=read_only([-1.0] * len(ids), np.float32),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            policy_versions=(PolicySpan(policy_version=0, start=0, stop=len(ids)),),
        )

    def release(self, rollout_id: str, /) -> None:
        self.released.append(rollout_id)
