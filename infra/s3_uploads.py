"""Sends files to S3: small ones in one request, large ones in parts that outlive their sender.

Reads local files, writes objects, and beside them one small record for each upload in parts that has
begun (`.tmp-upload-…` under the store's prefix: which upload, of which content). Whoever sends the same
content to the same key again, from any machine, goes on with the parts that arrived. Deliberately
explains no errors: the store that calls does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from infra.object_store import FileEntry
from infra.s3_client import read_object
from infra.s3_errors import GONE, NO_UPLOAD, code
from infra.staging import TEMPORARY

HASH = "sha256"
"""Metadata of each object: its content's hash, to check reads and to skip equal uploads."""
PART_BYTES = 64 << 20
"""A file of more is sent in parts."""
MAX_PARTS = 10_000
"""S3's own limit: above 640 GB parts are larger."""
NUM_AT_ONCE = 4
"""Parts in memory at a time."""
ABANDONED = timedelta(days=7)
"""Nobody goes on with an upload that is older."""


@dataclass(frozen=True, slots=True)
class _Record:
    key: str
    sha256: str
    upload_id: str


class Uploads:
    """Uploads into one bucket, below `prefix` (empty, or with a slash at its end)."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._records = f"{prefix}{TEMPORARY}upload-"
        self._is_swept = False

    def send(self, path: Path, key: str, entry: FileEntry) -> None:
        """The file's content at `key`, whole or not at all."""
        if entry.num_bytes <= PART_BYTES:
            with path.open("rb") as body:
                self._client.put_object(**self._at(key), Body=body, Metadata={HASH: entry.sha256})
            return
        self._sweep_abandoned()
        record, there = self._begin(key, entry)
        etags = self._send_parts(path, record, entry.num_bytes, there)
        self._complete(record, etags)
        self.drop(key)  # what lost answers and other contents left at this key
        self._client.delete_object(**self._at(self._record_key(key)))

    def unfinished(self, key: str = "") -> list[str]:
        """Keys of uploads in parts that are not complete, at `key` or below it; empty for all."""
        return sorted({upload["Key"] for upload in self._listed(key)})

    def drop(self, key: str) -> None:
        """Gives up what is unfinished at `key` or below it, and frees its parts."""
        for upload in self._listed(key):
            self._abort(_Record(upload["Key"], "", upload["UploadId"]))
            self._client.delete_object(**self._at(self._record_key(upload["Key"])))

    def _begin(self, key: str, entry: FileEntry) -> tuple[_Record, Mapping[int, str]]:
        """The upload to go on with and its parts' hashes, or a new one without parts."""
        known = self._record(self._record_key(key))
        if known is not None and known.sha256 == entry.sha256:
            there = self._parts(known)
            if there is not None:
                return known, there
        reply = self._client.create_multipart_upload(**self._at(key), Metadata={HASH: entry.sha256})
        record = _Record(key, entry.sha256, str(reply["UploadId"]))
        body = json.dumps(asdict(record)).encode()
        self._client.put_object(**self._at(self._record_key(key)), Body=body)
        return record, {}

    def _record(self, record_key: str) -> _Record | None:
        try:
            _, body = read_object(self._client, self._at(record_key))
        except ClientError as error:
            if code(error) in GONE:
                return None
            raise
        return _Record(**json.loads(body))

    def _parts(self, record: _Record) -> dict[int, str] | None:
        """ETag by number of what has arrived; None where the upload is complete or given up."""
        pages = self._client.get_paginator("list_parts").paginate(**self._of(record))
        try:
            return {p["PartNumber"]: p["ETag"] for page in pages for p in page.get("Parts", [])}
        except ClientError as error:
            if code(error) == NO_UPLOAD:
                return None
            raise

    def _send_parts(
        self, path: Path, record: _Record, num_bytes: int, there: Mapping[int, str]
    ) -> list[str]:
        """ETags of all parts in order; a part that is there already is read but not sent.

        An ETag is the MD5 of its part, but not on buckets encrypted with keys of KMS: there every
        part is sent again.
        """
        size = max(PART_BYTES, -(-num_bytes // MAX_PARTS))

        def send(number: int) -> str:
            with path.open("rb") as file:
                file.seek((number - 1) * size)
                data = file.read(size)
            etag = there.get(number)
            if etag and etag.strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest():
                return etag
            reply = self._client.upload_part(**self._of(record), PartNumber=number, Body=data)
            return str(reply["ETag"])

        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            return list(pool.map(send, range(1, -(-num_bytes // size) + 1)))

    def _complete(self, record: _Record, etags: list[str]) -> None:
        parts = [{"PartNumber": n, "ETag": etag} for n, etag in enumerate(etags, start=1)]
        try:
            self._client.complete_multipart_upload(
                **self._of(record), MultipartUpload={"Parts": parts}
            )
        except ClientError as error:
            # boto3 asks again when the answer was lost: then the upload is gone and the object there.
            if code(error) != NO_UPLOAD or self._hash_at(record.key) != record.sha256:
                raise

    def _hash_at(self, key: str) -> str:
        with suppress(ClientError):
            return str(self._client.head_object(**self._at(key))["Metadata"].get(HASH, ""))
        return ""

    def _sweep_abandoned(self) -> None:
        """Once in a process, as a folder's first write removes what killed writers left.

        By the age of the records: some servers do not say when an upload began.
        """
        if self._is_swept:
            return
        self._is_swept = True
        before = datetime.now(UTC) - ABANDONED
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._records
        )
        for found in (one for page in pages for one in page.get("Contents", [])):
            if found["LastModified"] < before and (record := self._record(found["Key"])):
                self._abort(record)
                self._client.delete_object(**self._at(found["Key"]))

    def _listed(self, key: str) -> Iterator[Mapping[str, Any]]:
        start = key or self._prefix
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=start
        )
        for page in pages:
            for upload in page.get("Uploads", []):
                # A server may not heed the prefix; and `a` is no folder of `ab`.
                if upload["Key"] == key or upload["Key"].startswith(f"{key}/" if key else start):
                    yield upload

    def _abort(self, record: _Record) -> None:
        try:
            self._client.abort_multipart_upload(**self._of(record))
        except ClientError as error:
            if code(error) != NO_UPLOAD:
                raise

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": key}

    def _of(self, record: _Record) -> dict[str, str]:
        return {**self._at(record.key), "UploadId": record.upload_id}

    def _record_key(self, key: str) -> str:
        return f"{self._records}{hashlib.sha256(key.encode()).hexdigest()[:32]}"
