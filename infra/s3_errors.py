"""What boto3 raises, in a user's words. Shows no key id, no secret and no password of an address.

Reads exceptions only. Deliberately decides nothing: what is tried again is up to boto3 and the store.
"""

from __future__ import annotations

from boto3.exceptions import RetriesExceededError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)

from infra.object_store import StoreAddressError, StoreError

S3_ERRORS = (BotoCoreError, ClientError, RetriesExceededError)
"""All that boto3 raises for a request."""
GONE = frozenset({"NoSuchKey", "404"})
"""Codes for an object that is not there; a HEAD has no other word for a bucket that is not."""
NO_UPLOAD = "NoSuchUpload"
BROKEN_READS = (IncompleteReadError, HTTPClientError)
"""An answer's body that ended early."""

_CREDENTIALS = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
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
_LACKING = frozenset({"NotImplemented", "MethodNotAllowed", "501", "405"})


def code(error: BaseException) -> str:
    """S3's own word for what went wrong; empty where it said none."""
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def without_password(address: str) -> str:
    """The address as it may be shown, also where it is none."""
    scheme, separator, rest = address.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2].partition("?")[0]


def explain(error: Exception, *, where: str, bucket: str, endpoint: str) -> StoreError:
    """The user's view of a request that failed for good. `where` names the object."""
    seen = code(error) or type(error).__name__
    if isinstance(error, _CREDENTIALS) or seen in _REFUSED:
        return StoreError(
            "S3 refuses access",
            seen=f"{'no credentials' if isinstance(error, NoCredentialsError) else seen} for {where}",
            expected="credentials that may list, read, write and delete in this bucket",
            next_step="Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    if seen in ("NoSuchBucket", "404"):
        return StoreError(
            "no such bucket",
            seen=bucket,
            expected="a bucket that exists",
            next_step=f"Create it (aws s3 mb s3://{bucket}), or correct the address.",
        )
    if isinstance(error, ConnectionError | HTTPClientError):
        return StoreError(
            "S3 cannot be reached",
            seen=f"{without_password(endpoint)} ({seen})",
            expected="a server that answers",
            next_step="Check the network and AWS_ENDPOINT_URL, then run the command again.",
        )
    if seen in _LACKING:
        return StoreError(
            "this S3 server lacks what a run needs",
            seen=f"{seen} for {where}",
            expected="conditional writes (If-None-Match, If-Match) and multipart uploads",
            next_step="Use a server that has them, or a folder.",
        )
    return StoreError(
        "S3 failed",
        seen=f"{seen} for {where}",
        expected="a finished request",
        next_step="Run the same command again: what is committed is kept.",
    )


def explain_opening(error: Exception) -> StoreError:
    """Why no client can be made of what the environment and boto3's files say."""
    if isinstance(error, ProfileNotFound):
        return StoreAddressError(
            "no such AWS profile",
            seen=str(error),
            expected="a profile of ~/.aws/config or ~/.aws/credentials",
            next_step="Correct AWS_PROFILE.",
        )
    if isinstance(error, ValueError):
        return StoreAddressError(
            "the S3 endpoint is no address",
            seen=without_password(str(error).removeprefix("Invalid endpoint: ")),
            expected="an address like http://127.0.0.1:9000",
            next_step="Correct AWS_ENDPOINT_URL, or unset it for Amazon's own.",
        )
    return StoreAddressError(
        "S3 cannot be used",
        seen=type(error).__name__,
        expected="a configuration that boto3 reads",
        next_step="Correct ~/.aws/config, ~/.aws/credentials or the AWS_… variables.",
    )
