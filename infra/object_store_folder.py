"""The object store in a folder: every write is a temporary file, synced, then renamed.

Reads and writes below one root. Temporary files lie in the root as `.tmp-…`, locked while their
writer lives; the first write of a process removes those of killed writers. What was staged there is
renamed into its place, not copied. Deliberately keeps no
index: what lies in the folder is the state.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from infra.object_store import (
    LISTING,
    FileEntry,
    Listing,
    check_key,
    check_prefix,
    copy_hashing,
    damaged,
    explained,
    files_of,
    hash_file,
    listing_from_json,
    missing,
    probe_conditions,
)
from infra.staging import LOCK, TEMPORARY, staging_folder, sweep
from rstar2.types import ArtifactRef


class FolderStore:
    """An `ObjectStore` in a folder, which is made by the first write."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._is_swept = False
        self._seen: dict[Path, tuple[int, int, str]] = {}
        """Hash of a file by (modification time, size): a file is read once per process."""

    @property
    def uri(self) -> str:
        return str(self._root)

    @property
    def local_root(self) -> Path:
        return self._root

    def put_bytes(self, key: str, data: bytes, kind: str = "bytes") -> ArtifactRef:
        return self._ref(key, kind, self._write(check_key(key), io.BytesIO(data)))

    def put_file(self, path: Path, key: str, kind: str = "file") -> ArtifactRef:
        with explained(path), path.open("rb") as source:
            return self._ref(key, kind, self._write(check_key(key), source))

    def put_folder(self, folder: Path, key: str, kind: str = "folder") -> ArtifactRef:
        with explained(folder):
            names = files_of(folder)
            entries = {name: hash_file(folder / name) for name in names}
        listing = Listing(kind=kind, files=entries)
        if self._listing(check_key(key)) == listing:
            return listing.ref(key)
        self.delete(key)
        is_staged = self._is_staged(folder)
        for name in names:
            if is_staged:
                self._move(folder / name, f"{key}/{name}", entries[name])
            elif self.put_file(folder / name, f"{key}/{name}").sha256 != entries[name].sha256:
                raise damaged(name, seen="changed while it was stored", expected="a finished file")
        self._write(f"{key}/{LISTING}", io.BytesIO(listing.to_json()))
        return listing.ref(key)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        with explained(self._root):
            self._open_root()
            with staging_folder(self._root) as folder:
                yield folder

    def local_path(self, what: ArtifactRef | str) -> Path:
        key = what if isinstance(what, str) else what.uri
        path = self._root / check_key(key)
        if not self.exists(key):
            raise missing(key, self.uri)
        if isinstance(what, ArtifactRef):
            self._check(what, path)
        return path

    def get_bytes(self, key: str) -> bytes:
        found = self.get_with_etag(key)
        if found is None:
            raise missing(key, self.uri)
        return found[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        path = self._root / check_key(key)
        with explained(path):
            try:
                data = path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
        return data, hashlib.sha256(data).hexdigest()

    def exists(self, key: str) -> bool:
        path = self._root / check_key(key)
        with explained(path):
            return path.is_file() or (path / LISTING).is_file()

    def unfinished(self, prefix: str = "") -> list[str]:
        """None: a write that broke off has no key, and goes with the next process's first write."""
        check_prefix(prefix)
        return []

    def list(self, prefix: str = "") -> list[str]:
        prefix = check_prefix(prefix)
        start = self._root / prefix
        found = []
        with explained(start):
            if start.is_file():
                return [prefix]
            for folder, folders, names in os.walk(start, onerror=_raise_unless_gone):
                folders[:] = [name for name in folders if not name.startswith(TEMPORARY)]
                base = Path(folder).relative_to(self._root)
                found += [(base / n).as_posix() for n in names if not n.startswith(TEMPORARY)]
        return sorted(found)

    def delete(self, prefix: str) -> int:
        prefix = check_key(prefix.removesuffix("/"))
        keys = self.list(prefix)
        path = self._root / prefix
        with explained(path):
            for key in sorted(keys, key=lambda k: not k.endswith(f"/{LISTING}")):
                (self._root / key).unlink(missing_ok=True)
            if path.is_dir():
                shutil.rmtree(path)
        return len(keys)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._locked():
            if (self._root / check_key(key)).exists():
                return False
            self._write(key, io.BytesIO(data))
            return True

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        with self._locked():
            found = self.get_with_etag(key)
            if found is None or found[1] != etag:
                return False
            self._write(key, io.BytesIO(data))
            return True

    def probe(self) -> None:
        probe_conditions(self)

    def _ref(self, key: str, kind: str, entry: FileEntry) -> ArtifactRef:
        return ArtifactRef(kind=kind, uri=key, sha256=entry.sha256, num_bytes=entry.num_bytes)

    def _write(self, key: str, source: BinaryIO) -> FileEntry:
        """Temporary file, sync, rename, sync of the folder: the name never shows half a content."""
        target = self._root / key
        with explained(target):
            self._open_root()
            _make_folder(target.parent)
            temporary = self._root / f"{TEMPORARY}{uuid.uuid4().hex}"
            try:
                entry = _write_locked(temporary, source, target)
            finally:
                temporary.unlink(missing_ok=True)
            self._remember(target, entry.sha256)
        return entry

    def _is_staged(self, folder: Path) -> bool:
        root, folder = self._root.resolve(), folder.resolve()
        return root in folder.parents and any(
            part.startswith(TEMPORARY) for part in folder.relative_to(root).parts
        )

    def _move(self, path: Path, key: str, entry: FileEntry) -> None:
        """A finished file of this disk, synced, then renamed to `key`."""
        target = self._root / key
        with explained(target):
            _make_folder(target.parent)
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.replace(target)
            _sync_folder(target.parent)
            self._remember(target, entry.sha256)

    def _open_root(self) -> None:
        _make_folder(self._root)
        if not self._is_swept:
            self._is_swept = True
            sweep(self._root)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One conditional write at a time, over all processes; a killed holder frees the lock."""
        path = self._root / LOCK
        with explained(path):
            self._open_root()
            with path.open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

    def _listing(self, key: str) -> Listing | None:
        found = self.get_with_etag(f"{key}/{LISTING}")
        return listing_from_json(found[0]) if found else None

    def _remember(self, path: Path, sha256: str) -> None:
        status = path.stat()
        self._seen[path] = (status.st_mtime_ns, status.st_size, sha256)

    def _check(self, ref: ArtifactRef, path: Path) -> None:
        with explained(path):
            is_file = path.is_file()
        if is_file:
            self._check_file(ref.uri, path, FileEntry(sha256=ref.sha256, num_bytes=ref.num_bytes))
            return
        listing = self._listing(ref.uri)
        if listing is None:
            raise missing(ref.uri, self.uri)
        if listing.ref(ref.uri).sha256 != ref.sha256:
            seen = listing.ref(ref.uri).sha256
            raise damaged(ref.uri, seen=f"sha256 {seen}", expected=f"sha256 {ref.sha256}")
        for name, entry in listing.files.items():
            self._check_file(f"{ref.uri}/{name}", path / name, entry)

    def _check_file(self, key: str, path: Path, expected: FileEntry) -> None:
        with explained(path):
            if not path.is_file():
                raise missing(key, self.uri)
            status = path.stat()
            if status.st_size != expected.num_bytes:
                raise damaged(
                    key, seen=f"{status.st_size} bytes", expected=f"{expected.num_bytes} bytes"
                )
            if self._seen.get(path, (0, 0, ""))[:2] != (status.st_mtime_ns, status.st_size):
                self._remember(path, hash_file(path).sha256)
        if self._seen[path][2] != expected.sha256:
            raise damaged(
                key, seen=f"sha256 {self._seen[path][2]}", expected=f"sha256 {expected.sha256}"
            )


def _raise_unless_gone(error: OSError) -> None:
    """A folder that is not there, or no more, is empty; one that cannot be read is not."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _write_locked(temporary: Path, source: BinaryIO, target: Path) -> FileEntry:
    with temporary.open("wb") as sink:
        fcntl.flock(sink, fcntl.LOCK_EX)  # tells `sweep` that the writer lives
        entry = copy_hashing(source, sink)
        sink.flush()
        os.fsync(sink.fileno())
        temporary.replace(target)
    _sync_folder(target.parent)
    return entry


def _make_folder(folder: Path) -> None:
    """With its parents; each new name is synced, so that a power cut cannot lose a whole folder."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
