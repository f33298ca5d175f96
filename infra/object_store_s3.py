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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
)

from infra.object_store import (
    LISTING,
    FileEntry,
    Listing,
    StoreAddressError,
    StoreError,
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
from infra.staging import staging_folder, sweep
from rstar2.types import ArtifactRef

MIB = 1 << 20
TRANSFER = TransferConfig(
    multipart_threshold=64 * MIB, multipart_chunksize=64 * MIB, max_concurrency=8
)
"""Parts of 64 MiB: S3 allows 10,000 of them, so files of up to 640 GB."""
HASH = "sha256"
"""Metadata of each object: its content's hash, to check downloads and to skip equal uploads."""

WRITER = "writer"
"""Metadata of a conditional write: which call it was."""


def open_s3_store(uri: str, *, cache: Path) -> S3Store:
    bucket, prefix = _bucket_and_prefix(uri)
    try:
        client = boto3.client("s3", config=Config(retries={"mode": "standard", "max_attempts": 10}))
    except ValueError as error:
        raise StoreAddressError(
            "the S3 endpoint is no address",
            seen=str(error),
            expected="an address like http://127.0.0.1:9000",
            next_step="Correct AWS_ENDPOINT_URL, or unset it for Amazon's own.",
        ) from None
    place = f"{client.meta.endpoint_url}/{bucket}{prefix}"
    folder = cache / hashlib.sha256(place.encode()).hexdigest()[:16]
    return S3Store(client, bucket, prefix.strip("/"), folder)


def _bucket_and_prefix(uri: str) -> tuple[str, str]:
    seen = "s3://…"  # what does not parse may hold a password anywhere
    with suppress(ValueError):
        parts = urlsplit(uri)
        if parts.netloc and not parts.username and not parts.query:
            return parts.netloc, parts.path
        seen = f"s3://{parts.hostname or ''}{parts.path}"
    raise StoreAddressError(
        "not an S3 address",
        seen=seen,
        expected="s3://bucket or s3://bucket/prefix, without credentials",
        next_step="Give credentials through AWS_PROFILE or AWS_ACCESS_KEY_ID.",
    )


class S3Store:
    """An `ObjectStore` in a bucket. Use `open_s3_store`."""

    def __init__(self, client: Any, bucket: str, prefix: str, cache: Path) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._cache = cache

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
        for stale in set(self.list(key)) - wanted:
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
                reply = self._client.get_object(**self._at(key))
                return reply["Body"].read(), str(reply["ETag"])
            except ClientError as error:
                if _code(error) in ("NoSuchKey", "404"):
                    return None
                raise

    def exists(self, key: str) -> bool:
        return self._head(key) is not None or self._head(f"{key}/{LISTING}") is not None

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
        return sorted(found)

    def delete(self, prefix: str) -> int:
        keys = self.list(check_key(prefix.removesuffix("/")))
        for key in sorted(keys, key=lambda k: not k.endswith(f"/{LISTING}")):
            with self._explained(key):
                self._client.delete_object(**self._at(key))
        return len(keys)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._put_if(key, data, {"IfNoneMatch": "*"})

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        return self._put_if(key, data, {"IfMatch": etag})

    def probe(self) -> None:
        probe_conditions(self)

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + check_key(key)}

    def _put_if(self, key: str, data: bytes, condition: Mapping[str, str]) -> bool:
        writer = uuid.uuid4().hex
        metadata = {HASH: hashlib.sha256(data).hexdigest(), WRITER: writer}
        with self._explained(key):
            try:
                self._client.put_object(**self._at(key), Body=data, Metadata=metadata, **condition)
            except ClientError as error:
                if _code(error) in ("NoSuchKey", "404"):
                    return False
                if _code(error) in ("PreconditionFailed", "412"):
                    # boto3 repeats a write whose reply was lost: then the winner is this call.
                    head = self._head(key)
                    return head is not None and head["Metadata"].get(WRITER) == writer
                if _code(error) == "ConditionalRequestConflict":  # another writer is at it now
                    return self._put_if(key, data, condition)
                raise
        return True

    def _head(self, key: str) -> Mapping[str, Any] | None:
        with self._explained(key):
            try:
                head: Mapping[str, Any] = self._client.head_object(**self._at(key))
            except ClientError as error:
                if _code(error) in ("NoSuchKey", "404"):
                    return None
                raise
        return head

    def _upload(self, path: Path, key: str, entry: FileEntry) -> None:
        head = self._head(key)
        if head is not None and head["Metadata"].get(HASH) == entry.sha256:
            return
        with self._explained(key), explained(path):
            at = self._at(key)
            self._client.upload_file(
                str(path),
                at["Bucket"],
                at["Key"],
                ExtraArgs={"Metadata": {HASH: entry.sha256}},
                Config=TRANSFER,
            )

    def _listing(self, key: str) -> Listing | None:
        found = self.get_with_etag(f"{key}/{LISTING}")
        return listing_from_json(found[0]) if found else None

    def _local_file(self, key: str, head: Mapping[str, Any], expected: str) -> Path:
        """In the cache under its hash, or its version where a foreign writer left no hash."""
        recorded = expected or head["Metadata"].get(HASH, "")
        version = recorded or hashlib.sha256(head["ETag"].encode()).hexdigest()
        path = self._cache / version / key.rsplit("/", 1)[-1]
        if not path.is_file():
            self._download(key, path, recorded)
        return path

    def _local_folder(self, key: str, listing: Listing, sha256: str) -> Path:
        folder = self._cache / sha256 / key.rsplit("/", 1)[-1]
        for name, entry in listing.files.items():
            if not (folder / name).is_file():
                self._download(f"{key}/{name}", folder / name, entry.sha256)
        return folder

    def _download(self, key: str, path: Path, expected: str) -> None:
        """Aside, checked, then renamed: what is in the cache is whole and right."""
        with explained(path), staging_folder(self._cache) as folder:
            aside, at = folder / path.name, self._at(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._explained(key):
                self._client.download_file(at["Bucket"], at["Key"], str(aside), Config=TRANSFER)
            seen = hash_file(aside).sha256
            if expected and seen != expected:
                raise damaged(key, seen=f"sha256 {seen}", expected=f"sha256 {expected}")
            aside.replace(path)

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except (ClientError, BotoCoreError, S3UploadFailedError) as error:
            raise self._explain(error, key) from None  # the cause may show a key id

    def _explain(self, error: Exception, key: str) -> StoreError:
        where = f"{key!r} in {self.uri}"
        if isinstance(error, NoCredentialsError) or _code(error) in _REFUSED:
            return StoreError(
                "S3 refuses access",
                seen=f"{_code(error) or 'no credentials'} for {where}",
                expected="credentials that may read and write this bucket",
                next_step="Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
            )
        if _code(error) == "NoSuchBucket":
            return StoreError(
                "no such bucket",
                seen=self._bucket,
                expected="a bucket that exists",
                next_step=f"Create it (aws s3 mb s3://{self._bucket}), or correct the address.",
            )
        if isinstance(error, EndpointConnectionError):
            return StoreError(
                "S3 cannot be reached",
                seen=str(self._client.meta.endpoint_url),
                expected="a server that answers",
                next_step="Check the network and AWS_ENDPOINT_URL, then run the command again.",
            )
        return StoreError(
            "S3 failed",
            seen=f"{_code(error) or type(error).__name__} for {where}",
            expected="a finished request",
            next_step="Run the same command again: what is committed is kept.",
        )


_REFUSED = frozenset(
    {
        "AccessDenied",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "403",
    }
)


def _code(error: BaseException) -> str:
    """S3's own word for what went wrong; an upload that failed hides it in its cause."""
    cause = error.__context__ if isinstance(error, S3UploadFailedError) else error
    return str(cause.response["Error"]["Code"]) if isinstance(cause, ClientError) else ""
