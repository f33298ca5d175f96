"""What is on its way into a store is no part of it, and goes with its writer."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.object_store import ObjectStore, StoreError, open_store
from infra.staging import sweep


def test_what_is_staged_is_no_part_of_the_store_until_it_is_put(store: ObjectStore) -> None:
    with store.staging() as folder:
        assert store.local_root in folder.parents
        (folder / "sub").mkdir()
        (folder / "sub" / "weights.bin").write_bytes(b"12")
        (folder / "config.json").write_bytes(b"{}")
        assert store.list() == []
        ref = store.put_folder(folder, "run/checkpoint", "checkpoint")
    assert not folder.exists()
    assert store.list() == [
        f"run/checkpoint/{name}" for name in ("artefact.json", "config.json", "sub/weights.bin")
    ]
    path = store.local_path(ref)
    assert (path / "sub" / "weights.bin").read_bytes() == b"12"
    with store.staging() as folder:
        (folder / "config.json").write_bytes(b"{}")
        assert store.put_folder(folder, "run/checkpoint").sha256 != ref.sha256
    assert store.list() == ["run/checkpoint/artefact.json", "run/checkpoint/config.json"]


def test_a_disk_that_is_full_while_files_are_staged_is_explained(store: ObjectStore) -> None:
    with pytest.raises(StoreError, match="the disk is full"), store.staging():
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_staged_file_is_moved_into_a_folder_and_not_copied(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    with store.staging() as folder:
        (folder / "weights.bin").write_bytes(b"12")
        inode = (folder / "weights.bin").stat().st_ino
        store.put_folder(folder, "checkpoint")
    assert (tmp_path / "store" / "checkpoint" / "weights.bin").stat().st_ino == inode


def test_what_a_killed_process_had_staged_goes_with_the_next_write(tmp_path: Path) -> None:
    code = (
        "import sys; from infra.object_store import open_store\n"
        "with open_store(sys.argv[1]).staging() as folder:\n"
        "    (folder / 'half').touch(); print(folder, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        folder = Path(writer.stdout.readline().decode().strip())
        os.utime(folder, (0, 0))
        assert sweep(tmp_path) == 0
        writer.kill()
    os.utime(folder, (0, 0))
    open_store(str(tmp_path)).put_bytes("a", b"")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_the_temporary_file_of_a_living_writer_stays(tmp_path: Path) -> None:
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'wb'); fcntl.flock(f, fcntl.LOCK_EX);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    path = tmp_path / ".tmp-alive"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        os.utime(path, (0, 0))
        assert sweep(tmp_path) == 0
        writer.communicate(b"")
    assert sweep(tmp_path) == 1
