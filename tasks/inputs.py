"""The files that a run reads: what is in them, and their hashes, so that a change is noticed.

Reads the user's problem files through `data_catalog.sources`, conversations through
`rstar2.conversations`. Knows no Prefect: the command line checks inputs before anything starts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from data_catalog.row_sources import hub_files
from data_catalog.sft_sources.mixture import check_mixture, mixture_files
from data_catalog.sources import SourceProblems, read_source
from rstar2.arithmetic import check_shares
from rstar2.config import ChatConfig, EvaluationConfig, ProblemsConfig, RecipeConfig, SftConfig
from rstar2.conversations import Conversation, read_conversations
from rstar2.dialogues import Dialogue, is_dialogue_file, read_dialogues
from rstar2.problems import is_held_out, is_hub_source
from rstar2.profiles import base_folder
from tasks.ledger import LedgerError

MIXTURE = "mixture"
"""`sft.data` for the public sets."""


def input_files(config: RecipeConfig) -> dict[str, str]:
    """sha256 of each file that the run reads problems or conversations from."""
    names = {settings.problems.source for settings in config.stages.values()}
    names |= {config.evaluation.problems, config.sft.data if config.sft else "arithmetic"}
    files = {name: _source_sha256(name) for name in sorted(names - {"arithmetic", MIXTURE})}
    if config.sft is not None and config.sft.data == MIXTURE:
        parts = mixture_files(config.sft.mixture, config.sft.paths)
        files |= {f"{MIXTURE}/{name}": _sha256_of(paths) for name, paths in parts.items()}
    return files


def check_sources(config: RecipeConfig) -> None:
    """Reads every file of problems or conversations, looks for the base model and for problems of
    each share, before anything starts."""
    check_base(config.model.base)
    if config.sft is not None:
        _check_conversations(config.sft, config.chat)
    if config.evaluation.problems == "arithmetic":
        check_shares(config.evaluation.shares)
    else:
        _check_split(read_problem_file(config.evaluation.problems, config.evaluation))
    for settings in config.stages.values():
        if settings.problems.source == "arithmetic":
            check_shares(settings.shares)
        else:
            read_problem_file(settings.problems.source, settings.problems)


def _check_conversations(settings: SftConfig, chat: ChatConfig) -> None:
    if settings.data == MIXTURE:
        check_mixture(settings.mixture, settings.paths)
    elif settings.data != "arithmetic":
        read_conversation_file(Path(settings.data), chat)


def read_conversation_file(
    path: Path, chat: ChatConfig
) -> tuple[Conversation, ...] | tuple[Dialogue, ...]:
    """Conversations that are rollouts of problems, or dialogues where the rows name their tools."""
    if path.is_file() and is_dialogue_file(path):
        return read_dialogues(path, chat)
    return read_conversations(path, chat)


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
    return _sha256_of(hub_files(source))


def _sha256_of(paths: Sequence[Path]) -> str:
    """Of several files, whatever their order."""
    return hashlib.sha256("".join(sorted(map(_sha256, paths))).encode()).hexdigest()


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
