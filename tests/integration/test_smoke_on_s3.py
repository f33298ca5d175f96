"""The whole recipe on S3: killed and resumed, its weights, its checkpoints, and no secret anywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3
import pytest
from prefect_servers import environment, running_server
from s3_servers import BUCKET, KEY_ID, SECRET, moto_server, s3_variables

from infra.object_store import open_store
from infra.settings import Settings
from tasks.ledger import Ledger

URI = f"s3://{BUCKET}/runs"
LIMIT_SECONDS = 600
PARTS = ("batch", "checkpoint")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with running_server(tmp_path_factory.mktemp("state")) as settings:
        yield settings


@pytest.fixture
def variables(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Mapping[str, str]]:
    """Environment of the commands; this process finds the same server."""
    with moto_server() as endpoint:
        for name, value in {**s3_variables(endpoint), "HOME": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield environment(settings)


def start(storage: str, variables: Mapping[str, str], output: Path) -> subprocess.Popen[bytes]:
    command = ["run", "smoke", "--run", "drill", "--set", f"storage={storage}"]
    with output.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.commands", *command],
            env=dict(variables), stdout=log, stderr=log,
        )  # fmt: skip


def parts(ledger: Ledger) -> dict[str, str]:
    """Hash of each batch and checkpoint by its key; files of rollouts say how long tools took."""
    manifests = [m for stage in ("rl-1", "rl-2", "rl-3") for m in ledger.steps(stage)]
    return {m.parts[name].uri: m.parts[name].sha256 for m in manifests for name in PARTS}


def checkpoints(ledger: Ledger) -> list[str]:
    return [key for key in ledger.store.list("drill") if "/checkpoint/" in key]


@pytest.mark.slow
def test_a_run_on_s3_killed_and_resumed_ends_as_one_in_a_folder(
    settings: Settings, variables: Mapping[str, str], tmp_path: Path
) -> None:
    output, store = tmp_path / "output", open_store(URI)
    killed = start(URI, variables, output)
    while not store.exists("drill/rl-1/manifest-step-00001.json"):
        assert killed.poll() is None, output.read_text()
        time.sleep(0.2)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert start(URI, variables, output).wait(LIMIT_SECONDS) == 0, output.read_text()
    folder = tmp_path / "folder"
    assert start(str(folder), variables, output).wait(LIMIT_SECONDS) == 0, output.read_text()

    on_s3, in_folder = Ledger(store, "drill"), Ledger(open_store(str(folder)), "drill")
    assert parts(on_s3) == parts(in_folder)
    assert checkpoints(on_s3) == checkpoints(in_folder)
    assert store.unfinished() == []
    assert_no_secret(settings.state_folder, tmp_path)


def assert_no_secret(*folders: Path) -> None:
    """In no log, output, copy of an artefact or manifest, nor in Prefect's database."""
    client = boto3.client("s3")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for found in page["Contents"]:
            if found["Key"].endswith(".json"):
                body = client.get_object(Bucket=BUCKET, Key=found["Key"])["Body"].read()
                assert_clean(found["Key"], body)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert any(path.name.startswith("prefect.db") for path in files)
    for path in files:
        assert_clean(str(path), path.read_bytes())


def assert_clean(name: str, content: bytes) -> None:
    for secret in (KEY_ID, SECRET):
        assert secret.encode() not in content, f"{secret} stands in {name}"


@pytest.mark.parametrize(
    ("storage", "changes", "words"),
    [
        ("s3://no-such-bucket/runs", {}, "no such bucket: no-such-bucket"),
        (URI, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "S3 cannot be reached"),
        (URI, {"AWS_PROFILE": "nobody"}, "no such AWS profile"),
        (f"{URI}#1", {}, "not an S3 address"),
    ],
)
def test_a_storage_that_cannot_be_used_ends_the_command_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    storage: str,
    changes: dict[str, str],
    words: str,
) -> None:
    with moto_server() as endpoint:
        state = {"HOME": str(tmp_path), "RSTAR2_STATE_FOLDER": str(tmp_path / "state")}
        variables = {**os.environ, **s3_variables(endpoint), **state, **changes}
        output = tmp_path / "output"
        code = start(storage, variables, output).wait(LIMIT_SECONDS)
    is_address = words.startswith(("no such AWS", "not an S3"))
    assert code == (2 if is_address else 1)
    lines = output.read_text()
    assert words in lines
    assert "Traceback" not in lines
    assert not (tmp_path / "state").exists()
