"""Equal inputs and thread counts give equal bits, in another process and at another hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np, torch
from rstar2.config import OptimizerConfig, SftConfig, TinyModel, TrainerConfig
from rstar2.training.engine import TrainingEngine
from rstar2.training.weights import build_tiny_model, weights_checksum
from rstar2.types import Batch, Sample, read_only

torch.set_num_threads(2)
generator = np.random.default_rng(0)

def sample(index):
    length = int(generator.integers(40, 120))
    mask = np.arange(length) > 20
    return Sample(
        rollout_id=f"r{index}",
        problem_id=f"p{index // 8}",
        token_ids=read_only(generator.integers(0, 448, length), np.int32),
        loss_mask=read_only(mask, np.bool_),
        behaviour_logprobs=read_only(np.where(mask, -6.1, 0.0), np.float32),
        advantage=float(generator.normal()),
        loss_weight=1e-4,
    )

samples = tuple(sample(index) for index in range(64))
config = TrainerConfig(num_updates_per_step=2, micro_batch_tokens=2048)
engine = TrainingEngine(build_tiny_model(TinyModel(), 0), OptimizerConfig(learning_rate=1e-3))
for step in range(3):
    batch = Batch(stage="s", step=step, policy_version=0, samples=samples)
    engine.train_step(batch, config=config, learning_rate=1e-3, temperature=1.0)
engine.reset_optimizer(SftConfig())
items = [(s.token_ids, s.loss_mask) for s in samples[:12]]
engine.sft_step(items, config=SftConfig(), micro_batch_tokens=2048)
print(weights_checksum(engine.model.state_dict()))
"""


def checksum(hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_WAIT_POLICY": "PASSIVE"}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_training_gives_equal_bits_in_two_processes() -> None:
    first = checksum("1")
    assert len(first) == 64
    assert checksum("2") == first
