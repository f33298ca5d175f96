"""A set of the hub is downloaded once, read by column and known by its content; all by `datasets`."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import hub_server

CARD = "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: data/train-*\n---\n"
READ = """
import json, sys
from data_catalog.row_sources import SourceError
from data_catalog.sources import read_source
from rstar2.config import RecipeConfig
from rstar2.profiles import load_config, problem_overrides
from tasks.inputs import input_files
try:
    problems = read_source(sys.argv[1]).problems
except SourceError as error:
    sys.exit(str(error))
config = load_config("smoke", problem_overrides("smoke", sys.argv[1]))
print(json.dumps([[p.question, p.answer, p.source] for p in problems]))
print(json.dumps(input_files(config)))
"""


def read(source: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's address is read while `datasets` is imported."""
    return subprocess.run(
        [sys.executable, "-c", READ, source],
        env={**os.environ, "HF_HOME": str(folder), **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def files() -> dict[str, bytes]:
    table = pa.table({"problem": ["1 + 1?", "1 + 2?"], "answer": ["2", "3"]})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return {
        "README.md": CARD.encode(),
        "data/train-00000-of-00001.parquet": buffer.getvalue(),
    }


@pytest.mark.slow
def test_a_set_of_the_hub_is_read_and_kept(tmp_path: Path, files: dict[str, bytes]) -> None:
    source = "hub:owner/sums/en:train"
    with hub_server("owner/sums", files) as address:
        online = read(source, tmp_path, HF_ENDPOINT=address)
    assert online.returncode == 0, online.stderr
    problems, inputs = map(json.loads, online.stdout.splitlines())
    assert problems == [["1 + 1?", "2", "user/sums"], ["1 + 2?", "3", "user/sums"]]
    assert list(inputs) == [source]
    offline = read(source, tmp_path, HF_ENDPOINT=address, HF_HUB_OFFLINE="1")
    assert offline.stdout == online.stdout, offline.stderr


@pytest.mark.slow
def test_a_split_that_is_not_there_is_named(tmp_path: Path, files: dict[str, bytes]) -> None:
    with hub_server("owner/sums", files) as address:
        result = read("hub:owner/sums/en:test", tmp_path, HF_ENDPOINT=address)
    assert result.returncode == 1
    assert "Unknown split" in result.stderr
    assert "['train']" in result.stderr


@pytest.mark.slow
def test_a_hub_that_is_not_reached_says_what_to_do(tmp_path: Path) -> None:
    with hub_server("owner/sums", {}) as address:
        pass
    result = read("hub:owner/sums:train", tmp_path, HF_ENDPOINT=address)
    assert result.returncode == 1
    assert "or a copy of it on disk" in result.stderr
