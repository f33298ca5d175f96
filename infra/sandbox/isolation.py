"""How a call is shut in: the rungs, strongest first, and the two moments at which they act.

Once per zygote, `main` (a process of its own, started by the daemon) enters namespaces and the
root of `root.py`, then executes the zygote inside. Once per call, `confine` gives the forked child
a process namespace and folder of its own and takes every right from it.

| rung | needs | gives |
| A | root | all namespaces, a user id per slot, private tmpfs, read-only root, filter, no network |
| B | user namespaces | the same without the user id per slot |
| C | Landlock | nothing opened but libraries and a folder of its own; threads only; no network |
| D | nothing | time, memory and output limits and the filter; files and processes stay visible |

Whether a rung can be reached is not guessed: the daemon starts
a zygote on it and runs a call.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import sysconfig
from pathlib import Path
from typing import Literal, NamedTuple

from infra.sandbox import kernel, landlock, root, seccomp

Rung = Literal["A", "B", "C", "D"]
RUNGS: tuple[Rung, ...] = ("A", "B", "C", "D")
"""Strongest first."""
NAMESPACED: frozenset[Rung] = frozenset({"A", "B"})
USER_INSIDE = 1000
"""User id inside rung B, and in the fake /etc/passwd of both."""

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "LD_BIND_NOW": "1",  # else every child resolves the same symbols again
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}
"""The environment a zygote starts with; calls get none."""
_TMPFS_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV
_PROC_FLAGS = _TMPFS_FLAGS | kernel.MS_NOEXEC


class Entry(NamedTuple):
    """What `main` is told, as JSON in its one argument."""

    rung: Rung
    tier: str
    control_fd: int
    """The zygote's end of its socket to the daemon."""
    mount_point: str
    """An empty folder of ours that the new root is mounted on."""
    project: str
    """The folder that holds `infra` and `rstar2`."""
    with_proc: bool
    """Whether /proc can be mounted (a container may forbid it on rung B)."""
    num_processes: int
    """Processes and threads that a call may have (on rung B: all of them together); 0 without a
    limit, where the user's processes outside would count too (C, D)."""
    first_user_id: int
    """Rung A: slot n runs as user `first_user_id + n`."""


class Confinement(NamedTuple):
    """What `confine` needs; the same for every call of a zygote but for the user id."""

    rung: Rung
    with_proc: bool
    filter: kernel.Filter
    tmpfs: str
    """Mount options of the call's folder."""


def project_folder() -> Path:
    """The folder that holds `infra` and `rstar2`."""
    return Path(__file__).resolve().parents[2]


def interpreter_environment() -> dict[str, str]:
    """What an interpreter of ours needs to start, and no more: none of the user's variables."""
    return {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR") or "")}


def main() -> None:
    """Enters the rung, tells the zygote's process id on standard output, becomes the zygote."""
    entry = Entry(*json.loads(sys.argv[1]))
    if entry.rung not in NAMESPACED:
        os.write(1, b"%d\n" % os.getpid())
        _execute_zygote(entry, sys.executable, pid_namespace=-1)
    if entry.rung == "B":
        _enter_user_namespace()
    kernel.unshare(
        kernel.CLONE_NEWNS
        | kernel.CLONE_NEWPID
        | kernel.CLONE_NEWNET
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWUTS
        | kernel.CLONE_NEWCGROUP
    )
    pid = os.fork()
    if pid:
        os.write(1, b"%d\n" % pid)
        os._exit(0)  # the daemon adopts the zygote
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    os.set_inheritable(own, True)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    root.build_root(
        entry.mount_point,
        tier=entry.tier,
        user_id=USER_INSIDE,
        project=entry.project,
        with_proc=entry.with_proc,
    )
    if entry.rung == "B":
        kernel.keep_capabilities_over_exec()
    _execute_zygote(entry, root.interpreter_inside(), pid_namespace=own)


def _enter_user_namespace() -> None:
    user, group = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{USER_INSIDE} {user} 1"),
        ("gid_map", f"{USER_INSIDE} {group} 1"),
    ):
        with open(f"/proc/self/{file}", "w") as stream:
            stream.write(text)


def _execute_zygote(entry: Entry, executable: str, *, pid_namespace: int) -> None:
    code = entry.project if entry.rung not in NAMESPACED else root.CODE
    start = (
        f"import sys; sys.path.insert(0, {code!r}); "
        "from infra.sandbox import tiers; tiers.import_common(); "
        "from infra.sandbox import zygote; zygote.main(sys.argv[1:])"
    )
    arguments = [json.dumps([*entry]), str(pid_namespace)]
    environment = ENVIRONMENT | interpreter_environment()
    if entry.rung in NAMESPACED:
        inside = {"LD_LIBRARY_PATH": f"{root.PREFIX}/lib", "PYTHONPATH": root.SITE}
        environment = ENVIRONMENT | inside
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.execve(executable, [executable, "-s", "-P", "-B", "-c", start, *arguments], environment)


def confine(confinement: Confinement, *, user_id: int, ruleset: int) -> None:
    """Shuts this process, a fresh child of the zygote, in. It is pid 1 of its namespace (A, B).

    Raises `OSError` when a step fails: the snippet must then not run.
    """
    os.setsid()  # a group of its own: `kill(0, …)` must not reach the zygote
    if confinement.rung in NAMESPACED:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("tmpfs", "/tmp", kind="tmpfs", flags=_TMPFS_FLAGS, options=confinement.tmpfs)
        if confinement.with_proc:
            kernel.mount("proc", "/proc", kind="proc", flags=_PROC_FLAGS)
        os.chdir("/tmp")
    else:
        kernel.process_control(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if confinement.rung == "A":
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)
        kernel.process_control(kernel.PR_SET_DUMPABLE, 1)
    else:
        kernel.drop_capabilities()
    kernel.process_control(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if confinement.rung == "C":
        landlock.restrict(ruleset)
        os.close(ruleset)
    confinement.filter.install()


def build_filter(rung: Rung) -> kernel.Filter:
    """The system-call filter of a rung. Raises `OSError` on C where the kernel has no Landlock."""
    if rung != "C":
        return kernel.Filter(seccomp.build_filter())
    no_signals = landlock.version() < landlock.SIGNAL_SCOPE_VERSION
    return kernel.Filter(seccomp.build_filter(single_process=True, no_signals=no_signals))
