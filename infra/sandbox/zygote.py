"""A warm interpreter that forks one child per call, limits it, and reports how it ended.

Reads calls from, and writes results to, one socket of the daemon (`marshal` frames: both ends are
ours and of one version). It never runs a snippet itself and has one thread, so that a fork is
always sound. A call's outcome is its exit status, its resource usage and three memory files; the
zygote trusts nothing else. Ends when the daemon's end of the socket closes, and as pid 1 of its
namespace takes every call with it.
"""

from __future__ import annotations

import gc
import json
import marshal
import mmap
import os
import select
import signal
import sys
import sysconfig
import time
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from infra.sandbox import (
    harness,
    isolation,
    kernel,
    landlock,
    limits,
    memory_files,
    root,
    tiers,
)
from infra.sandbox.running_call import (
    POLL_SECONDS,
    VERDICT_BYTES,
    Call,
    Running,
    check_limits,
    close,
    kill,
)


class Outcome(NamedTuple):
    """What the zygote sends back, in this order."""

    handle: int
    status: str
    rc: int
    stdout: bytes
    stderr: bytes
    value: bytes
    truncated: bool
    cpu_seconds: float
    wall_seconds: float
    max_rss: int
    """Bytes."""


class Zygote(NamedTuple):
    """What does not change while it serves."""

    control_fd: int
    pid_namespace: int
    """A descriptor, or -1 on the rungs without namespaces."""
    folders: str
    """Where calls get folders of their own on those rungs."""
    rules: list[tuple[int, int]]
    """Rung C: what every call may open."""
    confinement: isolation.Confinement
    first_user_id: int
    num_processes: int
    num_bytes: int
    """Address space before any call."""
    started_page: mmap.mmap
    """One byte per slot, shared with children: set when a child is shut in and will run."""
    poller: select.epoll


def main(arguments: list[str]) -> None:
    """Warms the tier up, says `ready`, then serves until the daemon goes."""
    entry = isolation.Entry(*json.loads(arguments[0]))
    tiers.preload(entry.tier)
    harness.warm_up()
    _forget_start(entry)
    zygote = _prepare(entry, int(arguments[1]))
    gc.collect()
    gc.freeze()
    gc.disable()
    if limits.num_threads() != 1:
        raise SystemExit(f"zygote {entry.tier}: {limits.num_threads()} threads, expected 1")
    _send(zygote.control_fd, ("ready", sorted(tiers.loaded())))
    _serve(zygote)


def _forget_start(entry: isolation.Entry) -> None:
    """Removes what only the start needed: environment, import path, own code."""
    os.environ.clear()
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.argv = [""]
    if entry.tier != "verify":
        sys.path[:] = [path for path in sys.path if _holds_libraries(path)]
    if entry.rung in isolation.NAMESPACED:
        sys.executable = root.launcher_inside()
        kernel.unmount(f"{root.CODE}/infra/sandbox")


def _holds_libraries(path: str) -> bool:
    """Whether it is a folder of the interpreter's or of packages: not the project's, nor `.`."""
    paths = sysconfig.get_paths()
    return path.startswith((paths["stdlib"], root.PREFIX, paths["purelib"], paths["platlib"]))


def _prepare(entry: isolation.Entry, pid_namespace: int) -> Zygote:
    limits.limit_zygote()
    if entry.rung not in isolation.NAMESPACED:
        kernel.process_control(kernel.PR_SET_CHILD_SUBREAPER, 1)
    os.set_blocking(entry.control_fd, True)
    poller = select.epoll()
    poller.register(entry.control_fd, select.EPOLLIN)
    tmpfs = f"size={limits.TMPFS_BYTES},nr_inodes={limits.TMPFS_INODES},mode=1777"
    confinement = isolation.Confinement(
        entry.rung, entry.with_proc, isolation.build_filter(entry.rung), tmpfs
    )
    return Zygote(
        control_fd=entry.control_fd,
        pid_namespace=pid_namespace,
        folders=entry.mount_point,
        rules=landlock.open_rules(entry.tier, entry.project) if entry.rung == "C" else [],
        confinement=confinement,
        first_user_id=entry.first_user_id,
        num_processes=entry.num_processes,
        num_bytes=limits.address_space_bytes(),
        started_page=mmap.mmap(-1, mmap.PAGESIZE),
        poller=poller,
    )


def _serve(zygote: Zygote) -> NoReturn:
    running: dict[int, Running] = {}
    while True:
        for fd, _ in zygote.poller.poll(_seconds_to_next_check(running)):
            if fd == zygote.control_fd:
                _obey(zygote, _receive(fd), running)
            elif fd in running:
                _finish(zygote, running.pop(fd), running.values())
        now = time.monotonic()
        for call in running.values():
            if call.next_check <= now and not call.reason:
                check_limits(call, now)


def _seconds_to_next_check(running: dict[int, Running]) -> float | None:
    if not running:
        return None
    return max(0.0, min(call.next_check for call in running.values()) - time.monotonic())


def _obey(zygote: Zygote, message: tuple, running: dict[int, Running]) -> None:
    if message[0] == "kill":
        for found in running.values():
            if found.handle == message[1]:
                kill(found, "cancelled")
        return
    call = Call(*message[1:])
    try:
        started = _start(zygote, call)
    except OSError as error:
        _send(zygote.control_fd, _infra_error(call.handle, f"the call did not start: {error}"))
        return
    running[started.pidfd] = started


def _start(zygote: Zygote, call: Call) -> Running:
    running = Running(call)
    stdin_fd = memory_files.stdin_file(call.stdin)
    ruleset = -1
    zygote.started_page[call.slot] = 0
    try:
        if zygote.pid_namespace < 0:
            running.folder = f"{zygote.folders}/{call.handle}"
            os.mkdir(running.folder, 0o700)
        if zygote.confinement.rung == "C":
            ruleset = landlock.make_ruleset(zygote.rules, running.folder)
        running.pid = _fork(zygote)
        if running.pid == 0:
            try:
                _become_call(zygote, call, running, (stdin_fd, ruleset))
            finally:
                os._exit(1)  # never back into the zygote's loop
        running.pidfd = os.pidfd_open(running.pid)
    except OSError:
        close(running)
        raise
    finally:
        for fd in {stdin_fd, ruleset} - {-1}:
            os.close(fd)
    zygote.poller.register(running.pidfd, select.EPOLLIN)
    running.next_check = running.started + min(POLL_SECONDS, running.limits.cpu_seconds)
    return running


def _fork(zygote: Zygote) -> int:
    """A child that is pid 1 of a new process namespace, without a second fork."""
    if zygote.pid_namespace < 0:
        return os.fork()
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            try:
                kernel.enter_namespace(zygote.pid_namespace, kernel.CLONE_NEWPID)
            except OSError:
                os._exit(1)  # it could never start a call again; the daemon starts another
    return pid


def _become_call(zygote: Zygote, call: Call, running: Running, fds: tuple[int, int]) -> NoReturn:
    stdin_fd, ruleset = fds
    memory = memoryview(b"")
    try:
        inherited = [stdin_fd, running.out_fd, running.err_fd]
        if running.is_streamed:
            inherited.append(running.value_fd)
        else:
            memory = kernel.map_shared(running.value_fd, memory_files.VALUE_FILE_BYTES)
        inherited += [ruleset] if ruleset >= 0 else []
        for target, source in enumerate(inherited):
            os.dup2(source, target)
        kernel.close_from(len(inherited))
        if running.folder:
            os.chdir(running.folder)
        num_items = 1 if isinstance(call.payload, str) else len(call.payload)
        limits.limit_call(
            running.limits,
            zygote_bytes=zygote.num_bytes,
            num_items=num_items,
            num_processes=zygote.num_processes,
        )
        user_id = zygote.first_user_id + call.slot
        isolation.confine(zygote.confinement, user_id=user_id, ruleset=len(inherited) - 1)
        zygote.started_page[call.slot] = 1
        zygote.started_page.close()
    except (OSError, ValueError) as error:
        os.write(2, f"the call could not be shut in: {error}".encode())
        os._exit(1)
    gc.enable()
    if isinstance(call.payload, str):
        harness.run_snippet(call.payload, memory, call.seed)
    tiers.check_pairs(call.payload, 3)
    os._exit(0)


def _finish(zygote: Zygote, call: Running, others: Iterable[Running]) -> None:
    zygote.poller.unregister(call.pidfd)
    _, status, usage = os.wait4(call.pid, 0)
    if zygote.pid_namespace < 0:
        _kill_leftovers(others)
    rc = os.waitstatus_to_exitcode(status)
    stdout, is_out_cut, is_out_full = memory_files.read_output(
        call.out_fd, call.limits.output_bytes
    )
    stderr, is_err_cut, is_err_full = memory_files.read_output(
        call.err_fd, call.limits.output_bytes
    )
    if call.is_streamed:
        value, is_value_cut, _ = memory_files.read_output(call.value_fd, VERDICT_BYTES)
    else:
        value, is_value_cut = memory_files.read_value(call.value_fd)
    kind = _status(call.reason, rc, is_full=is_out_full or is_err_full)
    if not zygote.started_page[call.slot] and not call.reason:
        kind = "infra_error"
    outcome = Outcome(
        handle=call.handle,
        status=kind,
        rc=rc,
        stdout=stdout,
        stderr=stderr,
        value=value,
        truncated=is_out_cut or is_err_cut or is_value_cut,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        wall_seconds=time.monotonic() - call.started,
        max_rss=usage.ru_maxrss * 1024,
    )
    close(call)
    _send(zygote.control_fd, ("done", *outcome))


def _status(reason: str, rc: int, *, is_full: bool) -> str:
    if is_full:
        return "output_limit"
    if reason:
        return reason
    if rc == -signal.SIGKILL:  # not by us, and a call cannot kill its own pid 1
        return "oom"
    if rc < 0:
        return "signal"
    return "ok" if rc == 0 else "error"


def _kill_leftovers(running: Iterable[Running]) -> None:
    """Rung D: what the call left running. Its orphans are our children, and theirs follow."""
    known = {call.pid for call in running}
    for _ in range(1000):
        orphans = [pid for pid in limits.children_of(os.getpid()) if pid not in known]
        if not orphans:
            return
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _infra_error(handle: int, message: str) -> tuple:
    return (
        "done",
        *Outcome(handle, "infra_error", -1, b"", message.encode(), b"", False, 0.0, 0.0, 0),
    )


def _send(fd: int, message: tuple) -> None:
    body = marshal.dumps(message)
    data = memoryview(len(body).to_bytes(4, "big") + body)
    while data:
        data = data[os.write(fd, data) :]


def _receive(fd: int) -> tuple:
    head = _read_exactly(fd, 4)
    message: tuple = marshal.loads(_read_exactly(fd, int.from_bytes(head, "big")))
    return message


def _read_exactly(fd: int, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        part = os.read(fd, num_bytes - len(data))
        if not part:
            os._exit(0)  # the daemon is gone
        data += part
    return data
