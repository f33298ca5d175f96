"""Rollouts, batches and problems as Parquet files: the artefacts that a step leaves behind.

Which noun becomes which column, and back into equal nouns. A file is there as a whole or not at all
(see `parquet`). Text that is no valid Unicode comes back as U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from rstar2.parquet import (
    array_column,
    nested_column,
    read_table,
    row_arrays,
    split_rows,
    text_column,
    whole_column,
    write_table,
)
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


def write_rollouts(path: Path, groups: Sequence[Group]) -> None:
    """One row a rollout, with full turns, calls, results and policy versions."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    sizes = [len(group.rollouts) for group in groups]
    columns = {
        "group_index": pa.array(np.repeat(np.arange(len(groups), dtype=np.int32), sizes)),
        "problem_id": text_column([r.problem_id for r in rollouts]),
        "rollout_id": text_column([r.rollout_id for r in rollouts]),
        "status": text_column([r.status for r in rollouts]),
        "answer": text_column([r.answer for r in rollouts]),
        "num_answer_tags": pa.array([r.num_answer_tags for r in rollouts], pa.int32()),
        "reward": pa.array([r.reward for r in rollouts], pa.float64()),
        "verdict_reason": text_column([r.verdict_reason for r in rollouts]),
        "prompt_token_ids": array_column([r.prompt_token_ids for r in rollouts], np.int32),
        "turns": nested_column([r.turns for r in rollouts], _turn_array),
    }
    # Groups without a rollout have no row: their problem ids are kept beside the table.
    names = json.dumps([group.problem_id for group in groups])
    write_table(path, pa.table(columns), kind="rollouts", metadata={"problem_ids": names})


def read_rollouts(path: Path) -> tuple[Group, ...]:
    """The groups as they were written, in order."""
    table, metadata = read_table(path, "rollouts")
    row = {name: table.column(name).to_pylist() for name in _SCALARS}
    prompts, turns = whole_column(table, "prompt_token_ids"), whole_column(table, "turns")
    turn_lists = split_rows(turns, _read_turns(turns.flatten()))
    groups: list[list[Rollout]] = [[] for _ in json.loads(metadata["problem_ids"])]
    for index, prompt in enumerate(row_arrays(prompts)):
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
        "rollout_id": text_column([s.rollout_id for s in samples]),
        "problem_id": text_column([s.problem_id for s in samples]),
        "advantage": pa.array([s.advantage for s in samples], pa.float64()),
        "loss_weight": pa.array([s.loss_weight for s in samples], pa.float64()),
        "token_ids": array_column([s.token_ids for s in samples], np.int32),
        "loss_mask": array_column([s.loss_mask.view(np.uint8) for s in samples], np.uint8),
        "behaviour_logprobs": array_column([s.behaviour_logprobs for s in samples], np.float32),
    }
    names = {"stage": batch.stage, "step": batch.step, "policy_version": batch.policy_version}
    metadata = {key: str(value) for key, value in names.items()}
    write_table(path, pa.table(columns), kind="batch", metadata=metadata)


def read_batch(path: Path) -> Batch:
    """The batch as it was written, bit for bit."""
    table, metadata = read_table(path, "batch")
    names = ("rollout_id", "problem_id", "advantage", "loss_weight")
    scalars = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    arrays = zip(
        row_arrays(whole_column(table, "token_ids")),
        row_arrays(whole_column(table, "loss_mask")),
        row_arrays(whole_column(table, "behaviour_logprobs")),
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
        "problem_id": text_column([p.problem_id for p in problems]),
        "question": text_column([p.question for p in problems]),
        "answer": text_column([p.answer for p in problems]),
        "source": text_column([p.source for p in problems]),
        "pass_rate": pa.array([p.pass_rate for p in problems], pa.float64()),
    }
    write_table(path, pa.table(columns), kind="problems", metadata={})


def read_problems(path: Path) -> tuple[Problem, ...]:
    table, _ = read_table(path, "problems")
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
            array_column([c.token_ids for c in completions], np.int32),
            array_column([c.logprobs for c in completions], np.float32),
            text_column([c.finish_reason for c in completions]),
            nested_column([c.policy_versions for c in completions], _span_array),
            nested_column([turn.tool_calls for turn in turns], _call_array),
            nested_column([turn.tool_results for turn in turns], _result_array),
            array_column([turn.observation_token_ids for turn in turns], np.int32),
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
        row_arrays(turns.field("token_ids")),
        row_arrays(turns.field("logprobs")),
        turns.field("finish_reason").to_pylist(),
        split_rows(spans, [PolicySpan(**row) for row in spans.flatten().to_pylist()]),
        split_rows(calls, [_read_call(row) for row in calls.flatten().to_pylist()]),
        split_rows(results, [_read_result(row) for row in results.flatten().to_pylist()]),
        row_arrays(turns.field("observation_token_ids")),
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
            text_column([call.name if call else None for call in good]),
            text_column([json.dumps(dict(call.arguments)) if call else None for call in good]),
            text_column([call.reason if call else None for call in bad]),
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
    columns = [text_column([getattr(result, name) for result in results]) for name in _RESULT_TEXTS]
    columns.append(pa.array([result.seconds for result in results], pa.float64()))
    columns.append(pa.array([result.is_truncated for result in results], pa.bool_()))
    return pa.StructArray.from_arrays(columns, [*_RESULT_TEXTS, "seconds", "is_truncated"])


def _read_result(row: dict[str, object]) -> ToolResult:
    fields = {**row, "status": ToolStatus(str(row["status"]))}
    return ToolResult(**fields)  # type: ignore[arg-type]
