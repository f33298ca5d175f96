"""Which bucket an address names, and the boto3 client that asks it; how an object is read.

Reads what boto3 reads: `AWS_PROFILE`, `AWS_ENDPOINT_URL`, `~/.aws/config`, … Deliberately writes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from infra.object_store import StoreAddressError
from infra.s3_errors import BROKEN_READS, explain_opening

NUM_TRIES = 10
"""Of a request, with pauses that grow to 20 s: about a minute of a server that is away."""
NUM_PROBE_TRIES = 4
"""At a start somebody waits for the answer."""
CONNECT_SECONDS = 10
BUCKET = re.compile(r"[A-Za-z0-9._-]{3,63}")


def new_client(num_tries: int) -> Any:
    """A client of its own, with the credentials that are to be found now."""
    config = Config(
        retries={"mode": "standard", "max_attempts": num_tries}, connect_timeout=CONNECT_SECONDS
    )
    try:
        return boto3.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise explain_opening(error) from None


def read_object(client: Any, at: Mapping[str, str]) -> tuple[Mapping[str, Any], bytes]:
    """The answer and its whole body: boto3 repeats requests, but not the reading of an answer."""
    for tries_left in reversed(range(NUM_TRIES)):
        reply: Mapping[str, Any] = client.get_object(**at)
        try:
            return reply, reply["Body"].read()
        except BROKEN_READS:
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def bucket_and_prefix(uri: str) -> tuple[str, str]:
    seen = "s3://…"  # what does not parse may hold a password anywhere
    with suppress(ValueError):
        parts = urlsplit(uri)
        if BUCKET.fullmatch(parts.netloc) and not parts.query and not parts.fragment:
            return parts.netloc, parts.path
        seen = f"s3://{parts.hostname or ''}{parts.path}"
    raise StoreAddressError(
        "not an S3 address",
        seen=seen,
        expected="s3://bucket or s3://bucket/prefix, without credentials",
        next_step="Give credentials through AWS_PROFILE or AWS_ACCESS_KEY_ID.",
    )
