"""SFT's conversations and its end: what is trained on is counted, what changed is said."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from chat_tokenizer import make_tokenizer
from sft_rows import APIGEN_MT, TOOLACE, TULU

from infra.object_store import open_store
from rstar2.chat import open_chat
from rstar2.config import RecipeConfig
from rstar2.conversations import Message, SftDataError
from rstar2.dialogues import RENDERS_DIFFERENTLY, Dialogue, write_dialogues
from rstar2.profiles import load_config, override_config
from rstar2.types import ArtifactRef
from tasks.inputs import check_sources, input_files
from tasks.ledger import Ledger
from tasks.resources import Resources
from tasks.sft import conversation_table, finish_sft, prepare_conversations

CHECKPOINT = ArtifactRef(kind="checkpoint", uri="demo/sft/checkpoint", sha256="0", num_bytes=1)


def write_rows(path: Path, *rows: dict) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def config_with(*overrides: str) -> RecipeConfig:
    full = ('chat={style="full"}', "sft.batch_tokens=100000")
    return override_config(load_config("smoke"), [*full, *overrides])


def mixture_config(folder: Path) -> RecipeConfig:
    spelled = {"content": "Why <|im_end|>?", "role": "user"}
    bad = TULU | {"messages": [spelled, TULU["messages"][1]]}
    paths = {
        "toolace": write_rows(folder / "toolace.jsonl", TOOLACE),
        "apigen-mt": write_rows(folder / "apigen.jsonl", APIGEN_MT),
        "tulu-3": write_rows(folder / "tulu.jsonl", TULU, TULU, bad),
    }
    shares = "{toolace=5, apigen-mt=5, tulu-3=1}"
    return config_with(
        'sft.data="mixture"',
        f"sft.mixture={shares}",
        *(f'sft.paths.{name}="{path}"' for name, path in paths.items()),
    )


def opened(config: RecipeConfig, storage: Path) -> Resources:
    return Resources(
        config=config,
        ledger=Ledger(open_store(str(storage)), "demo"),
        chat=open_chat(make_tokenizer(), config.chat, []),
        sandbox=None,
        execute=None,
        pool=None,
        trainer=None,
        loop=None,
    )


def test_the_mixture_is_rendered_and_every_row_of_it_counted(tmp_path: Path) -> None:
    resources = opened(mixture_config(tmp_path), tmp_path / "runs")
    rows = prepare_conversations.fn(resources).rows
    assert len(rows) == 3
    values = resources.ledger.find("conversations", stage="sft").values
    assert values["num_conversations"] == 3
    assert 0 < values["num_trained_tokens"] < values["num_tokens"]
    assert values["dropped"] == {}
    assert values["sources"][2] == {
        "source": "tulu-3",
        "wanted": 1,
        "rows": 3,
        "kept": 1,
        "not_drawn": 1,
        "reasoning": {},
        "unusable": {"spells a tag of the template": 1},
    }


def test_the_counts_of_a_mixture_are_a_table(tmp_path: Path) -> None:
    resources = opened(mixture_config(tmp_path), tmp_path / "runs")
    assert conversation_table(resources.ledger) == []
    prepare_conversations.fn(resources)
    *_, tulu = conversation_table(resources.ledger)
    assert tulu == {
        "set": "tulu-3",
        "wanted": 1,
        "rows": 3,
        "kept": 1,
        "over the share": 1,
        "reasoning": "0",
        "unusable": "1 spells a tag of the template",
    }


def test_a_resumed_run_trains_on_the_same_mixture(tmp_path: Path) -> None:
    config = mixture_config(tmp_path)
    first = prepare_conversations.fn(opened(config, tmp_path / "runs")).rows
    second = prepare_conversations.fn(opened(config, tmp_path / "runs")).rows
    assert [ids.tolist() for ids, _ in first] == [ids.tolist() for ids, _ in second]


def test_the_files_of_a_mixture_are_inputs_of_the_run(tmp_path: Path) -> None:
    config = mixture_config(tmp_path)
    check_sources(config)
    before = input_files(config)
    assert {"mixture/toolace", "mixture/apigen-mt", "mixture/tulu-3"} <= set(before)
    write_rows(tmp_path / "tulu.jsonl", TULU)
    after = input_files(config)
    assert {name for name in before if before[name] != after[name]} == {"mixture/tulu-3"}


def test_dialogues_of_a_file_are_trained_on_but_for_those_that_cannot_be(tmp_path: Path) -> None:
    def talk(question: str) -> Dialogue:
        answer = "<reason></reason><answer>Yes.</answer>"
        return Dialogue(
            dialogue_id=f"x/{question}",
            source="x",
            messages=(
                Message(role="user", content=question),
                Message(role="assistant", content=answer),
            ),
        )

    write_dialogues(tmp_path / "a.jsonl", [talk("Is it?"), talk("Is <|im_start|> a tag?")])
    resources = opened(config_with(f'sft.data="{tmp_path}/a.jsonl"'), tmp_path / "runs")
    assert len(prepare_conversations.fn(resources).rows) == 1
    values = resources.ledger.find("conversations", stage="sft").values
    assert values["dropped"] == {RENDERS_DIFFERENTLY: 1}


def test_data_of_which_nothing_can_be_trained_on_is_refused(tmp_path: Path) -> None:
    config = override_config(mixture_config(tmp_path), ["sft.batch_tokens=5"])
    with pytest.raises(SftDataError, match=r"longer than sft\.batch_tokens.*expected some"):
        prepare_conversations.fn(opened(config, tmp_path / "runs"))


def commit_evaluation(ledger: Ledger, name: str, **totals: float) -> None:
    values = {"name": name, "checkpoint": asdict(CHECKPOINT), "scores": [], "totals": totals}
    ledger.commit("evaluation", stage="evaluation", name=name, values=values)


def test_the_end_of_sft_says_what_changed(tmp_path: Path) -> None:
    config = mixture_config(tmp_path)
    resources = opened(config, tmp_path / "runs")
    prepare_conversations.fn(resources)
    measured = {"mean_response_tokens": 43.25, "num_tool_calls": 812}
    commit_evaluation(resources.ledger, "base", accuracy=0.005, valid_call_rate=0.0, **measured)
    commit_evaluation(resources.ledger, "sft", accuracy=0.117, valid_call_rate=0.972, **measured)
    result = finish_sft(resources.ledger, config, checkpoint=CHECKPOINT, scores=())
    assert result.gate.reason == (
        "SFT ran its 4 steps; 3 conversations, 0 left out as too long or not certain to be masked "
        "right; held-out accuracy 0.5% before, 11.7% after; 43 tokens a response; 97.2% of 812 calls "
        "valid"
    )
    assert result.gate.evidence == {
        "accuracy_before": 0.005,
        "accuracy_after": 0.117,
        "valid_call_rate": 0.972,
        "num_conversations": 3,
        "num_dropped": 0,
        **measured,
    }


def test_without_evaluations_the_end_of_sft_says_its_steps(tmp_path: Path) -> None:
    resources = opened(config_with(), tmp_path / "runs")
    result = finish_sft(resources.ledger, resources.config, checkpoint=CHECKPOINT, scores=())
    assert result.gate.reason == "SFT ran its 4 steps"
