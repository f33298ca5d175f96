"""The sandbox as the rest of the house sees it: run code, grade answers, whatever dies.

Reads and writes the daemon's socket; starts the daemon where none answers. A lost daemon (dead, or
silent) is started again and every unanswered call sent again under its `call_id`: it has no side
effects, may run twice, and gives its caller one result. A daemon that stays away is given up; from
then on calls are `unavailable` at once, until `check` finds one. Belongs to the event loop that
opened it. Judges no answer and no snippet itself; loads neither torch nor prefect.
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

from infra.health import CHECK_SECONDS, ResourceHealth, not_ready
from infra.sandbox import protocol, resident, verifier
from infra.sandbox.protocol import SandboxResult, SandboxStatus
from infra.sandbox.tool_results import to_tool_result
from rstar2.types import ToolCall, ToolResult, ToolStatus, Verdict

if TYPE_CHECKING:
    from rstar2.config import SandboxConfig

MAX_SENDS = 3
"""How often a call that was not judged is sent before it is `unavailable`."""
LOST_SECONDS = 30.0
"""How long a daemon is looked for or started before the waiting calls are given up."""
MAX_PAUSE_SECONDS = 3.0
"""Between two such attempts; the first pauses are shorter."""
ASK_AFTER_SECONDS = 3
"""A daemon that has said nothing for so long, while calls wait, is asked for a sign of life."""
SILENT_SECONDS = 10
"""One that then still says nothing is given up as hung. It answers from its one loop, at once."""
MAX_LOSSES = 8
"""How many daemons a call may be lost with: one that kills them all is not sent for ever."""
NAME = "sandbox"
TOOL_NAME = "python"
CANARY_CODE, CANARY_OUTPUT = "print(1 + 1)", "2\n"


@dataclass(slots=True, eq=False)
class _Pending:
    """An unanswered request."""

    request: protocol.Request
    frame: bytes
    reply: asyncio.Future[dict[str, object]]
    is_sent: bool = False
    num_losses: int = 0


@contextlib.asynccontextmanager
async def open_sandbox(
    config: SandboxConfig, state_dir: Path, *, replace: bool = True
) -> AsyncIterator[Sandbox]:
    """A sandbox whose daemon lives in `state_dir`: found, or started and left for the next user.

    A daemon of other code or settings is replaced; with `replace=False` it is used as it is. One
    that `config.address` names is somebody else's: used as it is, never started or ended.
    Raises `SandboxError` where no daemon can be had, or none as isolated as `min_rung` asks.
    """
    if config.address != "auto":
        state_dir = resident.folder_of_address(config.address).parent
    health = await asyncio.to_thread(resident.reach_daemon, state_dir, config, replace=replace)
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
        self._watching: asyncio.Task[None] | None = None
        self._silence = 0
        """Seconds for which calls have waited and the daemon has said nothing."""
        self.num_restarts = 0
        """How often a lost daemon was found or started again."""
        self.num_calls_redone = 0
        """Calls that were run again, since daemon or interpreter was lost with them."""
        self._problem = ""
        """Of the last attempt to reach a daemon; empty where it was reached."""
        self.gone = ""
        """Why no daemon can be had; empty while there is one, or it is being looked for."""
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
        return to_tool_result(result, self._config, time.monotonic() - started)

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

    async def check(self) -> ResourceHealth:
        """Runs a call for real; where the daemon had been given up, looks for one once more."""
        self.gone = ""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                result = await self.run(CANARY_CODE, call_id=self._new_id("canary"))
                num_slots = int(str((await self.health())["num_slots"]))
        except TimeoutError:
            seen = f"a call had no answer within {CHECK_SECONDS:g} s {self._problem}".rstrip()
        except resident.SandboxError as error:
            seen = str(error)
        else:
            seen = (
                f"rung {self.rung}, {num_slots} calls at once, a trial call ended {result.status}"
            )
            if result.stdout == CANARY_OUTPUT:
                return ResourceHealth(name=NAME, is_ready=True, capacity=num_slots, seen=seen)
        return not_ready(NAME, seen, resident.remedy(self._state_dir, self._config))

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
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Disconnects: the daemon ends what is still running for this client."""
        for task in (self._listening, self._watching):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
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
        """Sends until the call was judged, `MAX_SENDS` is reached, or there is nobody to send to."""
        for attempt in range(1, MAX_SENDS):
            result = protocol.parse_result(await self._send(request))
            if result.status not in protocol.RETRYABLE or self.gone:
                return result
            self.num_calls_redone += 1
            await asyncio.sleep(0.2 * attempt)
        return protocol.parse_result(await self._send(request))

    async def _send(self, request: protocol.Request) -> dict[str, object]:
        """The reply to one request, over as many daemons as it takes."""
        call_id = request.call_id
        if call_id in self._pending:
            raise ValueError(f"call {call_id!r} is already running: call ids name one call each")
        frame = protocol.encode_request(request)
        pending = _Pending(request, frame, asyncio.get_running_loop().create_future())
        self._pending[call_id] = pending
        try:
            if self._writer is not None:
                pending.is_sent = not self._writer.is_closing()
                if pending.is_sent:  # else with the next connection
                    self._writer.write(frame)
            elif self.gone:
                self._give_up(call_id, self.gone)
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
            if reader is not None:
                await self._receive(reader)
            self._writer = None
            reader = await self._reconnect()
            if reader is None:
                return
            self.num_restarts += 1

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Until the daemon is lost, or says what is no message."""
        with contextlib.suppress(protocol.ProtocolError):
            while message := await protocol.read_message(reader):
                self._silence = 0
                self._hand_out(message)

    async def _watch(self) -> None:
        """Gives up a daemon that is there and silent, such as one that was stopped.

        Silence is counted in seconds of this loop: while it does other work nobody could be heard.
        """
        while True:
            await asyncio.sleep(1.0)
            writer = self._writer
            self._silence = self._silence + 1 if self._pending and writer is not None else 0
            if writer is not None and self._silence == ASK_AFTER_SECONDS:
                request = protocol.ControlRequest(kind="health", call_id=self._new_id("watch"))
                writer.write(protocol.encode_request(request))
            elif writer is not None and self._silence > SILENT_SECONDS:
                writer.transport.abort()  # `_listen` then looks for a daemon, and ends a hung one
                self._silence = 0

    def _hand_out(self, message: dict[str, object]) -> None:
        if "redone" in message:
            self.num_calls_redone += 1
            return
        pending = self._pending.get(str(message.get("call_id")))
        if pending is not None and not pending.reply.done():
            pending.reply.set_result(message)

    async def _reconnect(self) -> asyncio.StreamReader | None:
        """A connection on which everything unanswered has been sent again, or None."""
        deadline, pause = time.monotonic() + LOST_SECONDS, 0.1
        while True:
            try:
                await asyncio.to_thread(
                    resident.reach_daemon, self._state_dir, self._config, replace=False
                )
                reader = await self._open()
            except (OSError, resident.SandboxError) as error:
                self._problem = str(error)
            else:
                self._problem = ""
                self._send_again()
                return reader
            if time.monotonic() + pause > deadline:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        self.gone = self._problem
        for call_id in self._pending:
            self._give_up(call_id, self.gone)
        return None

    def _send_again(self) -> None:
        assert self._writer is not None
        for call_id, pending in self._pending.items():
            if pending.is_sent:
                pending.num_losses += 1
                is_call = not isinstance(pending.request, protocol.ControlRequest)
                self.num_calls_redone += is_call
            if pending.num_losses > MAX_LOSSES:
                self._give_up(call_id, f"{MAX_LOSSES} daemons died while it ran")
            else:
                self._writer.write(pending.frame)
                pending.is_sent = True

    def _give_up(self, call_id: str, problem: str) -> None:
        """Tells a caller that no daemon answered."""
        stderr = f"the sandbox is gone: {problem}"
        status = SandboxStatus.INFRA_ERROR
        self._hand_out({"call_id": call_id, "status": status, "stderr": stderr, "rc": -1})
