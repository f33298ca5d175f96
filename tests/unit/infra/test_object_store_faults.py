"""Every operation under every fault between boto3 and a real S3: nothing lost, nothing doubled."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event, Lock

import pytest
from s3_servers import BUCKET, faulty_proxy

from infra import s3_uploads
from infra.object_store import ObjectStore, StoreError, open_store

FAULTS = ["cut", "InternalError", "SlowDown", "drop", "truncate", "slow"]
"""The connection cut in an upload's body, 500, 503, the answer to a request that was carried out lost,
the answer cut in its body, an answer that takes its time."""
PART = 5 << 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("s3_environment", ["moto"], indirect=True),
]


class Faulty:
    """Disturbs each different request once, or every request while it lasts."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.begin(None)

    def begin(self, kind: str | None, *, is_lasting: bool = False) -> None:
        self.kind = kind
        self.is_lasting = is_lasting
        self.num_requests = 0
        self._seen: set[tuple[str, str]] = set()

    def __call__(self, request: BaseHTTPRequestHandler) -> str | None:
        with self._lock:
            self.num_requests += 1
            is_first = (request.command, request.path) not in self._seen
            self._seen.add((request.command, request.path))
        if not is_first and not self.is_lasting:
            return None
        if self.kind == "slow":
            Event().wait(0.05)
            return None
        return self.kind


@dataclass(frozen=True)
class Operation:
    act: Callable[[ObjectStore, Path], object]
    result: object
    keys: tuple[str, ...] = ()
    """Of the store afterwards, with what `BEFORE` wrote."""


def etag_of(store: ObjectStore) -> str:
    found = store.get_with_etag("old")
    assert found is not None
    return found[1]


def put_large(store: ObjectStore, folder: Path) -> bytes:
    (folder.parent / "large").write_bytes(bytes(range(256)) * (PART // 128))
    ref = store.put_file(folder.parent / "large", "large")
    return store.local_path(ref).read_bytes()


def read_folder(store: ObjectStore) -> bytes:
    return (store.local_path("kept") / "sub" / "weights.bin").read_bytes()


KEPT = ("kept/artefact.json", "kept/config.json", "kept/sub/weights.bin", "old")
OPERATIONS = {
    "put_bytes": Operation(lambda s, _: s.put_bytes("new", b"12").num_bytes, 2, ("new",)),
    "put_file": Operation(lambda s, f: s.put_file(f / "config.json", "new").num_bytes, 2, ("new",)),
    "put_file in parts": Operation(put_large, bytes(range(256)) * (PART // 128), ("large",)),
    "put_folder": Operation(
        lambda s, f: s.put_folder(f, "new").num_bytes,
        4,
        ("new/artefact.json", "new/config.json", "new/sub/weights.bin"),
    ),
    "get_bytes": Operation(lambda s, _: s.get_bytes("old"), b"0" * 100),
    "get_with_etag": Operation(lambda s, _: etag_of(s)[:1], '"'),
    "local_path": Operation(lambda s, _: s.local_path("old").read_bytes(), b"0" * 100),
    "local_path of a folder": Operation(lambda s, _: read_folder(s), b"\x00\x01"),
    "exists": Operation(lambda s, _: (s.exists("kept"), s.exists("none")), (True, False)),
    "list": Operation(lambda s, _: s.list(), list(KEPT)),
    "unfinished": Operation(lambda s, _: s.unfinished(), []),
    "put_if_absent": Operation(
        lambda s, _: (s.put_if_absent("new", b"1"), s.put_if_absent("new", b"2")),
        (True, False),
        ("new",),
    ),
    "put_if_match": Operation(
        lambda s, _: (s.put_if_match("old", b"1", etag_of(s)), s.put_if_match("old", b"2", '"0"')),
        (True, False),
    ),
    "probe": Operation(lambda s, _: s.probe(), None),
}


@dataclass(frozen=True)
class Bench:
    """A store behind a proxy, which holds an object and a folder when it is `reset`."""

    store: ObjectStore
    fault: Faulty
    folder: Path
    cache: Path

    def reset(self) -> None:
        self.fault.begin(None)
        for key in {key.split("/")[0] for key in self.store.list()}:
            self.store.delete(key)
        self.store.put_bytes("old", b"0" * 100)
        self.store.put_folder(self.folder, "kept")
        shutil.rmtree(self.cache, ignore_errors=True)

    def check(self, keys: tuple[str, ...]) -> None:
        """Exactly these keys beside those of the reset, and nothing unfinished."""
        assert self.fault.num_requests <= 100
        self.fault.begin(None)
        assert self.store.list() == sorted([*KEPT, *keys])
        assert self.store.unfinished() == []


@pytest.fixture
def bench(
    s3_environment: str, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setattr(s3_uploads, "PART_BYTES", PART)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between boto3's attempts
    fault, cache = Faulty(), tmp_path / "cache"
    with faulty_proxy(s3_environment, fault) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        store = open_store(f"s3://{BUCKET}/{tmp_path.name}", cache=cache)
        yield Bench(store, fault, folder, cache)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_changes_neither_the_result_nor_what_is_stored(bench: Bench, name: str) -> None:
    operation = OPERATIONS[name]
    for kind in FAULTS:
        bench.reset()
        bench.fault.begin(kind)
        assert operation.act(bench.store, bench.folder) == operation.result, kind
        bench.check(operation.keys)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_that_lasts_is_given_up_with_a_reason_and_over_when_it_is(
    bench: Bench, name: str
) -> None:
    operation = OPERATIONS[name]
    for kind in FAULTS[:-1]:
        bench.reset()
        bench.fault.begin(kind, is_lasting=True)
        with pytest.raises(StoreError, match=r"S3 (failed|cannot be reached)"):
            operation.act(bench.store, bench.folder)
        assert bench.fault.num_requests <= 100
        bench.fault.begin(None)
        again = operation.act(bench.store, bench.folder)
        if not name.startswith("put_if"):  # what nobody heard of may have been carried out
            assert again == operation.result, kind
        bench.check(operation.keys)


def test_a_delete_under_a_fault_removes_all_and_counts_it_once(bench: Bench) -> None:
    for kind in FAULTS:
        bench.reset()
        bench.fault.begin(kind)
        assert bench.store.delete("kept") == 3, kind
        bench.fault.begin(None)
        assert bench.store.list() == ["old"]
