"""The sandbox node: queues calls, routes them to warm interpreters, answers each exactly once.

Reads requests from a unix socket in its state folder; writes results there, its log on standard
error, and one line on standard output when it is ready or has failed to start. Holds no state that
outlives it: a client that loses it sends its unanswered calls again. One daemon owns a state folder,
by a lock that it keeps for life. Ends on `stop`, on SIGTERM, or after an hour without a client.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from infra.sandbox import kernel, protocol, tiers
from infra.sandbox.isolation import RUNGS, Rung
from infra.sandbox.protocol import SandboxResult, SandboxStatus
from infra.sandbox.zygote_process import Warm, ZygoteError, ZygoteProcess, start_zygote

IDLE_SECONDS = 3600.0
"""Without a client for so long, the daemon ends."""
QUEUE_SECONDS = 1800.0
"""A call that waited so long is given back as `queue_timeout`."""
MAX_ATTEMPTS = 3
"""How often a call may lose its interpreter before it is an `infra_error`."""
SOCKET_NAME = "daemon.sock"
LOCK_NAME = "daemon.lock"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    state_dir: Path
    num_slots: int
    min_rung: Rung
    version: str
    """Identity of code and settings, told in health; a client replaces a daemon of another."""


class Node:
    """Queue, slots and interpreters. Everything runs on one event loop."""

    def __init__(self, settings: Settings, warm: Warm, first: ZygoteProcess) -> None:
        self.settings = settings
        self.warm = warm
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
        if self.zygotes.get(zygote.tier) is not zygote:
            return
        log(f"the {zygote.tier} interpreter died; its calls are run again")
        self.num_restarts += 1
        del self.zygotes[zygote.tier]
        self.lose(zygote.tier, f"the {zygote.tier} interpreter died while the call ran")

    def lose(self, tier: str, reason: str) -> None:
        for call in [c for c in self.running.values() if c.tier == tier]:
            self.release(call)
            call.num_attempts += 1
            if call.num_attempts < MAX_ATTEMPTS and not self.stopping.is_set():
                call.client.queue.appendleft(call)
            else:
                self.answer(call, SandboxStatus.INFRA_ERROR, stderr=reason, rc=-1)
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
        self.answer(
            call,
            SandboxStatus.INFRA_ERROR if status == "cancelled" else SandboxStatus(status),
            rc=rc,
            stdout=protocol.to_text(stdout),
            stderr=protocol.to_text(stderr),
            value=text,
            truncated=truncated,
            cpu_s=round(cpu, 6),
            wall_s=round(wall, 6),
            max_rss=max_rss,
        )
        self.dispatch()

    def answer(self, call: Queued, status: SandboxStatus, **values: object) -> None:
        """The one result of a call, unless its client is gone."""
        if call.client.calls.pop(call.request.call_id, None) is None:
            return
        self.num_done[str(status)] = self.num_done.get(str(status), 0) + 1
        queue_s = (call.started or time.monotonic()) - call.arrived
        result = SandboxResult(
            call_id=call.request.call_id,
            status=status,
            queue_s=round(queue_s, 6),
            rung=self.warm.rung,
            node=self.warm.node,
            **values,  # type: ignore[arg-type]
        )
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
                self.answer(client.queue.popleft(), SandboxStatus.QUEUE_TIMEOUT, rc=-1)
        if not self.clients and now - self.last_used > IDLE_SECONDS:
            self.stopping.set()

    def health(self) -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "protocol": protocol.PROTOCOL_VERSION,
            "version": self.settings.version,
            "rung": self.warm.rung,
            "refused_rungs": dict(self.warm.refused),
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


async def probe(settings: Settings) -> tuple[Warm, ZygoteProcess]:
    """The strongest rung on which a call really runs, and its first interpreter.

    Raises `ZygoteError` with every rung's reason when none at or above `min_rung` is reached.
    """
    refused: list[tuple[str, str]] = []
    for rung in RUNGS:
        if rung > settings.min_rung:
            refused.append((rung, f"weaker than min_rung = {settings.min_rung!r}"))
            continue
        for with_proc in (True, False) if rung == "B" else (True,):
            warm = Warm.of(settings.state_dir, rung, with_proc=with_proc, refused=tuple(refused))
            try:
                return warm, await _try_rung(warm)
            except ZygoteError as error:
                refused.append((rung, str(error)))
    lines = "".join(f"\n  {rung}: {reason}" for rung, reason in refused)
    raise ZygoteError(
        f"no isolation rung at or above {settings.min_rung!r} can be reached here:{lines}\n"
        "Run as root, allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        'user.max_user_namespaces), or accept less with sandbox.min_rung = "D" (unsafe).'
    )


async def _try_rung(warm: Warm) -> ZygoteProcess:
    if warm.rung == "A" and os.geteuid() != 0:
        raise ZygoteError("needs root")
    zygote = await start_zygote(warm, "tiny")
    done: asyncio.Future[tuple] = asyncio.get_running_loop().create_future()
    zygote.on_message = done.set_result

    def died(_: ZygoteProcess) -> None:
        if not done.done():
            done.set_exception(ZygoteError("its interpreter died in a trial call"))

    zygote.on_death = died
    zygote.send(("run", 0, 0, "1 + 1", "", 0, (5.0, 30.0, 256 << 20, 4096)))
    outcome = await done
    if outcome[2] != "ok" or outcome[6] != b"2":
        zygote.kill()
        raise ZygoteError(f"a trial call ended {outcome[2]}: {protocol.to_text(outcome[5])}")
    return zygote


async def serve(settings: Settings) -> None:
    """Runs the node until it is told to stop. Says on standard output when it is ready."""
    kernel.process_control(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.set_personality(kernel.ADDR_NO_RANDOMIZE)  # inherited: addresses in calls repeat
    warm, first = await probe(settings)
    node = Node(settings, warm, first)
    listener = _listen(settings.state_dir)
    server = await asyncio.start_unix_server(node.serve_client, sock=listener, limit=1 << 20)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stopping.set)
    _say({"ready": node.health()})
    log(f"ready on rung {warm.rung}, {settings.num_slots} slots")
    while not node.stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(node.stopping.wait(), timeout=10.0)
        node.expire()
    await asyncio.sleep(0.05)  # the answer to `stop` goes out
    server.close()
    for zygote in node.zygotes.values():
        zygote.kill()
    (settings.state_dir / SOCKET_NAME).unlink(missing_ok=True)


def _listen(state_dir: Path) -> socket.socket:
    """A listening socket in the folder, also where its path is too long for the kernel."""
    (state_dir / SOCKET_NAME).unlink(missing_ok=True)
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
    os.close(folder)
    os.chmod(state_dir / SOCKET_NAME, 0o600)
    listener.listen(512)
    return listener


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)


def _parse(arguments: list[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m infra.sandbox.daemon", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--num-slots", type=int, default=2)
    parser.add_argument("--min-rung", choices=["A", "B", "C", "D"], default="B")
    parser.add_argument("--version", default="", dest="version")
    values = parser.parse_args(arguments)
    return Settings(
        state_dir=values.state_dir.resolve(),
        num_slots=values.num_slots,
        min_rung=values.min_rung,
        version=values.version,
    )


def main(arguments: list[str] | None = None) -> int:
    settings = _parse(arguments)
    settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(settings.state_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say({"error": f"another daemon owns {settings.state_dir}"})
        return 1
    try:
        asyncio.run(serve(settings))
    except ZygoteError as error:
        log(str(error))
        _say({"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
