"""The sandbox daemon: a process that owns a state folder, probes the isolation, serves a node.

Reads its command line; writes a socket in the folder, its log on standard error, and one line on
standard output when it is ready or has failed to start. Holds no state that outlives it: a client
that loses it sends its unanswered calls again. One daemon owns a folder, by a lock that it keeps for
life. Ends on `stop`, on SIGTERM, when its folder is removed, or after an hour without a client.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from infra.sandbox import kernel, protocol
from infra.sandbox.isolation import RUNGS
from infra.sandbox.node import Node, Settings, log
from infra.sandbox.resident import OWNER_LOCK_NAME, SOCKET_NAME, open_socket
from infra.sandbox.zygote_process import Warm, ZygoteError, ZygoteProcess, start_zygote, warmth

EXPIRE_SECONDS = 10.0
"""How often waiting, hanging and idling are looked at."""
TRIAL_CODE = """\
import colorsys, os
site = "/python/site"
folders = [f"{site}/{name}" for name in os.listdir(site)] if os.path.isdir(site) else []
[os.listdir(folder) for folder in folders if os.path.isdir(folder)]
1 + 1
"""
"""Also whether a call can read the libraries, which an environment of root alone forbids on A."""


async def probe(settings: Settings) -> Node:
    """A node on the strongest rung on which a call really runs, with its first interpreter.

    Raises `ZygoteError` with every rung's reason when none at or above `min_rung` is reached.
    """
    refused: dict[str, str] = {}
    for rung in RUNGS:
        if not settings.max_rung <= rung <= settings.min_rung:
            refused[rung] = f"not between {settings.max_rung} and {settings.min_rung}"
            continue
        for with_proc in (True, False) if rung == "B" else (True,):
            warm = warmth(
                settings.state_dir, rung, with_proc=with_proc, num_slots=settings.num_slots
            )
            try:
                node = Node(settings, warm, await _try_rung(warm))
            except ZygoteError as error:
                refused[rung] = str(error)
                continue
            node.refused_rungs = refused
            return node
    lines = "".join(f"\n  {rung}: {reason}" for rung, reason in refused.items())
    raise ZygoteError(
        f"no isolation rung at or above {settings.min_rung!r} can be reached here:{lines}\n"
        "Run as root; or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0); or accept less: sandbox.min_rung = "
        '"C" (Landlock alone), or sandbox.min_rung = "D" (unsafe: no isolation).'
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
    zygote.send(("run", 0, 0, TRIAL_CODE, "", 0, (5.0, 30.0, 256 << 20, 4096)))
    outcome = await done
    if outcome[2] != "ok" or outcome[6] != b"2":
        zygote.kill()
        if zygote.listening is not None:
            await zygote.listening
        raise ZygoteError(f"a trial call ended {outcome[2]}: {protocol.to_text(outcome[5])}")
    return zygote


async def serve(settings: Settings) -> None:
    """Runs the node until it is told to stop. Says on standard output when it is ready."""
    kernel.process_control(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.set_personality(kernel.ADDR_NO_RANDOMIZE)  # inherited: addresses in calls repeat
    node = await probe(settings)
    listener = _listen(settings.state_dir)
    server = await asyncio.start_unix_server(node.serve_client, sock=listener, limit=1 << 20)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stopping.set)
    _say({"ready": node.health()})
    log(f"ready on rung {node.warm.rung}, {settings.num_slots} slots")
    while not node.stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(node.stopping.wait(), timeout=EXPIRE_SECONDS)
        node.expire()
        if not (settings.state_dir / SOCKET_NAME).exists():
            log("the state folder is gone, and with it every way to reach this daemon")
            node.stopping.set()
    await asyncio.sleep(0.05)  # the answer to `stop` goes out
    server.close()
    for zygote in node.zygotes.values():
        zygote.kill()
    (settings.state_dir / SOCKET_NAME).unlink(missing_ok=True)


def _listen(state_dir: Path) -> socket.socket:
    """A listening socket in the folder, also where its path is too long for the kernel."""
    (state_dir / SOCKET_NAME).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with open_socket(state_dir) as path:
        listener.bind(path)
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
    parser.add_argument("--max-rung", choices=["A", "B", "C", "D"], default="A")
    parser.add_argument("--version", default="", dest="version")
    values = parser.parse_args(arguments)
    return Settings(
        state_dir=values.state_dir.resolve(),
        num_slots=values.num_slots,
        min_rung=values.min_rung,
        max_rung=values.max_rung,
        version=values.version,
    )


def main(arguments: list[str] | None = None) -> int:
    settings = _parse(arguments)
    settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(settings.state_dir / OWNER_LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
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
