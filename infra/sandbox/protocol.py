"""The wire between client and daemon: length-prefixed JSON frames and the values they carry.

Reads and writes bytes only. The keys of a request and of a result are fixed: clients in other
languages and the command line print the same ones. Every request with a `call_id` gets exactly one
result with that `call_id`; `infra_error` and `queue_timeout` mean that the call was not judged and
may be sent again, never that the code was wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum

import orjson

PROTOCOL_VERSION = 1
MAX_CODE_BYTES = 1 << 20
MAX_STDIN_BYTES = 8 << 20
MAX_FRAME_BYTES = 64 << 20
HEAD_BYTES = 4
CONTROL_KINDS = ("health", "cancel", "stop")

_ADDRESS = re.compile(r"(\b(?:at|[Tt]hread) )0x[0-9a-fA-F]{6,16}\b|\b0x(?:7f|55)[0-9a-f]{10}\b")


class SandboxStatus(StrEnum):
    OK = "ok"
    ERROR = "error"
    """An exception, or an exit status other than 0."""
    TIMEOUT_CPU = "timeout_cpu"
    TIMEOUT_WALL = "timeout_wall"
    OOM = "oom"
    OUTPUT_LIMIT = "output_limit"
    SIGNAL = "signal"
    """Died of a signal of its own making, such as a segmentation fault."""
    QUEUE_TIMEOUT = "queue_timeout"
    INFRA_ERROR = "infra_error"


RETRYABLE = frozenset({SandboxStatus.QUEUE_TIMEOUT, SandboxStatus.INFRA_ERROR})


class ProtocolError(ValueError):
    """A frame or a request is not valid. `call_id` is set where the request named one."""

    def __init__(self, message: str, call_id: str | None = None) -> None:
        super().__init__(message)
        self.call_id = call_id


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """Run a snippet (`kind` "python" on the wire)."""

    call_id: str
    """Names the call; `random` and numpy are seeded from it."""
    code: str
    stdin: str = ""
    cpu_s: float
    wall_s: float
    mem_mb: int
    output_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyRequest:
    """Compare pairs of gold and answer (`kind` "verify" on the wire); limits are per pair."""

    call_id: str
    pairs: tuple[tuple[str, str], ...]
    cpu_s: float
    wall_s: float
    mem_mb: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlRequest:
    """Ask for health, cancel the call `call_id`, or stop the daemon."""

    kind: str
    call_id: str


Request = RunRequest | VerifyRequest | ControlRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxResult:
    """How one call ended: the result keys of the wire, in their order."""

    call_id: str
    status: SandboxStatus
    rc: int = 0
    """Exit status; minus the signal where one killed it."""
    stdout: str = ""
    stderr: str = ""
    value: str = ""
    """`repr` of a last expression that is not None; verdicts as JSON for a verify call."""
    truncated: bool = False
    cpu_s: float = 0.0
    wall_s: float = 0.0
    queue_s: float = 0.0
    max_rss: int = 0
    """Bytes, the warm interpreter's own included."""
    rung: str = ""
    node: str = ""


RESULT_KEYS = tuple(field.name for field in fields(SandboxResult))
_RUN_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "code": str,
    "stdin": str,
    "cpu_s": (int, float),
    "wall_s": (int, float),
    "mem_mb": int,
    "output_bytes": int,
}


_MOST = {"cpu_s": 86_400, "wall_s": 86_400, "mem_mb": 1 << 20, "output_bytes": 4 << 20}
"""Output: both streams, each byte escaped as six, make a frame; and the file of a stream, which is
longer (`OUTPUT_FACTOR`), is at most what a call may write (`FILE_BYTES`)."""


def encode(message: Mapping[str, object]) -> bytes:
    """One frame. Raises `ProtocolError` for text that is not Unicode (a lone surrogate)."""
    try:
        body = orjson.dumps(message)
    except TypeError as error:
        raise ProtocolError(f"cannot be sent: {error}", _call_id(message)) from None
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def encode_request(request: Request) -> bytes:
    kinds = {RunRequest: "python", VerifyRequest: "verify"}
    tree = asdict(request)
    if not isinstance(request, ControlRequest):
        tree["kind"] = kinds[type(request)]
    return encode(tree)


def encode_result(result: SandboxResult) -> bytes:
    return encode({key: getattr(result, key) for key in RESULT_KEYS})


async def read_message(reader: asyncio.StreamReader) -> dict[str, object] | None:
    """The next frame's object, or None at the end. Raises `ProtocolError` for a broken frame."""
    try:
        head = await reader.readexactly(HEAD_BYTES)
        num_bytes = int.from_bytes(head, "big")
        if num_bytes > MAX_FRAME_BYTES:
            raise ProtocolError(f"frame of {num_bytes} bytes: at most {MAX_FRAME_BYTES} expected")
        body = await reader.readexactly(num_bytes)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return decode(body)


def decode(body: bytes) -> dict[str, object]:
    """The object of one frame, without its length. Raises `ProtocolError`."""
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"frame is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"frame holds {type(message).__name__}: an object was expected")
    return message


def parse_result(message: Mapping[str, object]) -> SandboxResult:
    """The result in a reply. Unknown keys of a newer daemon are ignored."""
    known = {key: message[key] for key in RESULT_KEYS if key in message}
    known["status"] = SandboxStatus(str(known["status"]))
    return SandboxResult(**known)  # type: ignore[arg-type]


def parse_request(message: Mapping[str, object]) -> Request:
    """The request in a frame. Raises `ProtocolError` with what was seen and expected."""
    call_id, kind = _call_id(message), message.get("kind", "python")
    if call_id is None:
        seen = message.get("call_id")
        raise ProtocolError(f"call_id: expected a non-empty string, got {seen!r}")
    if kind in CONTROL_KINDS:
        return ControlRequest(kind=str(kind), call_id=call_id)
    if kind == "python":
        return _parse_run(message, call_id)
    if kind == "verify":
        return _parse_verify(message, call_id)
    expected = "python, verify, " + ", ".join(CONTROL_KINDS)
    raise ProtocolError(f"kind: expected one of {expected}, got {kind!r}", call_id)


def check_code(code: object, stdin: object) -> str | None:
    """What is wrong with a snippet's source or input before it is run, or None."""
    for name, text, limit in (("code", code, MAX_CODE_BYTES), ("stdin", stdin, MAX_STDIN_BYTES)):
        if not isinstance(text, str):
            return f"{name}: expected a string, got {type(text).__name__}"
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            return f"{name}: not valid Unicode: {error.reason} at character {error.start}"
        if num_bytes > limit:
            return f"{name}: {num_bytes} bytes, at most {limit} are accepted"
    return None


def seed_of(call_id: str) -> int:
    """63 bits that a call's random numbers start from."""
    digest = hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def to_text(data: bytes) -> str:
    """Output as text: invalid UTF-8 replaced, memory addresses blanked (they differ by chance)."""
    text = data.decode("utf-8", "replace")
    return _ADDRESS.sub(_blank, text) if "0x" in text else text


def _blank(match: re.Match[str]) -> str:
    return (match.group(1) or "") + "0x..."


def _call_id(message: Mapping[str, object]) -> str | None:
    call_id = message.get("call_id")
    return call_id if isinstance(call_id, str) and call_id else None


def _parse_run(message: Mapping[str, object], call_id: str) -> RunRequest:
    tree = {"stdin": "", **message}
    problem = check_code(tree.get("code"), tree["stdin"])
    if problem:
        raise ProtocolError(problem, call_id)
    values = {name: tree.get(name) for name in _RUN_TYPES}
    _check_types(values, call_id)
    return RunRequest(call_id=call_id, **values)  # type: ignore[arg-type]


def _check_types(values: Mapping[str, object], call_id: str) -> None:
    for name, value in values.items():
        expected = _RUN_TYPES[name]
        if not isinstance(value, expected) or isinstance(value, bool):
            raise ProtocolError(f"{name}: expected {_names(expected)}, got {value!r}", call_id)
        most = _MOST.get(name)
        if most is not None and not 0 < value <= most:  # type: ignore[operator]
            problem = f"{name}: expected more than 0 and at most {most}, got {value!r}"
            raise ProtocolError(problem, call_id)


def _names(kinds: type | tuple[type, ...]) -> str:
    return " or ".join(k.__name__ for k in (kinds if isinstance(kinds, tuple) else (kinds,)))


def _parse_verify(message: Mapping[str, object], call_id: str) -> VerifyRequest:
    pairs = message.get("pairs")
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise ProtocolError("pairs: expected a list of [gold, answer] strings", call_id)
    values = {name: message.get(name) for name in ("cpu_s", "wall_s", "mem_mb")}
    _check_types(values, call_id)
    texts = tuple((gold, answer) for gold, answer in pairs)
    return VerifyRequest(call_id=call_id, pairs=texts, **values)  # type: ignore[arg-type]


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) for t in pair)
