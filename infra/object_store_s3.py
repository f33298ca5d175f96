"""The object store in an S3 bucket, through boto3.

Reads and writes objects under one prefix; downloads lie in a local cache by hash, so that each is
fetched once. Credentials, region and endpoint come from where boto3 looks for them
(`AWS_PROFILE`, `AWS_ENDPOINT_URL`, …) and stand in no message. A server that refuses the checksums
boto3 sends by default needs `AWS_REQUEST_CHECKSUM_CALCULATION=when_required`. Deliberately creates
no bucket.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from infra.object_store import (
    LISTING,
    FileEntry,
    Listing,
    check_key,
    check_prefix,
    damaged,
    explained,
    files_of,
    hash_file,
    listing_from_json,
    missing,
    probe_conditions,
)
from infra.s3_client import (
    NUM_PROBE_TRIES,
    NUM_TRIES,
    bucket_and_prefix,
    new_client,
    read_object,
)
from infra.s3_errors import GONE, S3_ERRORS, code, explain
from infra.s3_uploads import HASH, PART_BYTES, Uploads
from infra.staging import TEMPORARY, staging_folder, sweep
from rstar2.types import ArtifactRef

DOWNLOAD = TransferConfig(
    multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=8
)
WRITER = "writer"
"""Metadata of a conditional write: which call it was."""


def open_s3_store(uri: str, *, cache: Path) -> S3Store:
    bucket, prefix = bucket_and_prefix(uri)
    client = new_client(NUM_TRIES)
    place = f"{client.meta.endpoint_url}/{bucket}{prefix}"
    folder = cache / hashlib.sha256(place.encode()).hexdigest()[:16]
    prefix = f"{prefix.strip('/')}/".lstrip("/")
    return S3Store(bucket, prefix, folder, client)


class S3Store:
    """An `ObjectStore` in a bucket. Use `open_s3_store`."""

    def __init__(self, bucket: str, prefix: str, cache: Path, client: Any) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._cache = cache
        self._client = client
        self._uploads = Uploads(client, bucket, prefix)
        self._is_bucket_seen = False
        self._checked: set[Path] = set()
        """Copies that this process has compared with their hash."""

    @property
    def uri(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def local_root(self) -> Path:
        return self._cache

    def put_bytes(self, key: str, data: bytes, kind: str = "bytes") -> ArtifactRef:
        sha256 = hashlib.sha256(data).hexdigest()
        with self._explained(key):
            self._client.put_object(**self._at(key), Body=data, Metadata={HASH: sha256})
        return ArtifactRef(kind=kind, uri=key, sha256=sha256, num_bytes=len(data))

    def put_file(self, path: Path, key: str, kind: str = "file") -> ArtifactRef:
        with explained(path):
            entry = hash_file(path)
        self._upload(path, key, entry)
        return ArtifactRef(kind=kind, uri=key, sha256=entry.sha256, num_bytes=entry.num_bytes)

    def put_folder(self, folder: Path, key: str, kind: str = "folder") -> ArtifactRef:
        with explained(folder):
            names = files_of(folder)
            entries = {name: hash_file(folder / name) for name in names}
        listing = Listing(kind=kind, files=entries)
        old = self._listing(check_key(key))
        if old == listing:
            return listing.ref(key)
        if old is not None:
            self.delete(f"{key}/{LISTING}")
        wanted = {f"{key}/{name}" for name in names}
        for stale in {*self.list(key), *self.unfinished(key)} - wanted:
            self.delete(stale)
        for name in names:  # those of a broken upload that are there already are not sent again
            self._upload(folder / name, f"{key}/{name}", entries[name])
        self.put_bytes(f"{key}/{LISTING}", listing.to_json())
        return listing.ref(key)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        with explained(self._cache):
            sweep(self._cache)
            with staging_folder(self._cache) as folder:
                yield folder

    def local_path(self, what: ArtifactRef | str) -> Path:
        key = check_key(what if isinstance(what, str) else what.uri)
        head = self._head(key)
        if head is not None:
            return self._local_file(key, head, what.sha256 if isinstance(what, ArtifactRef) else "")
        listing = self._listing(key)
        if listing is None:
            raise missing(key, self.uri)
        sha256 = listing.ref(key).sha256
        if isinstance(what, ArtifactRef) and what.sha256 != sha256:
            raise damaged(key, seen=f"sha256 {sha256}", expected=f"sha256 {what.sha256}")
        return self._local_folder(key, listing, sha256)

    def get_bytes(self, key: str) -> bytes:
        found = self.get_with_etag(key)
        if found is None:
            raise missing(key, self.uri)
        return found[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        with self._explained(key):
            try:
                reply, data = read_object(self._client, self._at(key))
            except ClientError as error:
                if code(error) in GONE:
                    return None
                raise
        seen, expected = hashlib.sha256(data).hexdigest(), reply["Metadata"].get(HASH, "")
        if expected and seen != expected:
            raise damaged(key, seen=f"sha256 {seen}", expected=f"sha256 {expected}")
        return data, str(reply["ETag"])

    def exists(self, key: str) -> bool:
        return self._head(key) is not None or self._head(f"{key}/{LISTING}") is not None

    def unfinished(self, prefix: str = "") -> list[str]:
        prefix = check_prefix(prefix)
        with self._explained(prefix):
            keys = self._uploads.unfinished(self._prefix + prefix if prefix else "")
        return [key[len(self._prefix) :] for key in keys]

    def list(self, prefix: str = "") -> list[str]:
        prefix = check_prefix(prefix)
        start = f"{prefix}/" if prefix else ""
        found = [prefix] if prefix and self._head(prefix) is not None else []
        with self._explained(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + start
            )
            for page in pages:
                found += [o["Key"][len(self._prefix) :] for o in page.get("Contents", [])]
        return sorted(key for key in found if not key.startswith(TEMPORARY))

    def delete(self, prefix: str) -> int:
        prefix = check_key(prefix.removesuffix("/"))
        keys = self.list(prefix)
        for key in sorted(keys, key=lambda k: not k.endswith(f"/{LISTING}")):
            with self._explained(key):
                self._client.delete_object(**self._at(key))
        with self._explained(prefix):
            self._uploads.drop(self._prefix + prefix)
        return len(keys)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._put_if(key, data, {"IfNoneMatch": "*"})

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        return self._put_if(key, data, {"IfMatch": etag})

    def probe(self) -> None:
        quick = S3Store(self._bucket, self._prefix, self._cache, new_client(NUM_PROBE_TRIES))
        quick._see_bucket("")
        probe_conditions(quick)
        quick.unfinished()  # allowed to list them: else a large checkpoint fails, hours later

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + check_key(key)}

    def _put_if(self, key: str, data: bytes, condition: Mapping[str, str]) -> bool:
        writer = uuid.uuid4().hex
        metadata = {HASH: hashlib.sha256(data).hexdigest(), WRITER: writer}
        with self._explained(key):
            try:
                self._put_undisturbed(key, data, metadata, condition)
            except ClientError as error:
                if code(error) in GONE:
                    return False
                if code(error) in ("PreconditionFailed", "412"):
                    # boto3 repeats a write whose reply was lost: then the winner is this call.
                    head = self._head(key)
                    return head is not None and head["Metadata"].get(WRITER) == writer
                raise
        return True

    def _put_undisturbed(
        self, key: str, data: bytes, metadata: Mapping[str, str], condition: Mapping[str, str]
    ) -> None:
        """Again while S3 says that another writer is at the same key just now."""
        for tries_left in reversed(range(NUM_TRIES)):
            try:
                self._client.put_object(**self._at(key), Body=data, Metadata=metadata, **condition)
            except ClientError as error:
                if code(error) != "ConditionalRequestConflict" or not tries_left:
                    raise
            else:
                return

    def _head(self, key: str) -> Mapping[str, Any] | None:
        with self._explained(key):
            try:
                head: Mapping[str, Any] = self._client.head_object(**self._at(key))
            except ClientError as error:
                if code(error) not in GONE:
                    raise
                self._see_bucket(key)
                return None
        return head

    def _see_bucket(self, key: str) -> None:
        """Raises where there is no bucket: an object's HEAD does not say which of them is missing."""
        if self._is_bucket_seen:
            return
        with self._explained(key):
            self._client.head_bucket(Bucket=self._bucket)
        self._is_bucket_seen = True

    def _upload(self, path: Path, key: str, entry: FileEntry) -> None:
        head = self._head(key)
        if head is not None and head["Metadata"].get(HASH) == entry.sha256:
            return
        with self._explained(key), explained(path):
            self._uploads.send(path, self._prefix + key, entry)

    def _listing(self, key: str) -> Listing | None:
        found = self.get_with_etag(f"{key}/{LISTING}")
        return listing_from_json(found[0]) if found else None

    def _local_file(self, key: str, head: Mapping[str, Any], expected: str) -> Path:
        """In the cache under its hash, or its version where a foreign writer left no hash."""
        recorded = expected or head["Metadata"].get(HASH, "")
        version = recorded or hashlib.sha256(head["ETag"].encode()).hexdigest()
        path = self._cache / version / key.rsplit("/", 1)[-1]
        self._fetch(key, path, recorded)
        return path

    def _local_folder(self, key: str, listing: Listing, sha256: str) -> Path:
        folder = self._cache / sha256 / key.rsplit("/", 1)[-1]
        for name, entry in listing.files.items():
            self._fetch(f"{key}/{name}", folder / name, entry.sha256)
        return folder

    def _fetch(self, key: str, path: Path, expected: str) -> None:
        """Downloads what is not in the cache, or not any more as it was downloaded."""
        if path not in self._checked:
            with explained(path):
                is_there = path.is_file() and expected in ("", hash_file(path).sha256)
        elif not (is_there := path.is_file()):
            self._checked.discard(path)
        if not is_there:
            self._download(key, path, expected)
        self._checked.add(path)

    def _download(self, key: str, path: Path, expected: str) -> None:
        """Aside, checked, then renamed: what is in the cache is whole and right."""
        with explained(path), staging_folder(self._cache) as folder:
            aside, at = folder / path.name, self._at(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._explained(key):
                try:
                    self._client.download_file(at["Bucket"], at["Key"], str(aside), Config=DOWNLOAD)
                except ClientError as error:
                    if code(error) in GONE:
                        raise missing(key, self.uri) from None
                    raise
            seen = hash_file(aside).sha256
            if expected and seen != expected:
                raise damaged(key, seen=f"sha256 {seen}", expected=f"sha256 {expected}")
            aside.replace(path)

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except S3_ERRORS as error:
            raise explain(
                error,
                where=f"{key!r} in {self.uri}" if key else self.uri,
                bucket=self._bucket,
                endpoint=str(self._client.meta.endpoint_url),
            ) from None  # the cause may show a key id
