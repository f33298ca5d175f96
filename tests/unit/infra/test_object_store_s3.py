"""What only a server can do wrong: faults between boto3 and a real S3 server."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import boto3
import pytest
from s3_servers import BUCKET, Fault, faulty_proxy

from infra.object_store import ObjectStore, StoreError, open_store

OpenThrough = Callable[[Fault], ObjectStore]


@pytest.fixture
def open_through(
    s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenThrough]:
    """Opens a store whose requests pass a faulty proxy."""
    with ExitStack() as stack:

        def run(fault: Fault) -> ObjectStore:
            endpoint = stack.enter_context(faulty_proxy(s3_environment, fault))
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            return open_store(f"s3://{BUCKET}/{tmp_path.name}", cache=tmp_path / "cache")

        yield run


def test_the_winner_of_a_conditional_write_knows_it_though_the_reply_was_lost(
    open_through: OpenThrough,
) -> None:
    dropped: list[str] = []

    def lose_first_reply(request: BaseHTTPRequestHandler) -> str | None:
        if request.command == "PUT" and not dropped:
            dropped.append(request.path)
            return "drop"
        return None

    store = open_through(lose_first_reply)
    assert store.put_if_absent("manifest.json", b"mine")
    assert dropped
    assert not store.put_if_absent("manifest.json", b"mine")


def test_the_probe_finds_a_server_that_ignores_conditions(open_through: OpenThrough) -> None:
    def ignore_conditions(request: BaseHTTPRequestHandler) -> None:
        del request.headers["If-None-Match"]
        del request.headers["If-Match"]

    with pytest.raises(StoreError, match="ignores conditional writes"):
        open_through(ignore_conditions).probe()


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_refused_credentials_are_explained_without_showing_them(
    open_through: OpenThrough, code: str, tmp_path: Path
) -> None:
    store = open_through(lambda request: code)
    (tmp_path / "file").write_text("x")
    for action in (
        lambda: store.put_bytes("a", b""),
        lambda: store.put_file(tmp_path / "file", "a"),
        lambda: store.list(),
        lambda: store.exists("a"),
    ):
        with pytest.raises(StoreError, match="S3 refuses access") as caught:
            action()
        assert "AKIA" not in "".join(traceback.format_exception(caught.value))


def test_a_missing_bucket_is_named(s3_environment: str, tmp_path: Path) -> None:
    store = open_store("s3://no-such-bucket/prefix", cache=tmp_path)
    with pytest.raises(StoreError, match="no such bucket: no-such-bucket"):
        store.put_bytes("a", b"")
    with pytest.raises(StoreError, match="no such bucket"):
        store.probe()


def test_a_server_that_does_not_answer_is_explained(
    s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between boto3's ten attempts
    store = open_store(f"s3://{BUCKET}", cache=tmp_path)
    with pytest.raises(StoreError, match=r"S3 cannot be reached: http://127\.0\.0\.1:9"):
        store.put_bytes("a", b"")


def test_an_address_with_credentials_is_refused_without_showing_them() -> None:
    with pytest.raises(StoreError, match="not an S3 address") as caught:
        open_store("s3://AKIA123:secret@bucket/prefix")
    assert "secret" not in str(caught.value)


def test_a_broken_folder_upload_goes_on_where_it_was(
    open_through: OpenThrough, folder: Path
) -> None:
    sent: list[str] = []
    is_broken = [True]

    def fault(request: BaseHTTPRequestHandler) -> str | None:
        if request.command == "PUT":
            if is_broken[0] and "weights.bin" in request.path:
                return "InternalFailure"
            sent.append(request.path.rsplit("/", 1)[-1])
        return None

    store = open_through(fault)
    with pytest.raises(StoreError, match="InternalFailure"):
        store.put_folder(folder, "checkpoint")
    assert not store.exists("checkpoint")
    is_broken[0] = False
    store.put_folder(folder, "checkpoint")
    assert sent == ["config.json", "weights.bin", "artefact.json"]


def test_a_damaged_object_is_not_given_out(
    s3_environment: str, tmp_path: Path, folder: Path
) -> None:
    store = open_store(f"s3://{BUCKET}/{tmp_path.name}", cache=tmp_path / "cache")
    ref = store.put_folder(folder, "checkpoint")
    boto3.client("s3").put_object(
        Bucket=BUCKET, Key=f"{tmp_path.name}/checkpoint/config.json", Body=b"{]"
    )
    with pytest.raises(StoreError, match=r"checkpoint/config\.json' is damaged"):
        store.local_path(ref)


def test_a_large_file_is_sent_in_parts_and_comes_back_whole(
    s3_environment: str, tmp_path: Path
) -> None:
    data = os.urandom(1 << 20) * 65
    (tmp_path / "large").write_bytes(data)
    store = open_store(f"s3://{BUCKET}/{tmp_path.name}", cache=tmp_path / "cache")
    ref = store.put_file(tmp_path / "large", "large")
    head = boto3.client("s3").head_object(Bucket=BUCKET, Key=f"{tmp_path.name}/large")
    assert head["ETag"].endswith('-2"')
    assert store.local_path(ref).read_bytes() == data
