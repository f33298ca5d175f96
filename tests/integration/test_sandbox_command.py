"""`rstar2 sandbox …` as a user runs it: one process each, a state folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.sandbox.protocol import RESULT_KEYS
from infra.sandbox.resident import stop_daemon


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("state")
    yield folder
    stop_daemon(folder)


def rstar2(
    state_dir: Path, *arguments: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "flows.commands", "sandbox", *arguments],
        input=stdin, capture_output=True, check=False, timeout=120,
        env={**os.environ, "RSTAR2_STATE_FOLDER": str(state_dir)},
    )  # fmt: skip


def test_exec_prints_one_line_in_the_protocols_keys(state_dir: Path) -> None:
    done = rstar2(state_dir, "exec", stdin=b"x=1; x+1")
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert (done.returncode, tuple(result)) == (0, RESULT_KEYS)
    assert (result["status"], result["value"]) == ("ok", "2")


def test_exec_of_a_file_that_fails_still_exits_0(state_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text("print('a@@Eb')\n1/0")
    done = rstar2(state_dir, "exec", str(file))
    result = json.loads(done.stdout)
    assert (done.returncode, result["status"], result["stdout"]) == (0, "error", "a@@Eb\n")


def test_exec_of_a_missing_or_binary_file_says_so(state_dir: Path, tmp_path: Path) -> None:
    missing = rstar2(state_dir, "exec", str(tmp_path / "none.py"))
    binary = rstar2(state_dir, "exec", stdin=b"\xff\xfe")
    assert (missing.returncode, binary.returncode) == (2, 2)
    assert b"none.py: No such file or directory" in missing.stderr
    assert b"standard input: byte 0 is not UTF-8" in binary.stderr


def test_bench_loses_nothing(state_dir: Path) -> None:
    done = rstar2(state_dir, "bench", "--calls", "100", "--in-flight", "20", "--json")
    figures = json.loads(done.stdout)
    assert (done.returncode, figures["num_calls"], figures["num_lost"]) == (0, 100, 0)
    assert figures["cpu_ms_per_call"] > 0


def test_status_is_told_with_and_without_a_daemon(state_dir: Path, tmp_path: Path) -> None:
    rstar2(state_dir, "exec", stdin=b"1")
    done = rstar2(state_dir, "status", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["protocol"] == 1
    assert rstar2(tmp_path, "status").returncode == 1


@pytest.mark.parametrize("command", ["exec", "serve", "bench", "status"])
def test_help_has_an_example(state_dir: Path, command: str) -> None:
    done = rstar2(state_dir, command, "--help")
    assert done.returncode == 0
    assert b"Example:" in done.stdout
