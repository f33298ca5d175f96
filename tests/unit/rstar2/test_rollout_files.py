from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from rollout_builders import make_group, make_rollout, make_sample, make_turn

from rstar2.parquet import ParquetFileError
from rstar2.rollout_files import (
    read_batch,
    read_problems,
    read_rollouts,
    write_batch,
    write_problems,
    write_rollouts,
)
from rstar2.types import (
    Batch,
    Completion,
    FinishReason,
    Group,
    MalformedToolCall,
    PolicySpan,
    Problem,
    RolloutStatus,
    ToolCall,
    ToolResult,
    ToolStatus,
    Turn,
    read_only,
)


def assert_equal(left: object, right: object) -> None:
    """Equal in type and value, through dataclasses, tuples and arrays (NaN equals NaN)."""
    assert type(left) is type(right)
    if is_dataclass(left):
        for field in fields(left):
            assert_equal(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_equal(a, b)
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    else:
        assert left == right


FULL_TURN = Turn(
    completion=Completion(
        token_ids=read_only([5, 6, 7], np.int32),
        logprobs=read_only([-0.25, -np.inf, np.nan], np.float32),
        finish_reason=FinishReason.LENGTH,
        policy_versions=(
            PolicySpan(policy_version=3, start=0, stop=1),
            PolicySpan(policy_version=4, start=1, stop=3),
        ),
    ),
    tool_calls=(
        ToolCall(name="python", arguments={"code": "print('ü')\n", "input": "", "n": [1, None]}),
        MalformedToolCall(reason="Expecting ',' delimiter", position=17),
        ToolCall(name="", arguments={}),
    ),
    tool_results=(
        ToolResult(status=ToolStatus.OK, stdout="ü\n", value="3", seconds=0.25),
        ToolResult(status=ToolStatus.MALFORMED, detail="no JSON", is_truncated=True),
        ToolResult(status=ToolStatus.UNKNOWN_TOOL, stderr="e"),
    ),
    observation_token_ids=read_only([8, 9], np.int32),
)


def test_groups_come_back_equal(tmp_path: Path) -> None:
    groups = (
        Group(
            problem_id="p0",
            rollouts=(
                make_rollout("a", turns=[FULL_TURN, make_turn([1])]),
                make_rollout("b", turns=[], reward=None, status=RolloutStatus.FAILED, prompt=[]),
                make_rollout("c", reward=0.0, num_answer_tags=0),
            ),
        ),
        make_group([1.0, 0.0], problem_id="p1"),
    )
    write_rollouts(tmp_path / "rollouts.parquet", groups)
    assert_equal(read_rollouts(tmp_path / "rollouts.parquet"), groups)


def test_a_group_without_rollouts_and_no_groups_come_back(tmp_path: Path) -> None:
    empty = (Group(problem_id="p0", rollouts=()), make_group([1.0], problem_id="p1"))
    write_rollouts(tmp_path / "a", empty)
    write_rollouts(tmp_path / "b", ())
    assert_equal(read_rollouts(tmp_path / "a"), empty)
    assert read_rollouts(tmp_path / "b") == ()


def test_two_groups_of_one_problem_stay_apart(tmp_path: Path) -> None:
    groups = (make_group([1.0]), make_group([0.0]))
    write_rollouts(tmp_path / "a", groups)
    assert_equal(read_rollouts(tmp_path / "a"), groups)


def test_read_arrays_are_read_only(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "a", [make_group([1.0])])
    rollout = read_rollouts(tmp_path / "a")[0].rollouts[0]
    assert not rollout.prompt_token_ids.flags.writeable
    assert not rollout.turns[0].completion.logprobs.flags.writeable


def test_a_lone_surrogate_in_output_does_not_lose_the_step(tmp_path: Path) -> None:
    turn = make_turn([1], statuses=["ok"])
    broken = Turn(
        completion=turn.completion,
        tool_calls=(ToolCall(name="python", arguments={"code": "\ud800"}),),
        tool_results=(ToolResult(status=ToolStatus.OK, stdout="a\ud800b \U0001f600"),),
    )
    write_rollouts(
        tmp_path / "a", [Group(problem_id="p", rollouts=(make_rollout(turns=[broken]),))]
    )
    read = read_rollouts(tmp_path / "a")[0].rollouts[0].turns[0]
    assert read.tool_results[0].stdout == "a\ufffdb \U0001f600"
    assert read.tool_calls == broken.tool_calls


def test_a_batch_comes_back_bit_for_bit(tmp_path: Path) -> None:
    batch = Batch(
        stage="rl-1",
        step=3,
        policy_version=2,
        samples=(
            make_sample([1, 2, 3], [0, 1, 1], advantage=0.1, loss_weight=1 / 3),
            make_sample([4], [0], problem_id="p1"),
        ),
    )
    write_batch(tmp_path / "batch.parquet", batch)
    assert_equal(read_batch(tmp_path / "batch.parquet"), batch)


def test_an_empty_batch_comes_back(tmp_path: Path) -> None:
    batch = Batch(stage="rl-1", step=1, policy_version=0, samples=())
    write_batch(tmp_path / "batch.parquet", batch)
    assert_equal(read_batch(tmp_path / "batch.parquet"), batch)


def test_problems_come_back_equal(tmp_path: Path) -> None:
    problems = (
        Problem(problem_id="a", question="1+1?", answer="2", source="user/x"),
        Problem(problem_id="b", question="é", answer="-3", source="s", pass_rate=0.125),
    )
    write_problems(tmp_path / "new" / "problems.parquet", problems)
    assert read_problems(tmp_path / "new" / "problems.parquet") == problems


def test_the_same_groups_give_the_same_bytes(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "a", [make_group([1.0, 0.0])])
    write_rollouts(tmp_path / "b", [make_group([1.0, 0.0])])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_nothing_but_the_file_is_left_in_the_folder(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "a", [make_group([1.0])])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_the_old_file_and_no_partial_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_problems(tmp_path / "folder", ())
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParquetFileError, match="no such file"):
        read_batch(tmp_path / "absent")


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "a", [make_group([1.0])])
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:100])
    with pytest.raises(ParquetFileError, match="not a readable Parquet file"):
        read_rollouts(tmp_path / "a")


@pytest.mark.parametrize("place", [4, 40, -200, -12])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, place: int) -> None:
    """In a page, and in the footer."""
    write_rollouts(tmp_path / "a", [make_group([1.0, 0.0])])
    data = bytearray((tmp_path / "a").read_bytes())
    data[place : place + 8] = b"\xff" * 8
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ParquetFileError, match=f"{tmp_path}/a: not a readable Parquet file"):
        read_rollouts(tmp_path / "a")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_problems(tmp_path / "a", ())
    with pytest.raises(ParquetFileError, match="holds 'problems', expected 'rollouts'"):
        read_rollouts(tmp_path / "a")
