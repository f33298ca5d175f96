"""The node's one loop: queues calls, gives them slots and interpreters, answers each exactly once.

Reads requests from clients' connections and outcomes from interpreters; writes results. Clients take
turns, each in its own order. A call whose interpreter dies waits again; one whose client is gone is
ended. Nothing here opens a socket or starts a process by itself but the interpreters of a tier.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from infra.sandbox import protocol, tiers
from infra.sandbox.isolation import Rung
from infra.sandbox.protocol import SandboxResult, SandboxStatus
from infra.sandbox.zygote_process import (
    START_SECONDS,
    Warm,
    ZygoteError,
    ZygoteProcess,
    start_zygote,
)

IDLE_SECONDS = 3600.0
"""Without a client for so long, the daemon ends."""
QUEUE_SECONDS = 1800.0
"""A call that waited so long is given back as `queue_timeout`."""
HUNG_SECONDS = START_SECONDS + 60.0
"""Past a call's own wall limit: its interpreter may have had to start first."""
MAX_ATTEMPTS = 3
"""How often a call may lose its interpreter before it is an `infra_error`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    state_dir: Path
    num_slots: int
    min_rung: Rung
    max_rung: Rung
    """The strongest isolation tried: A, unless a weaker one is to be tested."""
    version: str
    """Identity of code and settings, told in health; a client replaces a daemon of another."""


@dataclass(slots=True, eq=False)
class Client:
    writer: asyncio.StreamWriter
    queue: deque[Queued] = field(default_factory=deque)
    calls: dict[str, Queued] = field(default_factory=dict)
    """Unanswered, by call id."""


@dataclass(slots=True, eq=False)
class Queued:
    """One unanswered call."""

    request: protocol.RunRequest | protocol.VerifyRequest
    client: Client
    tier: str
    handle: int
    arrived: float
    started: float = 0.0
    slot: int = -1
    num_attempts: int = 0

    @property
    def is_wanted(self) -> bool:
        """Whether its client still waits for it (the same id may name a later call by now)."""
        return self.client.calls.get(self.request.call_id) is self


class Node:
    """Queue, slots and interpreters. Everything runs on one event loop."""

    def __init__(self, settings: Settings, warm: Warm, first: ZygoteProcess) -> None:
        self.settings = settings
        self.warm = warm
        self.refused_rungs: dict[str, str] = {}
        """Rungs that were tried first or not at all, each with its reason."""
        self.zygotes: dict[str, ZygoteProcess] = {"tiny": first}
        self.starting: dict[str, asyncio.Task[None]] = {}
        self.free_slots = list(range(settings.num_slots))
        self.clients: OrderedDict[int, Client] = OrderedDict()
        self.running: dict[int, Queued] = {}
        self.handles = count(1)
        self.num_done: dict[str, int] = {}
        self.num_restarts = 0
        self.started = self.last_used = time.monotonic()
        self.stopping = asyncio.Event()
        first.on_message, first.on_death = self.finish, self.recover

    async def serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        client = Client(writer)
        self.clients[id(client)] = client
        try:
            while (message := await protocol.read_message(reader)) is not None:
                self.obey(client, message)
        except protocol.ProtocolError as error:
            log(f"client dropped: {error}")
        finally:
            self.forget(client)
            writer.close()

    def obey(self, client: Client, message: dict[str, object]) -> None:
        """Takes one frame of a client; a bad request is answered, never dropped."""
        self.last_used = time.monotonic()
        try:
            request = protocol.parse_request(message)
        except protocol.ProtocolError as error:
            status = SandboxStatus.ERROR
            self.reply(
                client,
                SandboxResult(call_id=error.call_id or "", status=status, rc=1, stderr=str(error)),
            )
            return
        if isinstance(request, protocol.ControlRequest):
            self.control(client, request)
        elif request.call_id not in client.calls:  # sent twice: its one result is on its way
            self.enqueue(client, request)

    def control(self, client: Client, request: protocol.ControlRequest) -> None:
        if request.kind == "cancel":
            self.cancel(client, client.calls.get(request.call_id))
            return
        health = {"call_id": request.call_id, "health": self.health()}
        client.writer.write(protocol.encode(health))
        if request.kind == "stop":
            self.stopping.set()

    def enqueue(
        self, client: Client, request: protocol.RunRequest | protocol.VerifyRequest
    ) -> None:
        tier = "verify"
        if isinstance(request, protocol.RunRequest):
            tier = tiers.tier_of(request.code)
        call = Queued(request, client, tier, next(self.handles), time.monotonic())
        client.calls[request.call_id] = call
        client.queue.append(call)
        self.dispatch()

    def dispatch(self) -> None:
        """Gives free slots to waiting calls: clients in turn, each in its own order."""
        while self.free_slots and (call := self.next_call()) is not None:
            call.slot = self.free_slots.pop()
            call.started = time.monotonic()
            self.running[call.handle] = call
            zygote = self.zygotes.get(call.tier)
            if zygote is not None:
                zygote.send(_message(call))
            elif call.tier not in self.starting:
                self.starting[call.tier] = asyncio.create_task(self.start(call.tier))

    def next_call(self) -> Queued | None:
        for key in list(self.clients):
            client = self.clients[key]
            self.clients.move_to_end(key)
            if client.queue:
                return client.queue.popleft()
        return None

    async def start(self, tier: str) -> None:
        """Starts a tier's interpreter, then sends it what waits for it."""
        try:
            zygote = await start_zygote(self.warm, tier)
        except ZygoteError as error:
            self.starting.pop(tier, None)
            self.lose(tier, str(error))
            return
        zygote.on_message, zygote.on_death = self.finish, self.recover
        self.starting.pop(tier, None)
        self.zygotes[tier] = zygote
        for call in self.running.values():
            if call.tier == tier:
                zygote.send(_message(call))

    def recover(self, zygote: ZygoteProcess) -> None:
        """An interpreter died: its calls wait again, or end after too many attempts."""
        if self.zygotes.get(zygote.tier) is not zygote or self.stopping.is_set():
            return
        log(f"the {zygote.tier} interpreter died; its calls are run again")
        self.num_restarts += 1
        del self.zygotes[zygote.tier]
        self.lose(zygote.tier, f"the {zygote.tier} interpreter died while the call ran")

    def lose(self, tier: str, reason: str) -> None:
        for call in [c for c in self.running.values() if c.tier == tier]:
            self.release(call)
            call.num_attempts += 1
            if not call.is_wanted:
                continue
            if call.num_attempts < MAX_ATTEMPTS and not self.stopping.is_set():
                call.client.queue.appendleft(call)
                notice = {"call_id": "", "redone": call.request.call_id}
                call.client.writer.write(protocol.encode(notice))
            else:
                self.give_back(call, SandboxStatus.INFRA_ERROR, reason)
        self.dispatch()

    def release(self, call: Queued) -> None:
        if self.running.pop(call.handle, None) is not None:
            self.free_slots.append(call.slot)

    def finish(self, outcome: tuple) -> None:
        """An interpreter reports how a call ended."""
        handle, status, rc, stdout, stderr, value, truncated, cpu, wall, max_rss = outcome[1:]
        call = self.running.get(handle)
        if call is None:
            return
        self.release(call)
        text = protocol.to_text(value)
        if isinstance(call.request, protocol.VerifyRequest):
            text = json.dumps(tiers.read_verdicts(value))
        result = SandboxResult(
            call_id=call.request.call_id,
            status=SandboxStatus.INFRA_ERROR if status == "cancelled" else SandboxStatus(status),
            rc=rc,
            stdout=protocol.to_text(stdout),
            stderr=protocol.to_text(stderr),
            value=text,
            truncated=truncated,
            cpu_s=round(cpu, 6),
            wall_s=round(wall, 6),
            max_rss=max_rss,
        )
        self.answer(call, result)
        self.dispatch()

    def give_back(self, call: Queued, status: SandboxStatus, reason: str) -> None:
        """Answers a call that was not judged: it may be sent again."""
        call_id = call.request.call_id
        self.answer(call, SandboxResult(call_id=call_id, status=status, rc=-1, stderr=reason))

    def answer(self, call: Queued, result: SandboxResult) -> None:
        """The one result of a call, unless its client is gone."""
        if not call.is_wanted:
            return
        del call.client.calls[call.request.call_id]
        status = str(result.status)
        self.num_done[status] = self.num_done.get(status, 0) + 1
        queue_s = round((call.started or time.monotonic()) - call.arrived, 6)
        result = replace(result, queue_s=queue_s, rung=self.warm.rung, node=self.warm.node)
        self.reply(call.client, result)

    def reply(self, client: Client, result: SandboxResult) -> None:
        client.writer.write(protocol.encode_result(result))

    def cancel(self, client: Client, call: Queued | None) -> None:
        """Ends a call whose result nobody wants; it gets none."""
        if call is None:
            return
        del client.calls[call.request.call_id]
        if call in client.queue:
            client.queue.remove(call)
        elif (zygote := self.zygotes.get(call.tier)) is not None:
            zygote.send(("kill", call.handle))

    def forget(self, client: Client) -> None:
        self.last_used = time.monotonic()
        for call in list(client.calls.values()):
            self.cancel(client, call)
        self.clients.pop(id(client), None)

    def expire(self) -> None:
        """Gives back what waited too long; ends the daemon when nobody needs it."""
        now = time.monotonic()
        for client in self.clients.values():
            while client.queue and now - client.queue[0].arrived > QUEUE_SECONDS:
                reason = f"waited longer than {QUEUE_SECONDS:g} s"
                self.give_back(client.queue.popleft(), SandboxStatus.QUEUE_TIMEOUT, reason)
        for call in self.running.values():
            if now - call.started > _patience_seconds(call.request):
                _kill(self.zygotes.get(call.tier))  # it hangs: its calls run again in another
        if not self.clients and now - self.last_used > IDLE_SECONDS:
            self.stopping.set()

    def health(self) -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "protocol": protocol.PROTOCOL_VERSION,
            "version": self.settings.version,
            "rung": self.warm.rung,
            "refused_rungs": self.refused_rungs,
            "num_slots": self.settings.num_slots,
            "num_running": len(self.running),
            "num_queued": sum(len(c.queue) for c in self.clients.values()),
            "num_clients": len(self.clients),
            "num_done": dict(self.num_done),
            "num_restarts": self.num_restarts,
            "tiers": {
                tier: {"pid": z.pid, "packages": z.packages} for tier, z in self.zygotes.items()
            },
            "uptime_seconds": round(time.monotonic() - self.started, 3),
            "cpu_seconds": round(_cpu_seconds(z.pid for z in self.zygotes.values()), 3),
        }


def log(message: str) -> None:
    print(time.strftime("%H:%M:%S"), message, file=sys.stderr, flush=True)


def _message(call: Queued) -> tuple:
    request = call.request
    is_run = isinstance(request, protocol.RunRequest)
    output_bytes = request.output_bytes if isinstance(request, protocol.RunRequest) else 65_536
    limits = (request.cpu_s, request.wall_s, request.mem_mb << 20, output_bytes)
    payload = request.code if isinstance(request, protocol.RunRequest) else request.pairs
    stdin = request.stdin if isinstance(request, protocol.RunRequest) else ""
    seed = protocol.seed_of(request.call_id) if is_run else 0
    return ("run", call.handle, call.slot, payload, stdin, seed, limits)


def _kill(zygote: ZygoteProcess | None) -> None:
    if zygote is not None:
        zygote.kill()


def _patience_seconds(request: protocol.RunRequest | protocol.VerifyRequest) -> float:
    """After which an interpreter that should have answered by itself counts as hung."""
    num_items = 1 if isinstance(request, protocol.RunRequest) else len(request.pairs)
    return request.wall_s * num_items + HUNG_SECONDS


def _cpu_seconds(zygote_pids: Iterator[int]) -> float:
    """CPU time of the daemon, its interpreters, and every call that has ended."""
    total = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (
            resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
    )
    for pid in zygote_pids:
        with suppress(FileNotFoundError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total
