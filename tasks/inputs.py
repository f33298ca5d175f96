"""The files that a run reads: what is in them, and their hashes, so that a change is noticed.

Reads the user's problem files through `data_catalog.sources`, conversations through
`rstar2.conversations`. Knows no Prefect: the command line checks inputs before anything starts.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from data_catalog.row_sources import hub_files
from data_catalog.sources import SourceProblems, read_source
from rstar2.config import EvaluationConfig, ProblemsConfig, RecipeConfig
from rstar2.conversations import read_conversations
from rstar2.problems import is_held_out, is_hub_source
from rstar2.profiles import base_folder
from tasks.ledger import LedgerError


def input_files(config: RecipeConfig) -> dict[str, str]:
    """sha256 of each file that the run reads problems or conversations from."""
    names = {settings.problems.source for settings in config.stages.values()}
    names |= {config.evaluation.problems, config.sft.data if config.sft else "arithmetic"}
    return {name: _source_sha256(name) for name in sorted(names - {"arithmetic"})}


def check_sources(config: RecipeConfig) -> None:
    """Reads every file of problems or conversations, and looks for the base model, before anything
    starts."""
    check_base(config.model.base)
    if config.sft is not None and config.sft.data != "arithmetic":
        read_conversations(Path(config.sft.data), config.chat)
    if config.evaluation.problems != "arithmetic":
        _check_split(read_problem_file(config.evaluation.problems, config.evaluation))
    for settings in config.stages.values():
        if settings.problems.source != "arithmetic":
            read_problem_file(settings.problems.source, settings.problems)


def check_base(base: str) -> None:
    """Raises `LedgerError` where the model that training starts from is not there."""
    if base == "tiny" or (base_folder(base) / "config.json").is_file():
        return
    raise LedgerError(
        f"model.base = {base!r}: no config.json in {base_folder(base)}; expected `tiny`, or a folder "
        "that transformers loads (config.json, safetensors, tokenizer files)"
    )


def _check_split(source: SourceProblems) -> None:
    """Raises where a file's problems cannot be split into those to train on and held-out ones."""
    num_held_out = sum(is_held_out(p.problem_id) for p in source.problems)
    if 0 < num_held_out < len(source.problems):
        return
    raise LedgerError(
        f"{len(source.problems)} usable problems, {num_held_out} of them held out for evaluation (a "
        f"quarter, by hash; {len(source.quarantined)} rows quarantined, {source.num_duplicates} "
        "duplicates): expected some of both, so at least a dozen problems. Add problems, or name "
        "another file for evaluation with --set evaluation.problems=FILE"
    )


def read_problem_file(path: str, columns: ProblemsConfig | EvaluationConfig) -> SourceProblems:
    """The problems of a file whose columns a stage, or the evaluation, names."""
    return read_source(
        path, question_column=columns.question_column, answer_column=columns.answer_column
    )


def _source_sha256(source: str) -> str:
    if not is_hub_source(source):
        return _sha256(Path(source))
    files = sorted(map(_sha256, hub_files(source)))
    return hashlib.sha256("".join(files).encode()).hexdigest()


def _sha256(path: Path) -> str:
    if path.is_dir():
        parts = sorted(p for p in path.rglob("*") if p.is_file())
        return hashlib.sha256("".join(map(_sha256, parts)).encode()).hexdigest()
    if not path.is_file():
        raise LedgerError(
            f"no such file: {path}; expected a JSONL or Parquet file, a folder of `datasets`, or "
            "hub:OWNER/NAME[/CONFIG]:SPLIT"
        )
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
