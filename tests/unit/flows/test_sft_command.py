"""`rstar2 sft`: the mixture as a file, and its rewriting, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sft_rows import GLAIVE, NEMOTRON, TULU
from writing_server import writing_server

from flows.commands.main import main
from rstar2.config import ChatConfig
from rstar2.dialogues import read_dialogues


def write_mixture(folder: Path, *settings: str) -> int:
    rows = {"glaive": GLAIVE, "tulu-3": TULU, "nemotron-chat": NEMOTRON | {"reasoning": "on"}}
    for name, row in rows.items():
        (folder / f"{name}.jsonl").write_text(json.dumps(row))
    shares = ", ".join(f"{name} = 3" for name in rows)
    paths = [f"sft.paths.{name}={folder}/{name}.jsonl" for name in rows]
    overrides = [f"sft.mixture={{ {shares} }}", *paths, *settings]
    arguments = [part for override in overrides for part in ("--set", override)]
    return main(["sft", "mix", "smoke", str(folder / "mixed.jsonl"), *arguments])


def test_the_mixture_is_written_and_what_was_left_out_is_said(tmp_path, capsys):
    assert write_mixture(tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "glaive: 1 of 3 wanted, from 1 rows; 0 more could be used"
    assert "  1 left out, reasoning: column reasoning" in said
    assert said[-1] == f"{tmp_path}/mixed.jsonl: 2 dialogues"
    mixed = read_dialogues(tmp_path / "mixed.jsonl", ChatConfig())
    assert [d.source for d in mixed] == ["glaive", "tulu-3"]


def test_the_written_mixture_is_rewritten(tmp_path, capsys):
    write_mixture(tmp_path)
    with writing_server(lambda text, _: (200, f"better: {text}")) as server:
        arguments = ["--endpoint", server.url, "--model", "writer"]
        files = [str(tmp_path / "mixed.jsonl"), str(tmp_path / "better.jsonl")]
        assert main(["sft", "rewrite", *files, *arguments]) == 0
    assert "2 dialogues, 1 of them rewritten" in capsys.readouterr().out
    glaive, tulu = read_dialogues(tmp_path / "better.jsonl", ChatConfig())
    assert glaive.original is None
    assert tulu.original[1].content == "<reason></reason><answer>Paris</answer>"
    assert "better: " in tulu.messages[1].content


def test_unanswered_questions_end_with_code_1_and_the_way_on(tmp_path, capsys):
    write_mixture(tmp_path)
    with writing_server(lambda *_: (503, "busy")) as server:
        arguments = ["--endpoint", server.url, "--model", "writer", "--attempts", "1"]
        files = [str(tmp_path / "mixed.jsonl"), str(tmp_path / "better.jsonl")]
        assert main(["sft", "rewrite", *files, *arguments]) == 1
    assert "the same command asks again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("sft.mixture={other=1}", "sft.mixture.other"),
        ("sft.paths.glaive=absent.jsonl", "no such file"),
    ],
)
def test_a_wrong_mixture_is_a_users_mistake(tmp_path, capsys, setting, words):
    assert write_mixture(tmp_path, setting) == 2
    assert words in capsys.readouterr().err
