"""The daemon of a state folder: found, started, asked, stopped.

Reads and writes the folder (socket, locks, log) and the daemon's socket; starts one detached process
that outlives its starter. One daemon per folder: starting is done under a lock. Loads no asyncio
machinery of the node itself, so that `status` and `down` answer at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from infra.background import BusyError, one_at_a_time
from infra.sandbox import protocol
from infra.sandbox.isolation import interpreter_environment, project_folder

if TYPE_CHECKING:
    from rstar2.config import SandboxConfig

FOLDER = "sandbox"
SOCKET_NAME = "daemon.sock"
OWNER_LOCK_NAME = "daemon.lock"
"""Held by the daemon for life."""
START_LOCK_NAME = "start.lock"
"""Held by whoever starts or stops one."""
LOG_NAME = "daemon.log"
START_SECONDS = 120.0
STOP_SECONDS = 10.0
_ASK_SECONDS = 10.0


class SandboxError(RuntimeError):
    """The sandbox cannot be used. The message says why and what to do."""


def sandbox_folder(state_dir: Path) -> Path:
    """Where the daemon of `state_dir` keeps its socket, locks and log."""
    return (state_dir / FOLDER).resolve()


def daemon_status(state_dir: Path) -> dict[str, object] | None:
    """Health of the daemon that serves `state_dir`, or None where none answers."""
    return _ask(sandbox_folder(state_dir), "health")


def has_daemon(state_dir: Path) -> bool:
    """Whether a daemon of `state_dir` is there, answering or not."""
    folder = sandbox_folder(state_dir)
    return folder.is_dir() and _is_owned(folder)


def stop_daemon(state_dir: Path) -> bool:
    """Stops the daemon of `state_dir` and every call in it; whether there was one."""
    folder = sandbox_folder(state_dir)
    if not folder.is_dir():
        return False
    with _lock(folder):
        return _stop(folder, answers=True)


def reach_daemon(state_dir: Path, config: SandboxConfig, *, replace: bool) -> Mapping[str, object]:
    """Health of the daemon to connect to: our own, made where there is none, or the named one."""
    if config.address == "auto":
        return ensure_daemon(state_dir, config, replace=replace)
    return find_daemon(state_dir, config)


def ensure_daemon(state_dir: Path, config: SandboxConfig, *, replace: bool) -> Mapping[str, object]:
    """Health of a daemon that serves `state_dir`; starts one where none answers.

    With `replace`, a daemon of other code or settings is stopped first; without (a client that
    lost its daemon) any that speaks this protocol will do, so that two clients with different
    settings do not replace each other's for ever. Raises `SandboxError`.
    """
    folder = sandbox_folder(state_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _lock(folder):
            health = _ask(folder, "health")
            if health is not None and (not replace or health["version"] == version_of(config)):
                return _check(health, config)
            _stop(folder, answers=health is not None)
            return _check(_start(folder, config), config)
    except OSError as error:
        raise SandboxError(
            f"the sandbox daemon cannot live in {folder}: {error}; expected a folder that can be "
            "written: set RSTAR2_STATE_FOLDER"
        ) from error


def find_daemon(state_dir: Path, config: SandboxConfig) -> Mapping[str, object]:
    """Health of a daemon that serves `state_dir` already. Starts and ends none.

    Raises `SandboxError`.
    """
    folder = sandbox_folder(state_dir)
    health = _ask(folder, "health")
    if health is None:
        is_there = has_daemon(state_dir)
        seen = "the sandbox daemon does not answer" if is_there else "no sandbox daemon runs"
        raise SandboxError(f"{seen} at unix://{folder}; {remedy(state_dir, config)}")
    return _check(health, config)


def folder_of_address(address: str) -> Path:
    """The daemon's folder that `sandbox.address` names. Raises `SandboxError`."""
    folder = Path(address.removeprefix("unix://"))
    if not address.startswith("unix:///") or folder.name != FOLDER:
        raise SandboxError(
            f"sandbox.address = {address!r}: expected auto, or unix:// and the path of a daemon's "
            f"folder, which ends in /{FOLDER}"
        )
    return folder


def remedy(state_dir: Path, config: SandboxConfig) -> str:
    """What a person does about a daemon of `state_dir` that cannot be used."""
    if config.address != "auto":
        command = f"rstar2 sandbox serve --state-folder {state_dir}"
        return f"start it there ({command}), or set sandbox.address = auto"
    log = sandbox_folder(state_dir) / LOG_NAME
    return f"see {log}, end what hangs with `rstar2 down`, then start the same run again"


def version_of(config: SandboxConfig) -> str:
    """Identity of the node's code and of the settings that its daemon is started with."""
    digest = hashlib.sha256()
    for folder in ("infra/sandbox", "rstar2"):  # the verify tier holds the grader
        for file in sorted((project_folder() / folder).glob("*.py")):
            digest.update(file.read_bytes())
    settings = (sys.version, sys.prefix, config.num_slots, config.min_rung)
    digest.update(repr(settings).encode())
    return digest.hexdigest()[:16]


@contextmanager
def open_socket(folder: Path) -> Iterator[str]:
    """A path by which the folder's socket can be connected to, short enough for the kernel."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    work = f"starting the sandbox daemon of {folder}"
    try:
        with one_at_a_time(
            folder / START_LOCK_NAME, work=work, seconds=START_SECONDS + STOP_SECONDS
        ):
            yield
    except BusyError as error:
        raise SandboxError(str(error)) from None


def _check(health: Mapping[str, object], config: SandboxConfig) -> Mapping[str, object]:
    if health["protocol"] != protocol.PROTOCOL_VERSION:
        raise SandboxError(
            f"the sandbox daemon speaks protocol {health['protocol']}, this program "
            f"{protocol.PROTOCOL_VERSION}: stop it with `rstar2 down` and start again"
        )
    if str(health["rung"]) > config.min_rung:
        raise SandboxError(
            f"the sandbox daemon isolates on rung {health['rung']}, weaker than "
            f"sandbox.min_rung = {config.min_rung!r}: stop it with `rstar2 down` and start again"
        )
    return health


def _start(folder: Path, config: SandboxConfig) -> dict[str, object]:
    command = [sys.executable, "-m", "infra.sandbox.daemon", "--state-dir", str(folder)]
    command += ["--num-slots", str(config.num_slots), "--min-rung", config.min_rung]
    command += ["--version", version_of(config)]
    environment = interpreter_environment() | {"OPENBLAS_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(project_folder())}
    with open(folder / LOG_NAME, "ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            env=environment, cwd="/", start_new_session=True,
        )  # fmt: skip
    line = _first_line(process)
    if "ready" in line:
        health: dict[str, object] = line["ready"]
        return health
    raise SandboxError(f"{line.get('error', 'the sandbox daemon did not start')}\nlog: {log.name}")


def _first_line(process: subprocess.Popen[bytes]) -> dict:
    """What the daemon says when it is ready or has failed; after that nobody waits for it."""
    assert process.stdout is not None
    with process.stdout as stream:
        is_heard, _, _ = select.select([stream], [], [], START_SECONDS)
        if not is_heard:
            process.kill()
        text = stream.readline()
    if not text:
        return {"error": f"the sandbox daemon ended before it was ready ({process.wait()})"}
    process.returncode = 0
    return json.loads(text)  # type: ignore[no-any-return]


def _stop(folder: Path, *, answers: bool) -> bool:
    """Asks the daemon to end, kills it where it does not. `answers`: it was not found hung."""
    pid = _peer(folder)
    if pid is None:
        return False
    is_ending = answers and _ask(folder, "stop") is not None
    deadline = time.monotonic() + (STOP_SECONDS if is_ending else 0.0)
    while _is_owned(folder):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline += STOP_SECONDS
        time.sleep(0.02)
    return True


def _is_owned(folder: Path) -> bool:
    """Whether a daemon holds the folder's lock: it does so for life."""
    fd = os.open(folder / OWNER_LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _connect(folder: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ASK_SECONDS)
    try:
        with open_socket(folder) as path:
            connection.connect(path)
    except OSError:  # no folder, no socket, or nobody listens
        connection.close()
        return None
    return connection


def _peer(folder: Path) -> int | None:
    """Process id of the daemon, told by the kernel."""
    connection = _connect(folder)
    if connection is None:
        return None
    with connection:
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", data)[0])


def _ask(folder: Path, kind: str) -> dict[str, object] | None:
    connection = _connect(folder)
    if connection is None:
        return None
    request = protocol.ControlRequest(kind=kind, call_id=kind)
    try:
        with connection, connection.makefile("rb") as stream:
            connection.sendall(protocol.encode_request(request))
            num_bytes = int.from_bytes(stream.read(protocol.HEAD_BYTES), "big")
            reply = protocol.decode(stream.read(num_bytes))
    except (OSError, protocol.ProtocolError):  # it died, or hangs
        return None
    health = reply.get("health")
    return health if isinstance(health, dict) else None
