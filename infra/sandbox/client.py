"""The sandbox as the rest of the house sees it: run code, grade answers, whatever dies.

Reads and writes the daemon's socket; starts the daemon where none answers. A lost daemon is started
again and every unanswered call sent again under its `call_id`: a call has no side effects, so it may
run twice, and its caller gets one result. Belongs to the event loop that opened it. Never judges an
answer or a snippet itself, and loads neither torch nor prefect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from infra.sandbox import protocol, resident, verifier
from infra.sandbox.protocol import SandboxResult, SandboxStatus
from rstar2.types import ToolCall, ToolResult, ToolStatus, Verdict

if TYPE_CHECKING:
    from rstar2.config import SandboxConfig

MAX_SENDS = 3
"""How often a call that was not judged is sent before it is `unavailable`."""
MAX_RECONNECTS = 5
"""How often a daemon is looked for or started before the waiting calls are given up."""
MAX_LOSSES = 8
"""How many daemons a call may be lost with: one that kills them all is not sent for ever."""
TOOL_NAME = "python"

_TOOL_STATUS = {
    SandboxStatus.OK: ToolStatus.OK,
    SandboxStatus.ERROR: ToolStatus.ERROR,
    SandboxStatus.SIGNAL: ToolStatus.ERROR,
    SandboxStatus.OOM: ToolStatus.ERROR,
    SandboxStatus.OUTPUT_LIMIT: ToolStatus.ERROR,
    SandboxStatus.TIMEOUT_CPU: ToolStatus.TIMEOUT,
    SandboxStatus.TIMEOUT_WALL: ToolStatus.TIMEOUT,
    SandboxStatus.QUEUE_TIMEOUT: ToolStatus.UNAVAILABLE,
    SandboxStatus.INFRA_ERROR: ToolStatus.UNAVAILABLE,
}


@dataclass(slots=True, eq=False)
class _Pending:
    """An unanswered request."""

    frame: bytes
    reply: asyncio.Future[dict[str, object]]
    num_losses: int = 0


@contextlib.asynccontextmanager
async def open_sandbox(
    config: SandboxConfig, state_dir: Path, *, replace: bool = True
) -> AsyncIterator[Sandbox]:
    """A sandbox whose daemon lives in `state_dir`: found, or started and left for the next user.

    A daemon of other code or settings is replaced; with `replace=False` it is used as it is.
    Raises `SandboxError` where no daemon can be had, or none as isolated as `min_rung` asks.
    """
    if config.address != "auto":
        folder = Path(config.address.removeprefix("unix://"))
        if not config.address.startswith("unix:///") or folder.name != resident.FOLDER:
            raise resident.SandboxError(
                f"sandbox.address = {config.address!r}: expected auto, or unix:// and the path of "
                f"a daemon's folder, which ends in /{resident.FOLDER}"
            )
        state_dir = folder.parent
    health = await asyncio.to_thread(resident.ensure_daemon, state_dir, config, replace=replace)
    sandbox = Sandbox(config, state_dir, rung=str(health["rung"]))
    await sandbox.connect()
    try:
        yield sandbox
    finally:
        await sandbox.close()


class Sandbox:
    """An open connection. Its methods may be called concurrently, tens of thousands at once."""

    def __init__(self, config: SandboxConfig, state_dir: Path, *, rung: str) -> None:
        self.rung = rung
        """The isolation in force: A, B, C or D."""
        self._config = config
        self._state_dir = state_dir
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        self._pending: dict[str, _Pending] = {}
        self._counter = count(1)

    async def execute(self, call: ToolCall, /, *, call_id: str) -> ToolResult:
        """Runs one tool call: `code`, and `input` as standard input. Never raises for the code."""
        started = time.monotonic()
        if call.name != TOOL_NAME:
            detail = f"unknown tool {call.name!r}: the tool is {TOOL_NAME!r}"
            return ToolResult(status=ToolStatus.UNKNOWN_TOOL, detail=detail)
        code, stdin = call.arguments.get("code"), call.arguments.get("input")
        problem = protocol.check_code(code, "" if stdin is None else stdin)
        if problem or not isinstance(code, str):
            return ToolResult(status=ToolStatus.MALFORMED, detail=str(problem))
        result = await self.run(
            code, stdin=stdin if isinstance(stdin, str) else "", call_id=call_id
        )
        return _to_tool_result(result, self._config, time.monotonic() - started)

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        call_id: str,
        cpu_seconds: float | None = None,
        wall_seconds: float | None = None,
        memory_mib: int | None = None,
    ) -> SandboxResult:
        """Runs `code` and gives its one result; limits default to the configuration's.

        Source that cannot be run at all (no string, too long) is an `error` that says so.
        """
        problem = protocol.check_code(code, stdin)
        if problem:
            return SandboxResult(
                call_id=call_id, status=SandboxStatus.ERROR, rc=1, stderr=problem, rung=self.rung
            )
        request = protocol.RunRequest(
            call_id=call_id,
            code=code,
            stdin=stdin,
            cpu_s=cpu_seconds or self._config.cpu_seconds,
            wall_s=wall_seconds or self._config.wall_seconds,
            mem_mb=memory_mib or self._config.memory_mib,
            output_bytes=self._config.output_bytes,
        )
        return await self._judge(request)

    async def grade(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """One verdict per (gold, answer): equal text at once, mathematics in the verify tier.

        A pair that overruns `verify_seconds`, or kills its checker, is `undecided`, never wrong.
        """
        return await verifier.grade_pairs(pairs, self._check_batch)

    async def health(self) -> dict[str, object]:
        """The daemon's own account: rung, slots, queue, interpreters, counts, CPU seconds."""
        request = protocol.ControlRequest(kind="health", call_id=self._new_id("health"))
        reply = await self._send(request)
        health = reply.get("health")
        if not isinstance(health, dict):
            raise resident.SandboxError(str(reply.get("stderr")))
        return health

    async def connect(self) -> None:
        """Connects to the daemon's socket and starts to listen."""
        try:
            reader = await self._open()
        except OSError:  # replaced by another client this very moment
            found = await self._reconnect()
            if found is None:
                raise resident.SandboxError("no sandbox daemon stays up; see its log") from None
            reader = found
        self._listening = asyncio.create_task(self._listen(reader))

    async def close(self) -> None:
        """Disconnects: the daemon ends what is still running for this client."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        for pending in self._pending.values():
            pending.reply.cancel()

    async def _check_batch(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[list[str]], str]:
        seconds = self._config.verify_seconds
        request = protocol.VerifyRequest(
            call_id=self._new_id("verify"),
            pairs=tuple(pairs),
            cpu_s=seconds,
            wall_s=seconds * verifier.WALL_FACTOR,
            mem_mb=self._config.memory_mib,
        )
        result = await self._judge(request)
        return json.loads(result.value or "[]"), result.status

    def _new_id(self, kind: str) -> str:
        return f"{kind}/{os.getpid()}/{next(self._counter)}"

    async def _judge(self, request: protocol.RunRequest | protocol.VerifyRequest) -> SandboxResult:
        """Sends until the call was judged, or `MAX_SENDS` is reached."""
        for attempt in range(1, MAX_SENDS):
            result = protocol.parse_result(await self._send(request))
            if result.status not in protocol.RETRYABLE:
                return result
            await asyncio.sleep(0.2 * attempt)
        return protocol.parse_result(await self._send(request))

    async def _send(self, request: protocol.Request) -> dict[str, object]:
        """The reply to one request, over as many daemons as it takes."""
        call_id = request.call_id
        if call_id in self._pending:
            raise ValueError(f"call {call_id!r} is already running: call ids name one call each")
        frame = protocol.encode_request(request)
        pending = _Pending(frame, asyncio.get_running_loop().create_future())
        self._pending[call_id] = pending
        try:
            if self._writer is not None:
                self._writer.write(frame)
            elif self._listening is None or self._listening.done():  # it was given up before
                self._listening = asyncio.create_task(self._listen(None))
            return await pending.reply
        except asyncio.CancelledError:
            self._cancel(call_id)
            raise
        finally:
            del self._pending[call_id]

    def _cancel(self, call_id: str) -> None:
        if self._writer is not None and not self._writer.is_closing():
            cancel = protocol.ControlRequest(kind="cancel", call_id=call_id)
            self._writer.write(protocol.encode_request(cancel))

    async def _open(self) -> asyncio.StreamReader:
        with resident.open_socket(resident.sandbox_folder(self._state_dir)) as path:
            reader, self._writer = await asyncio.open_unix_connection(path, limit=1 << 20)
        return reader

    async def _listen(self, reader: asyncio.StreamReader | None) -> None:
        """Hands replies out; when the daemon is lost, finds or starts one and sends again."""
        while True:
            while reader is not None and (message := await protocol.read_message(reader)):
                self._hand_out(message)
            self._writer = None
            reader = await self._reconnect()
            if reader is None:
                return

    def _hand_out(self, message: dict[str, object]) -> None:
        pending = self._pending.get(str(message.get("call_id")))
        if pending is not None and not pending.reply.done():
            pending.reply.set_result(message)

    async def _reconnect(self) -> asyncio.StreamReader | None:
        """A connection on which everything unanswered has been sent again, or None."""
        problem = ""
        for attempt in range(MAX_RECONNECTS):
            await asyncio.sleep(0.1 * attempt)
            try:
                await asyncio.to_thread(
                    resident.ensure_daemon, self._state_dir, self._config, replace=False
                )
                reader = await self._open()
            except (OSError, resident.SandboxError) as error:
                problem = str(error)
                continue
            self._send_again()
            return reader
        for call_id in self._pending:
            self._give_up(call_id, problem)
        return None

    def _send_again(self) -> None:
        assert self._writer is not None
        for call_id, pending in self._pending.items():
            pending.num_losses += 1
            if pending.num_losses > MAX_LOSSES:
                self._give_up(call_id, f"{MAX_LOSSES} daemons died while it ran")
            else:
                self._writer.write(pending.frame)

    def _give_up(self, call_id: str, problem: str) -> None:
        """Tells a caller that no daemon answered; a later call looks for one anew."""
        stderr = f"the sandbox is gone: {problem}"
        status = SandboxStatus.INFRA_ERROR
        self._hand_out({"call_id": call_id, "status": status, "stderr": stderr, "rc": -1})


def _to_tool_result(result: SandboxResult, config: SandboxConfig, seconds: float) -> ToolResult:
    """The policy's view. What a stopped program had printed is left out: how far it came depends
    on the machine, and the same call must always read the same."""
    status = _TOOL_STATUS[result.status]
    is_timeout = status is ToolStatus.TIMEOUT
    is_stopped = is_timeout or result.status in (SandboxStatus.OUTPUT_LIMIT, SandboxStatus.OOM)
    return ToolResult(
        status=status,
        stdout="" if is_timeout or result.status is SandboxStatus.OOM else result.stdout,
        stderr="" if is_stopped else result.stderr,
        value="" if is_stopped else result.value,
        detail=_detail(result, config),
        seconds=seconds,
        is_truncated=result.truncated,
    )


def _detail(result: SandboxResult, config: SandboxConfig) -> str:
    """One fixed sentence per status: for both timeouts, since a busy machine may swap them."""
    stopped_late = f"Stopped: it did not end within {config.cpu_seconds:g} s of computing."
    sentences = {
        SandboxStatus.TIMEOUT_CPU: stopped_late,
        SandboxStatus.TIMEOUT_WALL: stopped_late,
        SandboxStatus.OOM: f"Stopped: it used more than {config.memory_mib} MiB of memory.",
        SandboxStatus.OUTPUT_LIMIT: "Stopped: it printed too much.",
        SandboxStatus.SIGNAL: f"The interpreter crashed (signal {-result.rc}).",
        SandboxStatus.INFRA_ERROR: f"The sandbox could not run it: {result.stderr}",
        SandboxStatus.QUEUE_TIMEOUT: "The sandbox could not run it: it waited too long.",
    }
    return sentences.get(result.status, "")
