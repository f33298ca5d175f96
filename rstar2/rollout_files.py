"""Rollouts, batches and problems as Parquet files: the artefacts that a step leaves behind.

Writes one file under its final name by rename, after fsync, so a reader sees a whole file or none;
reads it back into equal nouns. The only module of the core that opens files. Token arrays move as
arrays and never as Python lists: a paper-size step holds over 100 million ids. Text that is no
valid Unicode (a lone surrogate, which JSON from a model can hold) is stored as U+FFFD.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rstar2.types import (
    Batch,
    Completion,
    FinishReason,
    Group,
    MalformedToolCall,
    PolicySpan,
    Problem,
    Rollout,
    RolloutStatus,
    Sample,
    ToolCall,
    ToolResult,
    ToolStatus,
    Turn,
    read_only,
)

T = TypeVar("T")


class RolloutFileError(ValueError):
    """A file is not what it should be. The message names it and what was expected."""


def write_rollouts(path: Path, groups: Sequence[Group]) -> None:
    """One row a rollout, with full turns, calls, results and policy versions."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    sizes = [len(group.rollouts) for group in groups]
    columns = {
        "group_index": pa.array(np.repeat(np.arange(len(groups), dtype=np.int32), sizes)),
        "problem_id": _texts([r.problem_id for r in rollouts]),
        "rollout_id": _texts([r.rollout_id for r in rollouts]),
        "status": _texts([r.status for r in rollouts]),
        "answer": _texts([r.answer for r in rollouts]),
        "num_answer_tags": pa.array([r.num_answer_tags for r in rollouts], pa.int32()),
        "reward": pa.array([r.reward for r in rollouts], pa.float64()),
        "verdict_reason": _texts([r.verdict_reason for r in rollouts]),
        "prompt_token_ids": _arrays([r.prompt_token_ids for r in rollouts], np.int32),
        "turns": _nested([r.turns for r in rollouts], _turn_array),
    }
    # Groups without a rollout have no row: their problem ids are kept beside the table.
    names = json.dumps([group.problem_id for group in groups])
    _write(path, pa.table(columns), kind="rollouts", metadata={"problem_ids": names})


def read_rollouts(path: Path) -> tuple[Group, ...]:
    """The groups as they were written, in order."""
    table, metadata = _read(path, "rollouts")
    row = {name: table.column(name).to_pylist() for name in _SCALARS}
    prompts, turns = _column(table, "prompt_token_ids"), _column(table, "turns")
    turn_lists = _split(turns, _read_turns(turns.flatten()))
    groups: list[list[Rollout]] = [[] for _ in json.loads(metadata["problem_ids"])]
    for index, prompt in enumerate(_rows(prompts)):
        rollout = Rollout(
            rollout_id=row["rollout_id"][index],
            problem_id=row["problem_id"][index],
            prompt_token_ids=prompt,
            turns=tuple(turn_lists[index]),
            status=RolloutStatus(row["status"][index]),
            answer=row["answer"][index],
            num_answer_tags=row["num_answer_tags"][index],
            reward=row["reward"][index],
            verdict_reason=row["verdict_reason"][index],
        )
        groups[row["group_index"][index]].append(rollout)
    return tuple(
        Group(problem_id=problem_id, rollouts=tuple(rollouts))
        for problem_id, rollouts in zip(json.loads(metadata["problem_ids"]), groups, strict=True)
    )


def write_batch(path: Path, batch: Batch) -> None:
    """One row a sample; stage, step and policy version in the file's metadata."""
    samples = batch.samples
    columns = {
        "rollout_id": _texts([s.rollout_id for s in samples]),
        "problem_id": _texts([s.problem_id for s in samples]),
        "advantage": pa.array([s.advantage for s in samples], pa.float64()),
        "loss_weight": pa.array([s.loss_weight for s in samples], pa.float64()),
        "token_ids": _arrays([s.token_ids for s in samples], np.int32),
        "loss_mask": _arrays([s.loss_mask.view(np.uint8) for s in samples], np.uint8),
        "behaviour_logprobs": _arrays([s.behaviour_logprobs for s in samples], np.float32),
    }
    names = {"stage": batch.stage, "step": batch.step, "policy_version": batch.policy_version}
    metadata = {key: str(value) for key, value in names.items()}
    _write(path, pa.table(columns), kind="batch", metadata=metadata)


def read_batch(path: Path) -> Batch:
    """The batch as it was written, bit for bit."""
    table, metadata = _read(path, "batch")
    names = ("rollout_id", "problem_id", "advantage", "loss_weight")
    scalars = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    arrays = zip(
        _rows(_column(table, "token_ids")),
        _rows(_column(table, "loss_mask")),
        _rows(_column(table, "behaviour_logprobs")),
        strict=True,
    )
    return Batch(
        stage=metadata["stage"],
        step=int(metadata["step"]),
        policy_version=int(metadata["policy_version"]),
        samples=tuple(
            Sample(
                rollout_id=rollout_id,
                problem_id=problem_id,
                token_ids=token_ids,
                loss_mask=read_only(mask, np.bool_),
                behaviour_logprobs=logprobs,
                advantage=advantage,
                loss_weight=loss_weight,
            )
            for (rollout_id, problem_id, advantage, loss_weight), (
                token_ids,
                mask,
                logprobs,
            ) in zip(scalars, arrays, strict=True)
        ),
    )


def write_problems(path: Path, problems: Sequence[Problem]) -> None:
    columns = {
        "problem_id": _texts([p.problem_id for p in problems]),
        "question": _texts([p.question for p in problems]),
        "answer": _texts([p.answer for p in problems]),
        "source": _texts([p.source for p in problems]),
        "pass_rate": pa.array([p.pass_rate for p in problems], pa.float64()),
    }
    _write(path, pa.table(columns), kind="problems", metadata={})


def read_problems(path: Path) -> tuple[Problem, ...]:
    table, _ = _read(path, "problems")
    return tuple(Problem(**row) for row in table.to_pylist())


_SCALARS = (
    "group_index",
    "problem_id",
    "rollout_id",
    "status",
    "answer",
    "num_answer_tags",
    "reward",
    "verdict_reason",
)


def _turn_array(turns: Sequence[Turn]) -> pa.Array:
    completions = [turn.completion for turn in turns]
    return pa.StructArray.from_arrays(
        [
            _arrays([c.token_ids for c in completions], np.int32),
            _arrays([c.logprobs for c in completions], np.float32),
            _texts([c.finish_reason for c in completions]),
            _nested([c.policy_versions for c in completions], _span_array),
            _nested([turn.tool_calls for turn in turns], _call_array),
            _nested([turn.tool_results for turn in turns], _result_array),
            _arrays([turn.observation_token_ids for turn in turns], np.int32),
        ],
        [
            "token_ids",
            "logprobs",
            "finish_reason",
            "policy_versions",
            "tool_calls",
            "tool_results",
            "observation_token_ids",
        ],
    )


def _read_turns(turns: pa.StructArray) -> list[Turn]:
    spans, calls, results = (
        turns.field(name) for name in ("policy_versions", "tool_calls", "tool_results")
    )
    columns = zip(
        _rows(turns.field("token_ids")),
        _rows(turns.field("logprobs")),
        turns.field("finish_reason").to_pylist(),
        _split(spans, [PolicySpan(**row) for row in spans.flatten().to_pylist()]),
        _split(calls, [_read_call(row) for row in calls.flatten().to_pylist()]),
        _split(results, [_read_result(row) for row in results.flatten().to_pylist()]),
        _rows(turns.field("observation_token_ids")),
        strict=True,
    )
    return [
        Turn(
            completion=Completion(
                token_ids=token_ids,
                logprobs=logprobs,
                finish_reason=FinishReason(finish_reason),
                policy_versions=tuple(versions),
            ),
            tool_calls=tuple(tool_calls),
            tool_results=tuple(tool_results),
            observation_token_ids=observation,
        )
        for token_ids, logprobs, finish_reason, versions, tool_calls, tool_results, observation in (
            columns
        )
    ]


def _span_array(spans: Sequence[PolicySpan]) -> pa.Array:
    names = ("policy_version", "start", "stop")
    columns = [pa.array([getattr(span, name) for span in spans], pa.int64()) for name in names]
    return pa.StructArray.from_arrays(columns, list(names))


def _call_array(calls: Sequence[ToolCall | MalformedToolCall]) -> pa.Array:
    """A call has a name and arguments, a malformed one a reason and a position."""
    good = [call if isinstance(call, ToolCall) else None for call in calls]
    bad = [call if isinstance(call, MalformedToolCall) else None for call in calls]
    return pa.StructArray.from_arrays(
        [
            _texts([call.name if call else None for call in good]),
            _texts([json.dumps(dict(call.arguments)) if call else None for call in good]),
            _texts([call.reason if call else None for call in bad]),
            pa.array([call.position if call else None for call in bad], pa.int64()),
        ],
        ["name", "arguments", "malformed_reason", "malformed_position"],
    )


def _read_call(row: dict[str, object]) -> ToolCall | MalformedToolCall:
    if row["arguments"] is not None:
        return ToolCall(name=str(row["name"]), arguments=json.loads(str(row["arguments"])))
    position = row["malformed_position"]
    assert isinstance(position, int)
    return MalformedToolCall(reason=str(row["malformed_reason"]), position=position)


_RESULT_TEXTS = ("status", "stdout", "stderr", "value", "detail")


def _result_array(results: Sequence[ToolResult]) -> pa.Array:
    columns = [_texts([getattr(result, name) for result in results]) for name in _RESULT_TEXTS]
    columns.append(pa.array([result.seconds for result in results], pa.float64()))
    columns.append(pa.array([result.is_truncated for result in results], pa.bool_()))
    return pa.StructArray.from_arrays(columns, [*_RESULT_TEXTS, "seconds", "is_truncated"])


def _read_result(row: dict[str, object]) -> ToolResult:
    fields = {**row, "status": ToolStatus(str(row["status"]))}
    return ToolResult(**fields)  # type: ignore[arg-type]


def _texts(values: Sequence[str | None]) -> pa.Array:
    """Strings or nulls; U+FFFD for each lone surrogate, which UTF-8 cannot hold."""
    return pa.array([_valid(value) for value in values], pa.large_string())


def _valid(text: str | None) -> str | None:
    if text is None or text.isascii():
        return None if text is None else str(text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _offsets(sizes: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]), pa.int64())


def _arrays(arrays: Sequence[np.ndarray], dtype: type[np.generic]) -> pa.Array:
    """A list column over one flat array."""
    flat = np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype, copy=False)
    return pa.LargeListArray.from_arrays(_offsets([len(a) for a in arrays]), pa.array(flat))


def _nested(rows: Sequence[Sequence[T]], build: Callable[[Sequence[T]], pa.Array]) -> pa.Array:
    """A list column over the array that `build` makes of all items."""
    items = [item for row in rows for item in row]
    return pa.LargeListArray.from_arrays(_offsets([len(row) for row in rows]), build(items))


def _column(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


def _bounds(column: pa.Array) -> Iterator[tuple[int, int]]:
    """`[start, stop)` of each row in `column.flatten()`, also where the column is a slice."""
    offsets = column.offsets.to_numpy()
    base = int(offsets[0]) if len(offsets) else 0
    return zip((offsets[:-1] - base).tolist(), (offsets[1:] - base).tolist(), strict=True)


def _rows(column: pa.Array) -> Iterator[np.ndarray]:
    """The rows of a list column as read-only views of one array."""
    flat = column.flatten().to_numpy(zero_copy_only=False)
    flat.setflags(write=False)
    return (flat[start:stop] for start, stop in _bounds(column))


def _split(column: pa.Array, items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start:stop] for start, stop in _bounds(column)]


def _write(path: Path, table: pa.Table, *, kind: str, metadata: dict[str, str]) -> None:
    """Under a temporary name beside `path`, synced, then renamed: whole or not there."""
    named = {"rstar2": kind, **metadata}
    table = table.replace_schema_metadata({k.encode(): v.encode() for k, v in named.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable. Some file systems refuse to sync a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fsync(descriptor)
    os.close(descriptor)


def _read(path: Path, kind: str) -> tuple[pa.Table, dict[str, str]]:
    if not path.is_file():
        raise RolloutFileError(f"{path}: no such file; expected a Parquet file of {kind}")
    try:
        with path.open("rb") as file:
            table = pq.read_table(file)
    except pa.ArrowInvalid as error:
        raise RolloutFileError(f"{path}: not a readable Parquet file: {error}") from None
    raw = table.schema.metadata or {}
    metadata = {key.decode(): value.decode() for key, value in raw.items()}
    if metadata.get("rstar2") != kind:
        raise RolloutFileError(
            f"{path}: holds {metadata.get('rstar2', 'something else')!r}, expected {kind!r}"
        )
    return table, metadata
