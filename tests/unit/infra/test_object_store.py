"""One contract for both stores; what only a folder can do wrong comes after."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Thread

import pytest

from infra.object_store import ObjectStore, StoreError, explain_os_error, open_store


def test_bytes_come_back_with_their_hash(store: ObjectStore) -> None:
    ref = store.put_bytes("a/b.bin", b"hello", kind="batch")
    assert store.get_bytes("a/b.bin") == b"hello"
    assert (ref.kind, ref.uri, ref.num_bytes) == ("batch", "a/b.bin", 5)
    assert ref.sha256 == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


def test_a_second_write_replaces_the_first(store: ObjectStore) -> None:
    store.put_bytes("a", b"one")
    store.put_bytes("a", b"two")
    assert store.get_bytes("a") == b"two"


def test_a_file_can_be_read_at_its_local_path(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "rollouts.parquet").write_bytes(b"rows")
    ref = store.put_file(tmp_path / "rollouts.parquet", "run/rollouts.parquet", "rollouts")
    assert store.local_path(ref).read_bytes() == b"rows"
    assert store.local_path("run/rollouts.parquet").read_bytes() == b"rows"


def test_local_path_of_a_key_follows_a_newer_version(store: ObjectStore) -> None:
    store.put_bytes("latest", b"1")
    assert store.local_path("latest").read_bytes() == b"1"
    store.put_bytes("latest", b"2")
    assert store.local_path("latest").read_bytes() == b"2"


def test_a_folder_comes_back_with_all_its_files(store: ObjectStore, folder: Path) -> None:
    ref = store.put_folder(folder, "run/checkpoint", "checkpoint")
    path = store.local_path(ref)
    assert (path / "config.json").read_text() == "{}"
    assert (path / "sub" / "weights.bin").read_bytes() == b"\x00\x01"
    assert ref.num_bytes == 4


def test_the_hash_of_a_folder_covers_names_and_contents(store: ObjectStore, folder: Path) -> None:
    first = store.put_folder(folder, "one")
    assert store.put_folder(folder, "two").sha256 == first.sha256
    (folder / "config.json").rename(folder / "other.json")
    renamed = store.put_folder(folder, "three").sha256
    assert renamed != first.sha256
    (folder / "other.json").write_text("[]")
    assert store.put_folder(folder, "four").sha256 not in (first.sha256, renamed)


def test_a_folder_without_its_listing_does_not_exist(store: ObjectStore, folder: Path) -> None:
    ref = store.put_folder(folder, "run/checkpoint")
    assert store.exists("run/checkpoint")
    store.delete("run/checkpoint/artefact.json")
    assert not store.exists("run/checkpoint")
    with pytest.raises(StoreError, match="no such object"):
        store.local_path(ref)


def test_no_path_to_a_half_written_artefact_is_handed_out(store: ObjectStore) -> None:
    store.put_bytes("run/checkpoint/config.json", b"{}")
    for key in ("run/checkpoint", "run"):
        assert not store.exists(key)
        with pytest.raises(StoreError, match="a half-written artefact counts as absent"):
            store.local_path(key)


def test_storing_a_folder_again_leaves_no_file_of_the_old_one(
    store: ObjectStore, folder: Path
) -> None:
    store.put_folder(folder, "run/checkpoint")
    (folder / "config.json").unlink()
    store.put_folder(folder, "run/checkpoint")
    assert store.list("run") == ["run/checkpoint/artefact.json", "run/checkpoint/sub/weights.bin"]


def test_an_empty_folder_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="nothing to store"):
        store.put_folder(tmp_path / "empty", "run/checkpoint")


def test_a_ref_with_another_hash_is_refused(store: ObjectStore) -> None:
    old = store.put_bytes("a", b"old")
    store.put_bytes("a", b"new")
    with pytest.raises(StoreError, match="damaged"):
        store.local_path(old)


def test_a_missing_object_is_named(store: ObjectStore) -> None:
    with pytest.raises(StoreError, match="'run/nothing'"):
        store.get_bytes("run/nothing")
    assert store.get_with_etag("run/nothing") is None
    assert not store.exists("run/nothing")


def test_a_prefix_is_a_folder_of_keys(store: ObjectStore) -> None:
    for key in ("a/1", "a/b/2", "ab/3"):
        store.put_bytes(key, b"")
    assert store.list("a") == ["a/1", "a/b/2"]
    assert store.list() == ["a/1", "a/b/2", "ab/3"]
    assert store.list("ab/3") == ["ab/3"]
    assert store.list("nothing") == []


def test_delete_takes_exactly_what_lies_under_the_prefix(store: ObjectStore) -> None:
    for key in ("a/1", "a/b/2", "ab/3"):
        store.put_bytes(key, b"")
    assert store.delete("a") == 2
    assert store.list() == ["ab/3"]
    assert store.delete("a") == 0


def test_put_if_absent_writes_once(store: ObjectStore) -> None:
    assert store.put_if_absent("manifest.json", b"first")
    assert not store.put_if_absent("manifest.json", b"second")
    assert store.get_bytes("manifest.json") == b"first"


def test_put_if_match_writes_over_the_version_it_saw(store: ObjectStore) -> None:
    store.put_bytes("latest", b"1")
    found = store.get_with_etag("latest")
    assert found is not None
    assert store.put_if_match("latest", b"2", found[1])
    assert not store.put_if_match("latest", b"3", found[1])
    assert not store.put_if_match("absent", b"3", found[1])
    assert store.get_bytes("latest") == b"2"


def test_of_eight_writers_one_wins(store: ObjectStore) -> None:
    won: list[bool] = []
    barrier = Barrier(8)

    def race() -> None:
        barrier.wait()
        won.append(store.put_if_absent("owner", b""))

    threads = [Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_the_probe_passes_and_leaves_nothing(store: ObjectStore) -> None:
    store.probe()
    assert store.list() == []


def test_nothing_is_unfinished_that_was_written_whole(store: ObjectStore, folder: Path) -> None:
    store.put_folder(folder, "run/checkpoint")
    assert store.unfinished() == []
    assert store.unfinished("run") == []


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/./b", "a/.tmp-b", "a\0"])
def test_a_key_that_could_leave_the_store_is_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(StoreError, match="not a key"):
        store.put_bytes(key, b"")


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(StoreError, match="gs://bucket"):
        open_store("gs://bucket")


def test_a_damaged_file_of_a_folder_artefact_is_found(tmp_path: Path, folder: Path) -> None:
    ref = open_store(str(tmp_path / "s")).put_folder(folder, "checkpoint")
    (tmp_path / "s" / "checkpoint" / "config.json").write_text("{]")
    with pytest.raises(StoreError, match=r"checkpoint/config\.json"):
        open_store(str(tmp_path / "s")).local_path(ref)


def test_leftovers_of_a_kill_are_not_listed_and_go_with_the_next_write(tmp_path: Path) -> None:
    (tmp_path / ".tmp-killed").write_bytes(b"half")
    os.utime(tmp_path / ".tmp-killed", (0, 0))
    store = open_store(str(tmp_path))
    assert store.list() == []
    store.put_bytes("a", b"")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


FULL_OR_READ_ONLY = """
mount -t tmpfs -o size=1m tmpfs "$1" && mkdir "$1/store" && {prepare}
exec "$2" -c '
import sys
from infra.object_store import open_store, StoreError
try:
    open_store(sys.argv[1]).put_bytes("a", bytes(4 << 20))
except StoreError as error:
    print(error)
    print(open_store(sys.argv[1]).list())
' "$1/store"
"""


@pytest.mark.parametrize(
    ("prepare", "words"),
    [("true", "the disk is full"), ('mount -o remount,ro "$1"', "cannot be written")],
)
def test_a_real_full_or_read_only_disk_is_explained(
    tmp_path: Path, prepare: str, words: str
) -> None:
    script = FULL_OR_READ_ONLY.format(prepare=prepare)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"needs user namespaces: {done.stderr.strip()}")
    assert words in done.stdout
    assert done.stdout.endswith("[]\n")


def test_a_full_disk_says_what_to_do() -> None:
    error = explain_os_error(OSError(errno.ENOSPC, "No space left on device"), Path("runs/a"))
    assert "runs/a" in str(error)
    assert "Free space and run the same command again" in str(error)


def test_a_store_whose_root_is_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="the storage is no folder"):
        open_store(str(tmp_path / "file")).put_bytes("a", b"")


@contextmanager
def without_root() -> Iterator[None]:
    """As a user whom permissions bind."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def closed_store() -> Iterator[ObjectStore]:
    """A store with a folder inside that its user may neither list nor enter."""
    with without_root():
        root = Path(tempfile.mkdtemp(dir="/tmp")) / "store"
        store = open_store(str(root))
        store.put_bytes("open/a", b"1")
        store.put_bytes("closed/b", b"2")
        (root / "closed").chmod(0)
        yield store
        (root / "closed").chmod(0o700)
        shutil.rmtree(root.parent)


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.list(),
        lambda store: store.list("closed"),
        lambda store: store.list("closed/b"),
        lambda store: store.exists("closed/b"),
        lambda store: store.exists("closed"),
        lambda store: store.local_path("closed/b"),
        lambda store: store.get_bytes("closed/b"),
        lambda store: store.delete("closed"),
        lambda store: store.put_if_absent("closed/b", b"3"),
    ],
)
def test_a_folder_that_cannot_be_read_is_not_empty(
    closed_store: ObjectStore, ask: Callable[[ObjectStore], object]
) -> None:
    with pytest.raises(StoreError, match="the storage cannot be written or read"):
        ask(closed_store)


def test_an_io_error_is_not_emptiness(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for ask in (store.list, store.exists, store.get_bytes, store.local_path, store.delete):
        with pytest.raises(StoreError, match=r"the storage failed: .*File name too long"):
            ask("x" * 300)


@pytest.mark.parametrize("prefix", ["", "nothing", "a/file/below"])
def test_what_is_not_there_is_empty(tmp_path: Path, prefix: str) -> None:
    store = open_store(str(tmp_path / "store"))
    assert store.list(prefix) == []
    open_store(str(tmp_path)).put_bytes("store/a/file", b"")
    assert store.list(prefix or "b") == []
