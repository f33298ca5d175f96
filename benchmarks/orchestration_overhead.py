"""What does orchestration cost? The same steps with and without it, in the same process.

    python benchmarks/orchestration_overhead.py            blocks of 8 steps, whole responses
    python benchmarks/orchestration_overhead.py --quick    blocks of 4 steps, shorter responses

Orchestration is all that is not sampling, grading, RoC, the optimizer step and the weight sync: Prefect,
ledger, artefacts, step metrics, gate, catalogue. Two measures, each beside the same steps without it:
the laptop recipe's (`overhead_laptop`, under 15 % of its wall time) and one of the report's size
(`overhead_paper`, under 1 % of the report's step). The second is judged by CPU seconds: nothing runs
beside it to compare with, and on a machine that is shared its wall seconds are those of the others too;
both are printed. Starts a Prefect server and a sandbox of its own in a temporary folder. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from crash_bench import new_settings, stop_services

from infra import services
from infra.settings import prepare_prefect_environment, prepare_torch_environment

LAPTOP_TARGET, PAPER_TARGET = 0.15, 0.01
PAPER_STEP_SECONDS = 7 * 24 * 3600 / 510
"""Mean over the whole run (report §1, §5.1, §5.2: 510 steps in a week on 64 GPUs): 1,186 s."""
MEAN_RESPONSE_TOKENS = 4096
"""At the end of the first stage (report §5.2)."""
QUICK_RESPONSE_TOKENS = 256


def main() -> int:
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="rstar2-overhead-"))
    settings = new_settings(folder)
    os.environ["RSTAR2_STATE_FOLDER"] = str(folder)
    try:
        prepare_torch_environment()
        prepare_prefect_environment(settings, services.ensure_server(settings))
        from overhead_laptop import laptop_share  # Prefect is imported after its settings are made
        from overhead_paper import paper_seconds

        laptop = laptop_share(folder, num_steps=arguments.steps, num_rounds=arguments.rounds)
        paper = paper_seconds(folder, mean_response_tokens=arguments.response_tokens)
    finally:
        stop_services(settings)
        shutil.rmtree(folder)
    return _report(laptop, paper, is_quick=arguments.quick)


def _report(laptop: Mapping[str, float], paper: Mapping[str, float], *, is_quick: bool) -> int:
    shares = {
        "share of the laptop's wall": laptop["share"],
        "share of a paper step": paper["orchestration, CPU seconds"] / PAPER_STEP_SECONDS,
    }
    targets = dict(zip(shares, (LAPTOP_TARGET, PAPER_TARGET), strict=True))
    for title, figures in (("laptop", laptop), ("paper size", paper)):
        print(f"{title}:")
        for name, value in figures.items():
            print(f"  {name:32} {value:10.3f}")
    for name, share in shares.items():
        word = "ok  " if share < targets[name] else "MISS"
        print(f"{word} {name}: {share:.2%}, target under {targets[name]:.0%}")
    holds = all(share < targets[name] for name, share in shares.items())
    line = {
        "benchmark": f"orchestration_overhead{' --quick' if is_quick else ''}",
        "baseline": "the same steps without orchestration, in the same process",
        "figures": {name: round(share, 5) for name, share in shares.items()},
        "target": {f"{name}, under": target for name, target in targets.items()},
        "holds": holds,
    }
    print(json.dumps(line))
    return 0 if holds else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter blocks and responses")
    parser.add_argument("--steps", type=int, help="of a laptop block")
    parser.add_argument("--rounds", type=int, help="of two blocks")
    parser.add_argument("--response-tokens", type=int, help="mean, of a paper-size rollout")
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or (4 if arguments.quick else 8)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    tokens = QUICK_RESPONSE_TOKENS if arguments.quick else MEAN_RESPONSE_TOKENS
    arguments.response_tokens = arguments.response_tokens or tokens
    return arguments


if __name__ == "__main__":
    sys.exit(main())
