"""The object store as a run's owner uses it: whoever may have been taken over is stopped first.

Reads and writes what the store behind it does. A process that slept, hung or lost its network for
longer than its heartbeat allows raises `OwnershipLost` at its next access, before it can overwrite
or delete what the next owner committed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from infra.object_store import ObjectStore
from infra.ownership import Ownership
from rstar2.types import ArtifactRef


class FencedStore:
    """An `ObjectStore` whose every read and write asks `Ownership.check` first."""

    def __init__(self, store: ObjectStore, ownership: Ownership) -> None:
        self._behind = store
        self._ownership = ownership

    @property
    def uri(self) -> str:
        return self._behind.uri

    @property
    def local_root(self) -> Path:
        return self._behind.local_root

    @property
    def _store(self) -> ObjectStore:
        self._ownership.check()
        return self._behind

    def put_bytes(self, key: str, data: bytes, kind: str = "bytes") -> ArtifactRef:
        return self._store.put_bytes(key, data, kind)

    def put_file(self, path: Path, key: str, kind: str = "file") -> ArtifactRef:
        return self._store.put_file(path, key, kind)

    def put_folder(self, folder: Path, key: str, kind: str = "folder") -> ArtifactRef:
        return self._store.put_folder(folder, key, kind)

    def staging(self) -> AbstractContextManager[Path]:
        return self._store.staging()

    def local_path(self, what: ArtifactRef | str) -> Path:
        return self._store.local_path(what)

    def get_bytes(self, key: str) -> bytes:
        return self._store.get_bytes(key)

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        return self._store.get_with_etag(key)

    def exists(self, key: str) -> bool:
        return self._store.exists(key)

    def unfinished(self, prefix: str = "") -> list[str]:
        return self._store.unfinished(prefix)

    def list(self, prefix: str = "") -> list[str]:
        return self._store.list(prefix)

    def delete(self, prefix: str) -> int:
        return self._store.delete(prefix)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._store.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        return self._store.put_if_match(key, data, etag)

    def probe(self) -> None:
        self._store.probe()
