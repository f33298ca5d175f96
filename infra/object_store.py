"""Where artefacts live: a folder or an S3 bucket behind one small protocol.

Reads and writes immutable objects by key (`demo/rl-1/step-3/batch.parquet`); a key is relative to
the store's root, so that a moved store stays valid. Only `put_if_absent` and `put_if_match` decide
between writers; everything else may be repeated. Deliberately knows nothing of runs or manifests:
what names an object, and when it counts as written, is the ledger's business.
"""

from __future__ import annotations

import errno
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from infra.staging import TEMPORARY
from rstar2.types import ArtifactRef

LISTING = "artefact.json"
"""Written last into an artefact of several files; without it the artefact does not exist."""
CHUNK_BYTES = 1 << 20


class StoreError(RuntimeError):
    """The store cannot do what was asked. Says what, value seen, expected, next step."""

    def __init__(self, what: str, *, seen: str, expected: str, next_step: str) -> None:
        super().__init__(f"{what}: {seen}; expected {expected}. {next_step}")


class StoreAddressError(StoreError, ValueError):
    """What is given as a store's address is none."""


class ObjectStore(Protocol):
    """A folder or a bucket. Its methods raise `StoreError`, no other library's error."""

    @property
    def uri(self) -> str:
        """The root as the user wrote it; holds no credentials."""
        ...

    @property
    def local_root(self) -> Path:
        """A local folder of this store: the store itself, or where copies from S3 lie."""
        ...

    def put_bytes(self, key: str, data: bytes, kind: str = "bytes") -> ArtifactRef:
        """Writes or replaces one object, whole or not at all."""
        ...

    def put_file(self, path: Path, key: str, kind: str = "file") -> ArtifactRef:
        """Copies a local file to `key`, whole or not at all."""
        ...

    def put_folder(self, folder: Path, key: str, kind: str = "folder") -> ArtifactRef:
        """Copies a folder's files under `key`, listing last; equal content is not sent again.

        Files that lie in a `staging` of this store may be moved instead.
        """
        ...

    def staging(self) -> AbstractContextManager[Path]:
        """An empty folder on this store's own disk, for files that will be put; then removed.

        What the system refuses meanwhile is explained: a full disk, say.
        """
        ...

    def local_path(self, what: ArtifactRef | str) -> Path:
        """A local file or folder with the object's content; a ref's size and hash are checked."""
        ...

    def get_bytes(self, key: str) -> bytes: ...

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Content and its version for `put_if_match`; None where there is no such object."""
        ...

    def exists(self, key: str) -> bool:
        """Whether `key` is a whole object, or a whole artefact of several files."""
        ...

    def unfinished(self, prefix: str = "") -> list[str]:
        """Keys as in `list` whose upload broke off or still goes on; sending again goes on with it."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Keys equal to `prefix` or under it as a folder, sorted; unfinished ones are left out.

        `a`, `a/` and `a/b` itself are prefixes of `a/b`; empty lists the whole store.
        """
        ...

    def delete(self, prefix: str) -> int:
        """Removes what `list` names, a listing first, and returns its number.

        What `unfinished` names goes too.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Writes only where nothing is; of several writers exactly one gets True."""
        ...

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        """Replaces only the version `etag`; False where the object changed or is gone."""
        ...

    def probe(self) -> None:
        """Raises unless the store can be written and honours conditional writes."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    sha256: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The files of an artefact, by name relative to its key."""

    kind: str
    files: Mapping[str, FileEntry]

    def ref(self, key: str) -> ArtifactRef:
        """Its hash covers names and contents, in the order of names."""
        lines = "".join(f"{self.files[n].sha256} {n}\n" for n in sorted(self.files))
        return ArtifactRef(
            kind=self.kind,
            uri=key,
            sha256=hashlib.sha256(lines.encode()).hexdigest(),
            num_bytes=sum(entry.num_bytes for entry in self.files.values()),
        )

    def to_json(self) -> bytes:
        files = {name: asdict(self.files[name]) for name in sorted(self.files)}
        return json.dumps({"kind": self.kind, "files": files}, indent=1).encode()


def listing_from_json(data: bytes) -> Listing:
    tree = json.loads(data)
    files = {name: FileEntry(**entry) for name, entry in tree["files"].items()}
    return Listing(kind=tree["kind"], files=files)


def open_store(uri: str, *, cache: Path | None = None) -> ObjectStore:
    """The store at a folder or `s3://bucket/prefix`. Opening writes nothing and asks no server.

    `cache` holds downloads from S3 (default: `~/.cache/rstar2`). Credentials and endpoint come
    from where boto3 looks for them (`AWS_PROFILE`, `AWS_ENDPOINT_URL`, …).
    """
    if uri.startswith("s3://"):
        from infra.object_store_s3 import open_s3_store  # boto3 is loaded only where it is used

        return open_s3_store(uri, cache=cache or Path.home() / ".cache" / "rstar2")
    if "://" in uri:
        raise StoreAddressError(
            "unknown kind of storage",
            seen=repr(uri),
            expected="a folder or s3://bucket/prefix",
            next_step="Correct --storage, or `storage` in the profile.",
        )
    from infra.object_store_folder import FolderStore  # it imports this file

    return FolderStore(Path(uri))


def check_key(key: str) -> str:
    """The key itself; raises for one that could leave the store or hide in it."""
    parts = key.split("/")
    if any(p in ("", ".", "..") or p.startswith(TEMPORARY) or "\0" in p for p in parts):
        raise StoreError(
            "not a key",
            seen=repr(key),
            expected=f"names joined by single slashes, none of them '.', '..' or {TEMPORARY}…",
            next_step="Name the object relative to the store's root.",
        )
    return key


def check_prefix(prefix: str) -> str:
    """The prefix without a last slash; empty for the whole store."""
    return check_key(prefix.removesuffix("/")) if prefix else ""


def hash_file(path: Path) -> FileEntry:
    with path.open("rb") as source:
        return copy_hashing(source, None)


def copy_hashing(source: BinaryIO, target: BinaryIO | None) -> FileEntry:
    """Copies to `target` (nowhere for None) and hashes in the same pass."""
    digest, num_bytes = hashlib.sha256(), 0
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        num_bytes += len(chunk)
        if target is not None:
            target.write(chunk)
    return FileEntry(sha256=digest.hexdigest(), num_bytes=num_bytes)


def files_of(folder: Path) -> list[str]:
    """Names of a folder's files relative to it, sorted; raises where there are none."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    names = [name for name in names if name != LISTING]
    if not names:
        raise StoreError(
            "nothing to store",
            seen=f"no file in {folder}",
            expected="a folder with at least one file",
            next_step="Check that what writes this folder has finished.",
        )
    return names


def missing(key: str, uri: str) -> StoreError:
    return StoreError(
        "no such object",
        seen=f"{key!r} in {uri}",
        expected="an object that was written whole",
        next_step="Check the run's name and --storage; a half-written artefact counts as absent.",
    )


def damaged(key: str, *, seen: str, expected: str) -> StoreError:
    return StoreError(
        f"object {key!r} is damaged",
        seen=seen,
        expected=expected,
        next_step="Delete it and run the same run name again, or restore it from a copy.",
    )


def probe_conditions(store: ObjectStore) -> None:
    """Writes one object under each condition: some servers ignore conditions silently."""
    key = f"probe-{uuid.uuid4().hex}"
    first = store.put_if_absent(key, b"1")
    try:
        again = store.put_if_absent(key, b"2")
        stale = store.put_if_match(key, b"3", '"00000000000000000000000000000000"')
        found = store.get_with_etag(key)
        right = found is not None and store.put_if_match(key, b"4", found[1])
        seen = (first, again, stale, right)
        if seen != (True, False, False, True):
            raise StoreError(
                f"{store.uri} ignores conditional writes",
                seen=f"write if absent, again, over a wrong version, over the right one = {seen}",
                expected="(True, False, False, True): else two runs could overwrite each other",
                next_step="Use a server that honours If-None-Match and If-Match, or a folder.",
            )
    finally:
        store.delete(key)


def explain_os_error(error: OSError, path: Path) -> StoreError:
    """The user's view of what the operating system refused."""
    name = error.filename or path
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            "the disk is full",
            seen=f"no space left while writing {name}",
            expected="room for the next artefact",
            next_step="Free space and run the same command again: what is committed is kept.",
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreError(
            "the storage cannot be written or read",
            seen=f"{name}: {error.strerror}",
            expected="a folder this user may read and write",
            next_step="Correct its permissions, or choose another folder with --storage.",
        )
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return StoreAddressError(
            "the storage is no folder",
            seen=f"{name}: {error.strerror}",
            expected="a folder or s3://bucket/prefix",
            next_step="Correct --storage, or `storage` in the profile.",
        )
    return StoreError(
        "the storage failed",
        seen=f"{name}: {error.strerror or error}",
        expected="a working folder",
        next_step="Check the path and the disk, then run the same command again.",
    )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, path) from error
