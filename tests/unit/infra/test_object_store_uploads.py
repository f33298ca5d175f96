"""Large files in parts: an upload that breaks off is gone on with, or dropped, never left to pay for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Lock

import boto3
import pytest
from s3_servers import BUCKET, Fault, faulty_proxy

from infra import s3_uploads
from infra.object_store import ObjectStore, StoreError, open_store

PART = 5 << 20
"""The smallest that S3 takes."""
NUM_PARTS = 6

SENDER = """
import sys
from pathlib import Path
from infra import s3_uploads
from infra.object_store import open_store
s3_uploads.PART_BYTES = int(sys.argv[4])
open_store(sys.argv[1], cache=Path(sys.argv[2])).put_file(Path(sys.argv[3]), "run/weights")
"""

OpenThrough = Callable[[Fault], ObjectStore]


@pytest.fixture
def uri(s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(s3_uploads, "PART_BYTES", PART)
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def open_through(
    uri: str, s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenThrough]:
    with ExitStack() as stack:

        def run(fault: Fault) -> ObjectStore:
            endpoint = stack.enter_context(faulty_proxy(s3_environment, fault))
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            return open_store(uri, cache=tmp_path / "cache")

        yield run


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(
        b"".join(os.urandom(1024) * (PART // 1024) for _ in range(NUM_PARTS - 1)) + b"end"
    )
    return path


class PartCounter:
    """Counts the parts that pass; the `limit`-th and all later ones are cut."""

    def __init__(self, limit: int = 99, strike: Callable[[], object] = lambda: None) -> None:
        self.numbers: list[int] = []
        self._limit = limit
        self._strike = strike
        self._lock = Lock()

    def __call__(self, request: BaseHTTPRequestHandler) -> str | None:
        match = re.search(r"partNumber=(\d+)", request.path)
        if request.command != "PUT" or not match:
            return None
        with self._lock:
            self.numbers.append(int(match[1]))
            if len(self.numbers) < self._limit:
                return None
            self._strike()
            return "cut"


def arrived(uri: str) -> list[int]:
    """Numbers of the parts that lie in the one unfinished upload."""
    client, prefix = boto3.client("s3"), uri.removeprefix(f"s3://{BUCKET}/")
    key = f"{prefix}/run/weights"
    found = client.list_multipart_uploads(Bucket=BUCKET, Prefix=key)["Uploads"]
    (upload,) = [one for one in found if one["Key"] == key]
    parts = client.list_parts(Bucket=BUCKET, Key=key, UploadId=upload["UploadId"])
    return [part["PartNumber"] for part in parts.get("Parts", [])]


def break_off(uri: str, path: Path, s3_environment: str, cache: Path) -> None:
    """A process that sends the file and is killed with kill -9 in its fourth part, others arrived."""
    sender: list[subprocess.Popen[bytes]] = []

    def strike() -> None:
        deadline = time.monotonic() + 60
        while not arrived(uri) and time.monotonic() < deadline:
            time.sleep(0.05)
        sender[0].send_signal(signal.SIGKILL)

    counter = PartCounter(4, strike)
    with faulty_proxy(s3_environment, counter) as endpoint:
        sender.append(
            subprocess.Popen(
                [sys.executable, "-c", SENDER, uri, str(cache), str(path), str(PART)],
                env={**os.environ, "AWS_ENDPOINT_URL": endpoint},
            )
        )
        assert sender[0].wait(timeout=120) == -signal.SIGKILL
    time.sleep(0.3)  # parts that were on their way arrive


def test_a_killed_upload_goes_on_with_the_parts_that_arrived(
    open_through: OpenThrough, uri: str, large: Path, s3_environment: str, tmp_path: Path
) -> None:
    break_off(uri, large, s3_environment, tmp_path / "elsewhere")
    before = arrived(uri)
    assert before
    counter = PartCounter()
    store = open_through(counter)
    assert store.unfinished() == store.unfinished("run") == ["run/weights"]
    assert not store.exists("run/weights")
    assert store.list() == []
    ref = store.put_file(large, "run/weights")
    assert sorted([*before, *counter.numbers]) == list(range(1, NUM_PARTS + 1))
    assert store.local_path(ref).read_bytes() == large.read_bytes()
    assert store.unfinished() == []
    assert store.list() == ["run/weights"]


def test_another_content_does_not_go_on_with_it(
    open_through: OpenThrough, uri: str, large: Path, s3_environment: str, tmp_path: Path
) -> None:
    break_off(uri, large, s3_environment, tmp_path / "elsewhere")
    with large.open("r+b") as file:
        file.write(b"changed")
    counter = PartCounter()
    store = open_through(counter)
    ref = store.put_file(large, "run/weights")
    assert sorted(counter.numbers) == list(range(1, NUM_PARTS + 1))
    assert store.local_path(ref).read_bytes() == large.read_bytes()
    assert store.unfinished() == []


def test_delete_drops_what_is_unfinished_and_nothing_beside_it(
    uri: str, large: Path, s3_environment: str, tmp_path: Path
) -> None:
    break_off(uri, large, s3_environment, tmp_path / "elsewhere")
    store = open_store(uri, cache=tmp_path / "cache")
    store.delete("ru")
    assert store.unfinished() == ["run/weights"]
    store.delete("run")
    assert store.unfinished() == []
    listed = boto3.client("s3").list_objects_v2(
        Bucket=BUCKET, Prefix=uri.removeprefix(f"s3://{BUCKET}/")
    )
    assert "Contents" not in listed


def test_a_stored_folder_drops_what_broke_off_below_it(
    uri: str, large: Path, s3_environment: str, tmp_path: Path, folder: Path
) -> None:
    break_off(uri, large, s3_environment, tmp_path / "elsewhere")
    store = open_store(uri, cache=tmp_path / "cache")
    store.put_folder(folder, "run")
    assert store.unfinished() == []


def test_what_nobody_goes_on_with_is_swept_by_the_next_large_upload(
    uri: str, large: Path, s3_environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(uri, large, s3_environment, tmp_path / "elsewhere")
    open_store(uri, cache=tmp_path / "cache").put_file(large, "other")
    assert open_store(uri, cache=tmp_path / "cache").unfinished() == ["run/weights"]
    monkeypatch.setattr(s3_uploads, "ABANDONED", timedelta(seconds=-5))
    store = open_store(uri, cache=tmp_path / "cache")
    store.put_file(large, "third")
    assert store.unfinished() == []
    assert store.get_bytes("other") == large.read_bytes()


@pytest.mark.parametrize("query", ["uploads", "partNumber=2", "uploadId"])
def test_a_lost_answer_leaves_one_whole_object_and_nothing_else(
    open_through: OpenThrough, large: Path, query: str
) -> None:
    """To the beginning, a part, the end of an upload."""
    lost: list[str] = []

    def lose_first_answer(request: BaseHTTPRequestHandler) -> str | None:
        is_asked = query in request.path and request.command in ("POST", "PUT")
        if not is_asked or (query == "uploadId" and request.command != "POST") or lost:
            return None
        lost.append(request.path)
        return "drop"

    store = open_through(lose_first_answer)
    ref = store.put_file(large, "run/weights")
    assert lost
    assert store.local_path(ref).read_bytes() == large.read_bytes()
    assert store.unfinished() == []
    assert store.list() == ["run/weights"]


def test_an_upload_that_fails_for_good_is_explained_and_goes_on_later(
    open_through: OpenThrough, uri: str, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between boto3's ten attempts
    with pytest.raises(StoreError, match="S3 cannot be reached"):
        open_through(PartCounter(3)).put_file(large, "run/weights")
    before, counter = arrived(uri), PartCounter()
    assert before
    open_through(counter).put_file(large, "run/weights")
    assert sorted([*before, *counter.numbers]) == list(range(1, NUM_PARTS + 1))
