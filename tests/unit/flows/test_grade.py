from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

from flows.commands.grade import grade


def test_file_is_graded(tmp_path: Path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("so <answer>\\boxed{1{,}234}</answer>")
    grade(gold="1234", text_file=path)
    assert json.loads(capsys.readouterr().out) == {
        "verdict": "correct",
        "reason": "equal after normalisation",
    }


def test_standard_input_is_graded(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\\boxed{5} \xff")))
    grade(gold="4")
    assert json.loads(capsys.readouterr().out)["verdict"] == "incorrect"


def test_text_without_an_answer_is_incorrect(tmp_path: Path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("The answer is 4.")
    grade(gold="4", text_file=path)
    assert json.loads(capsys.readouterr().out)["verdict"] == "incorrect"


def test_required_tags_refuse_a_bare_box(tmp_path: Path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("\\boxed{4}")
    grade(gold="4", text_file=path, answer_tags="required")
    assert json.loads(capsys.readouterr().out)["verdict"] == "incorrect"


def test_neither_torch_nor_prefect_is_loaded(tmp_path: Path):
    path = tmp_path / "text.txt"
    path.write_text("\\boxed{2\\sqrt{2}}")
    code = (
        "import sys; from pathlib import Path; from flows.commands.grade import grade; "
        f"grade(gold='\\\\sqrt{{8}}', text_file=Path({str(path)!r})); "
        "assert not {'torch', 'prefect', 'transformers', 'sympy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
