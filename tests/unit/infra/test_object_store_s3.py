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
from s3_servers import BUCKET, KEY_ID, SECRET, Fault, faulty_proxy

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


@pytest.mark.parametrize("s3_environment", ["moto"], indirect=True)  # the other one signs headers
@pytest.mark.parametrize(
    "ignored", [["If-None-Match"], ["If-Match"], ["If-None-Match", "If-Match"]]
)
def test_the_probe_finds_a_server_that_ignores_conditions(
    open_through: OpenThrough, ignored: list[str]
) -> None:
    def ignore_conditions(request: BaseHTTPRequestHandler) -> None:
        for name in ignored:
            del request.headers[name]

    store = open_through(ignore_conditions)
    with pytest.raises(StoreError, match=r"ignores conditional writes.*Use a server that honours"):
        store.probe()
    assert store.list() == []


def test_the_probe_finds_a_server_that_refuses_conditions(open_through: OpenThrough) -> None:
    def refuse_conditions(request: BaseHTTPRequestHandler) -> str | None:
        return "NotImplemented" if request.headers["If-None-Match"] else None

    with pytest.raises(StoreError, match=r"lacks what a run needs: NotImplemented.*or a folder"):
        open_through(refuse_conditions).probe()


def test_the_probe_finds_that_uploads_may_not_be_listed(open_through: OpenThrough) -> None:
    def refuse_listing(request: BaseHTTPRequestHandler) -> str | None:
        return "AccessDenied" if "uploads" in request.path else None

    with pytest.raises(StoreError, match="S3 refuses access"):
        open_through(refuse_listing).probe()


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
    for ask in (store.probe, store.list, store.unfinished, lambda: store.exists("a")):
        with pytest.raises(StoreError, match="no such bucket"):
            ask()


def test_a_server_that_does_not_answer_is_explained(
    s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between boto3's ten attempts
    store = open_store(f"s3://{BUCKET}", cache=tmp_path)
    with pytest.raises(StoreError, match=r"S3 cannot be reached: http://127\.0\.0\.1:9"):
        store.put_bytes("a", b"")


def test_a_password_in_the_endpoint_is_not_shown(
    s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for endpoint in ("http://user:hunter2@127.0.0.1:9", "user:hunter2@host", "http://u:hunter2@[x"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(StoreError) as caught:
            open_store(f"s3://{BUCKET}", cache=tmp_path).probe()
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("s3_environment", ["seaweed"], indirect=True)  # the other one takes any
@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_refused_by_a_real_server(
    s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "hunter2")
    store = open_store(f"s3://{BUCKET}", cache=tmp_path)
    for ask in (store.probe, store.list, lambda: store.exists("a"), lambda: store.get_bytes("a")):
        with pytest.raises(StoreError, match="S3 refuses access") as caught:
            ask()
        shown = "".join(traceback.format_exception(caught.value))
        assert not any(word in shown for word in ("hunter2", KEY_ID, SECRET))


def test_without_credentials_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match=r"S3 refuses access: no credentials.*Set AWS_PROFILE"):
        open_store(f"s3://{BUCKET}", cache=tmp_path).probe()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreError, match=r"no such AWS profile.*nobody.*Correct AWS_PROFILE"):
        open_store(f"s3://{BUCKET}", cache=tmp_path)


def test_an_address_with_credentials_is_refused_without_showing_them() -> None:
    with pytest.raises(StoreError, match="not an S3 address") as caught:
        open_store("s3://AKIA123:secret@bucket/prefix")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", ["s3://bucket/runs#1", "s3://bucket/runs?a=b", "s3://a b/c", "s3:///c"]
)
def test_an_address_of_which_a_part_would_be_dropped_is_refused(uri: str) -> None:
    with pytest.raises(StoreError, match="not an S3 address"):
        open_store(uri)


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


def test_bytes_that_differ_from_their_hash_are_not_given_out(
    s3_environment: str, tmp_path: Path
) -> None:
    store = open_store(f"s3://{BUCKET}/{tmp_path.name}", cache=tmp_path / "cache")
    sha256 = store.put_bytes("manifest.json", b"{}").sha256
    boto3.client("s3").put_object(
        Bucket=BUCKET,
        Key=f"{tmp_path.name}/manifest.json",
        Body=b"{]",
        Metadata={"sha256": sha256},
    )
    with pytest.raises(StoreError, match=r"manifest\.json' is damaged: sha256 .*expected sha256"):
        store.get_bytes("manifest.json")


def test_a_copy_that_was_damaged_on_this_disk_is_fetched_again(
    s3_environment: str, tmp_path: Path, folder: Path
) -> None:
    uri, cache = f"s3://{BUCKET}/{tmp_path.name}", tmp_path / "cache"
    ref = open_store(uri, cache=cache).put_folder(folder, "checkpoint")
    copy = open_store(uri, cache=cache).local_path(ref) / "config.json"
    copy.write_text("{]")
    assert (open_store(uri, cache=cache).local_path(ref) / "config.json").read_text() == "{}"


def test_an_artefact_of_which_a_file_is_gone_is_no_missing_bucket(
    s3_environment: str, tmp_path: Path, folder: Path
) -> None:
    store = open_store(f"s3://{BUCKET}/{tmp_path.name}", cache=tmp_path / "cache")
    ref = store.put_folder(folder, "checkpoint")
    store.delete("checkpoint/config.json")
    with pytest.raises(StoreError, match=r"no such object: 'checkpoint/config\.json'"):
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
