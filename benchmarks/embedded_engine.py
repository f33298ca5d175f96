"""Tokens per second of multi-turn rollouts: the embedded engine against `generate` by turns.

The baseline is what one writes first with `transformers`: for each turn, one `generate` call over
all unfinished rollouts as one left-padded batch. It is given every advantage: it knows each turn's
longest completion beforehand, computes no logprobs, waits for no tool, and runs on one thread or
on `--threads`, whichever was faster in the first round. Both sample as many tokens for the same
prompts, turns and observations, with the laptop profile's model, all rollouts at once. Lengths are
drawn once, seeded; tokens need no meaning, so weights are random.

Rounds of both alternate in this process. A second figure has all turns equally long, where the
baseline's batch loses nothing to its longest row; it is shown, the target is on the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from infra.settings import prepare_torch_environment

prepare_torch_environment()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from infra.rollout.embedded import EmbeddedEngine  # noqa: E402
from rstar2.config import RolloutConfig  # noqa: E402
from rstar2.profiles import load_config  # noqa: E402
from rstar2.protocols import GenerateRequest  # noqa: E402
from rstar2.training.weights import build_tiny_model  # noqa: E402
from rstar2.types import TokenIds  # noqa: E402

TARGET = 2.5
ROLLOUTS_PER_PROMPT = 16
MAX_RESPONSE_TOKENS = 96


@dataclass(frozen=True)
class Work:
    """One rollout: its prompt, tokens to sample in each turn, observations between them."""

    prompt: TokenIds
    lengths: tuple[int, ...]
    observations: tuple[TokenIds, ...]


@dataclass(frozen=True)
class Measure:
    wall_rate: float
    """Sampled tokens a second."""
    cpu_rate: float
    """Sampled tokens a second of CPU time."""


def draw_work(num_rollouts: int, vocab_size: int, *, is_even: bool) -> list[Work]:
    """Rollouts like the laptop's: 1 to 4 turns, 20 to 30 prompt tokens, at most 96 of response."""
    chance = np.random.default_rng(0)

    def tokens(count: int) -> TokenIds:
        return chance.integers(vocab_size, size=count).astype(np.int32)

    prompts = [tokens(int(n)) for n in chance.integers(20, 31, size=num_rollouts)]
    works = []
    for index in range(num_rollouts):
        num_turns = 2 if is_even else int(chance.choice(4, p=[0.15, 0.5, 0.25, 0.1])) + 1
        lengths: list[int] = []
        observations: list[TokenIds] = []
        left = MAX_RESPONSE_TOKENS
        for _ in range(num_turns):
            drawn = 16 if is_even else 6 + min(34, int(chance.exponential(11)))
            lengths.append(max(1, min(drawn, left)))
            observations.append(tokens(10 if is_even else int(chance.integers(6, 17))))
            left -= lengths[-1] + len(observations[-1])
            if left <= 0:
                break
        prompt = prompts[index // ROLLOUTS_PER_PROMPT]
        works.append(Work(prompt, tuple(lengths), tuple(observations)))
    return works


async def run_engine(engine: EmbeddedEngine, works: list[Work]) -> int:
    """Samples all rollouts at once; returns the number of tokens."""

    async def rollout(index: int, work: Work) -> int:
        token_ids = work.prompt
        for turn, length in enumerate(work.lengths):
            completion = await engine(
                GenerateRequest(
                    rollout_id=str(index),
                    turn=turn,
                    token_ids=token_ids,
                    max_new_tokens=length,
                    temperature=1.0,
                    top_p=1.0,
                    seed=index,
                    stop_token_ids=(),
                )
            )
            token_ids = np.concatenate([token_ids, completion.token_ids, work.observations[turn]])
        engine.release(str(index))
        return sum(work.lengths)

    return sum(await asyncio.gather(*(rollout(i, work) for i, work in enumerate(works))))


def run_generate(model: PreTrainedModel, works: list[Work]) -> int:
    """`generate` once a turn over the unfinished rollouts; returns the number of tokens."""
    conversations = {index: work.prompt for index, work in enumerate(works)}
    num_tokens, turn = 0, 0
    while conversations:
        width = max(len(ids) for ids in conversations.values())
        token_ids = torch.zeros(len(conversations), width, dtype=torch.long)
        mask = torch.zeros_like(token_ids)
        for row, ids in enumerate(conversations.values()):
            token_ids[row, width - len(ids) :] = torch.from_numpy(ids)
            mask[row, width - len(ids) :] = 1
        sampled = model.generate(
            token_ids,
            attention_mask=mask,
            max_new_tokens=max(works[index].lengths[turn] for index in conversations),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            eos_token_id=None,
            pad_token_id=0,
        )[:, width:].numpy()
        unfinished = {}
        for row, (index, ids) in enumerate(conversations.items()):
            work = works[index]
            num_tokens += work.lengths[turn]
            if turn + 1 < len(work.lengths):
                completion = sampled[row, : work.lengths[turn]].astype(np.int32)
                unfinished[index] = np.concatenate([ids, completion, work.observations[turn]])
        conversations, turn = unfinished, turn + 1
    return num_tokens


def measure(run: Callable[[], int], *, num_tokens: int, num_threads: int) -> Measure:
    """One run, checked for its number of tokens."""
    torch.set_num_threads(num_threads)
    wall, cpu = time.perf_counter(), time.process_time()
    sampled = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert sampled == num_tokens, f"{sampled} tokens were sampled, expected {num_tokens}"
    return Measure(num_tokens / wall, num_tokens / cpu)


def compare(
    engine: EmbeddedEngine,
    model: PreTrainedModel,
    works: list[Work],
    *,
    num_threads: int,
    num_rounds: int,
    until: float,
) -> dict[str, float]:
    """Rates of both over alternating rounds, and the median of the rounds' ratios."""
    num_tokens = sum(sum(work.lengths) for work in works)
    ours: list[Measure] = []
    theirs: dict[int, list[Measure]] = {count: [] for count in sorted({1, num_threads})}
    while len(ours) < num_rounds and (not ours or time.perf_counter() < until):
        run = partial(measure, num_tokens=num_tokens, num_threads=num_threads)
        ours.append(run(lambda: asyncio.run(run_engine(engine, works))))
        for count, measures in theirs.items():
            run = partial(measure, num_tokens=num_tokens, num_threads=count)
            measures.append(run(lambda: run_generate(model, works)))
        if len(theirs) > 1:  # the slower number of threads is left out after the first round
            slower = min(theirs, key=lambda count: theirs[count][0].wall_rate)
            del theirs[slower]
    (best,) = theirs
    pairs = list(zip(ours, theirs[best], strict=True))
    return {
        "sampled_tokens": num_tokens,
        "rounds": len(ours),
        "engine_tokens_per_second": round(median(m.wall_rate for m in ours)),
        "generate_tokens_per_second": round(median(m.wall_rate for m in theirs[best])),
        "generate_threads": best,
        "ratio": round(median(a.wall_rate / b.wall_rate for a, b in pairs), 2),
        "engine_tokens_per_cpu_second": round(median(m.cpu_rate for m in ours)),
        "generate_tokens_per_cpu_second": round(median(m.cpu_rate for m in theirs[best])),
        "cpu_ratio": round(median(a.cpu_rate / b.cpu_rate for a, b in pairs), 2),
    }


def main() -> int:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under 50 s")
    parser.add_argument("--rollouts", type=int, default=384, help="decoded at once (default 384)")
    parser.add_argument("--threads", type=int, default=2, help="of both sides (default 2)")
    arguments = parser.parse_args()
    tiny = load_config("laptop").model.tiny
    model = build_tiny_model(tiny, seed=0)
    config = RolloutConfig(max_rows=arguments.rollouts)
    engine = EmbeddedEngine(model, config=config, num_threads=arguments.threads)
    figures: dict[str, object] = {"rollouts": arguments.rollouts, "threads": arguments.threads}
    deadlines = {"drawn_lengths": 20.0, "even_lengths": 22.0}  # a round more may begin before
    for name, deadline in deadlines.items():
        works = draw_work(arguments.rollouts, tiny.vocab_size, is_even=name == "even_lengths")
        figures[name] = compare(
            engine,
            model,
            works,
            num_threads=arguments.threads,
            num_rounds=4 if arguments.quick else 12,
            until=began + deadline * (1 if arguments.quick else 10),
        )
        print(name, json.dumps(figures[name]))
    engine.close()
    holds = figures["drawn_lengths"]["ratio"] >= TARGET  # type: ignore[index]
    result = {
        "benchmark": "embedded_engine",
        "baseline": "transformers generate once a turn, one left-padded batch",
        "figures": figures,
        "target": f"drawn_lengths.ratio >= {TARGET}",
        "holds": holds,
    }
    print(json.dumps(result))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
