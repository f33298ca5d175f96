"""Does a run survive? Every fault at every phase of a step and between stages, then a resume.

    python benchmarks/crash_matrix.py                     profile smoke, all faults at all phases
    python benchmarks/crash_matrix.py --faults "kill -9,cancel" --phases commit,gate
    python benchmarks/crash_matrix.py --quick             two faults at three phases, a smaller recipe

Baseline: the same recipe undisturbed. Each row is one fault. Its run is stopped exactly where a phase
begins, the fault is made there, and the same command goes on with the run until the next phase, where
it is made again. A cell holds when the run went on from there, no process of it was left behind, and
no rollouts of a committed step were written again; a fault that must be harmless may not end the run.
A row holds when every cell does and the finished run equals the undisturbed one: weights bit for bit,
rollouts (none lost, none twice), batches, checkpoints, and every table of the catalogue.

Uses a Prefect server, a sandbox and storages of its own in a temporary folder, kept where a row fails.
The disk of `disk full` is a mounted tmpfs where this user may mount, else a file size limit on the run.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

sys.path.append(
    str(Path(__file__).parents[1] / "tests")
)  # its S3 proxy and its look at the sandbox

import crash_faults as faults
from crash_bench import (
    PHASES,
    Bench,
    Foreground,
    new_settings,
    stop_services,
    wait_for_end,
)
from crash_drill import END, Drill
from crash_faults import Fault, S3Faults
from s3_servers import BUCKET

from infra import services

S3 = S3Faults()
FAULTS = {
    "kill -9": Fault(strike=faults.killed),
    "SIGTERM": Fault(strike=faults.terminated),
    "cancel": Fault(strike=faults.cancelled, is_deployed=True),
    "server killed": Fault(strike=faults.server_killed),
    "server restarted": Fault(strike=faults.server_restarted, ends_run=False),
    "disk full": Fault(strike=faults.disk_filled, mend=faults.disk_freed),
    "storage away": Fault(strike=faults.storage_away, mend=faults.storage_back),
    "S3 refuses": Fault(strike=S3.refuse, mend=S3.heal),
    "S3 flaky": Fault(strike=S3.be_flaky, ends_run=False),
}
QUICK_FAULTS, QUICK_PHASES = ["kill -9", "SIGTERM"], ["collect", "train", "commit"]
SMALL = [
    *(f"stages.rl-{n}.{key}" for n in (1, 2, 3) for key in (
        "num_problems_per_step=2", "num_rollouts=4", "group_size=2", "max_refill_rounds=0",
        "min_groups=1",
    )),
    *("stages.rl-1.problems.num_problems=6", "stages.rl-2.problems.num_problems=6"),
    *("gates.rl-1.min_steps=2", "gates.rl-1.max_steps=2", "sft.num_steps=2"),
    *("evaluation.num_problems=4", "evaluation.num_unseen_problems=2"),
    "evaluation.num_problems_between_stages=2",
]  # fmt: skip
"""The smaller recipe of `--quick`: smoke with fewer problems, rollouts and steps."""

Row = Mapping[str, Sequence[str]]
"""What went wrong, by phase and at the end; a phase that is not in it went well."""


def main() -> int:
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="rstar2-crash-"))
    settings = new_settings(folder)
    settings.log_folder.mkdir(parents=True)
    reference = Bench(
        settings=settings,
        storage=str(folder / "undisturbed"),
        overrides=tuple(SMALL if arguments.quick else []),
        variables={},
    )
    rows: dict[str, Row] = {}
    try:
        services.ensure_server(settings)
        reference.plan([])
        if ended := wait_for_end(Foreground(reference)):
            sys.exit(f"the undisturbed run ended with {ended}; see {settings.log_folder}/runs.log")
        for name in arguments.faults:
            rows[name] = _row(name, reference, arguments.phases)
    finally:
        stop_services(settings)
    return _report(rows, arguments.phases, folder, is_quick=arguments.quick)


def _row(name: str, reference: Bench, phases: Sequence[str]) -> Row:
    started = time.monotonic()
    with _drill(name, reference) as drill:
        try:
            drill.run_through(phases)
        except (TimeoutError, AssertionError) as error:
            drill.wrong[END].append(str(error))
        finally:
            services.stop_deployments(reference.settings)
    seconds = time.monotonic() - started
    print(f"{name}: {seconds:.0f} s, {dict(drill.wrong) or 'well'}", file=sys.stderr, flush=True)
    return drill.wrong


@contextmanager
def _drill(name: str, reference: Bench) -> Iterator[Drill]:
    """The fault on a storage of the kind that it needs."""
    fault, folder = FAULTS[name], reference.settings.state_folder / name.replace(" ", "-")
    if name.startswith("S3"):
        with faults.s3_server(reference.settings, S3) as variables:
            bench = replace(reference, storage=f"s3://{BUCKET}/{folder.name}", variables=variables)
            yield Drill(bench=bench, fault=fault, reference=reference, identity=S3.num_uploads)
        return
    with faults.small_disk(folder) if name == "disk full" else nullcontext(True) as is_mounted:
        if not is_mounted:
            fault = Fault(strike=faults.file_size_limited)
            print(f"{name}: no disk can be mounted here, so a file size limit", file=sys.stderr)
        bench = replace(reference, storage=str(folder))
        yield Drill(bench=bench, fault=fault, reference=reference, identity=_inode)


def _inode(bench: Bench, key: str) -> object:
    status = (Path(bench.storage) / key).stat()
    return status.st_ino, status.st_mtime_ns


def _report(rows: Mapping[str, Row], phases: Sequence[str], folder: Path, *, is_quick: bool) -> int:
    """Prints the table, what went wrong, and the judged line."""
    columns = [*phases, END]
    print("| fault | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for name, wrong in rows.items():
        good = "went on" if FAULTS[name].ends_run is False else "resumed"
        cells = ["FAILED" if wrong.get(p) else "equal" if p == END else good for p in columns]
        print(f"| {name} | " + " | ".join(cells) + " |")
    for name, wrong in rows.items():
        for place, sentences in wrong.items():
            print(f"{name}, {place}: {'; '.join(sentences)}")
    num_wrong = sum(bool(wrong.get(place)) for wrong in rows.values() for place in columns)
    if num_wrong:
        print(f"logs and storages are kept in {folder}")
    else:
        shutil.rmtree(folder)
    line = {
        "benchmark": "crash_matrix --quick: a smaller recipe" if is_quick else "crash_matrix",
        "baseline": "the same recipe undisturbed",
        "figures": {"num_cells": len(rows) * len(phases), "num_wrong": num_wrong},
        "target": "every fault at every phase: went on, nothing sampled again, nobody left behind, "
        "and the finished run equal to the undisturbed one",
        "holds": not num_wrong,
    }
    print(json.dumps(line))
    return 1 if num_wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two faults, a smaller recipe")
    parser.add_argument("--faults", help=f"of: {', '.join(FAULTS)}")
    parser.add_argument("--phases", help=f"of: {', '.join(PHASES)}")
    arguments = parser.parse_args()
    arguments.faults = _chosen(arguments.faults, FAULTS, QUICK_FAULTS if arguments.quick else None)
    arguments.phases = _chosen(arguments.phases, PHASES, QUICK_PHASES if arguments.quick else None)
    return arguments


def _chosen(text: str | None, known: Mapping[str, object], default: list[str] | None) -> list[str]:
    """Names in the order of `known`."""
    wanted = [word.strip() for word in text.split(",")] if text else default or list(known)
    if unknown := set(wanted) - set(known):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(known)}")
    return [name for name in known if name in wanted]


if __name__ == "__main__":
    sys.exit(main())
