"""What is wrong with a run's files is said before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2.arithmetic import ArithmeticProblemsError
from rstar2.config import RecipeConfig
from rstar2.conversations import SftDataError
from rstar2.profiles import load_config, override_config
from tasks.inputs import check_sources, input_files, read_problem_file
from tasks.ledger import LedgerError
from tasks.runs import resume_command

RENAMED = (("question", "prompt"), ("answer", "gold"))


def config_on(path: Path) -> RecipeConfig:
    keys = ["stages.rl-1.problems.source", "evaluation.problems"]
    return load_config("smoke", [f'{key}="{path}"' for key in keys])


def write_problems(path: Path, number: int) -> Path:
    rows = [{"question": f"What is {n} plus one?", "answer": str(n + 1)} for n in range(number)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_with_room_to_train_and_to_hold_out_is_accepted(tmp_path: Path) -> None:
    check_sources(config_on(write_problems(tmp_path / "p.jsonl", 40)))


def test_a_file_too_small_to_hold_anything_out_is_refused_with_its_counts(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        '{"question": "a?", "answer": "4"}\n{"question": "a?", "answer": "5"}\n'
    )
    with pytest.raises(LedgerError, match=r"0 usable problems.*2 rows quarantined"):
        check_sources(config_on(tmp_path / "p.jsonl"))


def test_stage_and_evaluation_name_the_columns_of_their_files(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows = [{"prompt": f"What is {n} plus one?", "gold": str(n + 1)} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = ("stages.rl-1.problems", "evaluation")
    columns = [f'{t}.{c}_column="{v}"' for t in tables for c, v in RENAMED]
    config = override_config(config_on(path), columns)
    check_sources(config)
    read = read_problem_file(config.evaluation.problems, config.evaluation)
    assert (read.problems[0].question, read.problems[0].answer) == ("What is 0 plus one?", "1")


@pytest.mark.parametrize("table", ["stages.rl-2", "evaluation"])
def test_a_share_of_problems_that_there_are_none_of_is_refused(table: str) -> None:
    config = load_config("smoke", [f"{table}.shares={{'arithmetic/three-call' = 0.5}}"])
    with pytest.raises(ArithmeticProblemsError, match="share 'arithmetic/three-call': no kind of"):
        check_sources(config)


def test_a_missing_base_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no config\.json in /nowhere"):
        check_sources(load_config("smoke", ['model.base="/nowhere"']))


def test_a_bad_conversation_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n{\n')
    with pytest.raises(SftDataError, match=r"2 malformed rows(.|\n)*line 1: (.|\n)*line 2: "):
        check_sources(load_config("smoke", [f'sft.data="{path}"']))


def test_a_changed_file_has_another_hash(tmp_path: Path) -> None:
    path = write_problems(tmp_path / "p.jsonl", 40)
    before = input_files(config_on(path))
    write_problems(path, 41)
    assert input_files(config_on(path)).keys() == before.keys() == {str(path)}
    assert input_files(config_on(path)) != before


def test_the_command_that_goes_on_holds_every_setting() -> None:
    command = resume_command("smoke", "a", ["seed=3", 'gates.rl-1.at_max_steps="hold"'])
    assert command == (
        "rstar2 run smoke --run a --set seed=3 --set 'gates.rl-1.at_max_steps=\"hold\"'"
    )
