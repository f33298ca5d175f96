"""Code that looks around, breaks out or tears down (row S13 of the cases, and the rest of its kind).

Every snippet runs on every rung that can be reached here. After each, a benign call works and no
process of the snippet is left.
"""

from __future__ import annotations

import pytest

from infra.sandbox.client import Sandbox
from infra.sandbox.protocol import SandboxResult

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def run(sandbox: Sandbox, code: str, stdin: str = "") -> SandboxResult:
    return await sandbox.run(code, stdin=stdin, call_id="case")


REFUSED = {
    "network": ("import socket\nsocket.socket()", "PermissionError"),
    "connect": ("import urllib.request\nurllib.request.urlopen('http://127.0.0.1')", "Operation"),
    "ipv6": ("import socket\nsocket.socket(socket.AF_INET6)", "PermissionError"),
    "write to /": ("open('/x', 'w')", "OSError: [Errno 30] Read-only file system"),
    "write to the library": (
        "import numpy, os\nopen(os.path.dirname(numpy.__file__) + '/x.py', 'w')",
        "OSError: [Errno 30] Read-only file system",
    ),
    "shadow file": ("open('/etc/shadow').read()", "FileNotFoundError"),
    "home": ("import os\nos.listdir('/root')", "FileNotFoundError"),
    "host's temporary folder": ("import os\nassert os.listdir('/tmp') == ['x'], 'empty'", "empty"),
    "become root": ("import os\nos.setuid(0)", "Error: [Errno "),
    "kill init": ("import os\nos.kill(2, 9)", "ProcessLookupError"),
    "more address space": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "not allowed to raise maximum limit",
    ),
    "change root": ("import os\nos.chroot('/tmp')", "PermissionError"),
    "fill the disk": (
        "with open('/tmp/a', 'wb') as f:\n    while True: f.write(b'x' * 65536)",
        "File too large",
    ),
    "fill the disk with many files": (
        "for i in range(100):\n    open(f'/tmp/{i}', 'wb').write(b'x' * 1_000_000)",
        "No space left on device",
    ),
    "project": ("import rstar2", "ModuleNotFoundError"),
    "torch": ("import torch", "ModuleNotFoundError"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_s13_is_contained(sandbox: Sandbox, name: str) -> None:
    code, message = REFUSED[name]
    result = await run(sandbox, code)
    assert result.status == "error"
    assert message in result.stderr


SYSCALLS = {
    "unshare": "libc.unshare(0x10000000)",
    "mount": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "ptrace": "libc.ptrace(16, 1, 0, 0)",
    "clone into a user namespace": "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "process_vm_readv": "libc.process_vm_readv(1, None, 0, None, 0, 0)",
    "shmget": "libc.shmget(0, 4096, 0o1666)",
    "keyctl": "libc.syscall(250, 0, 0, 0, 0, 0)",
    "io_uring_setup": "libc.syscall(425, 1, 0)",
    "bpf": "libc.syscall(321, 0, 0, 0)",
    "userfaultfd": "libc.syscall(323, 0)",
    "internet socket": "libc.socket(2, 1, 0)",
    "socket pair of the internet": "libc.socketpair(2, 1, 0, None)",
}


@pytest.mark.parametrize("name", SYSCALLS)
async def test_system_call_is_refused(sandbox: Sandbox, name: str) -> None:
    code = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nr = {SYSCALLS[name]}\n"
    result = await run(sandbox, code + "r, ctypes.get_errno()")
    assert result.value == "(-1, 1)", result


SIGHTS = {
    "environment": ("import os\ndict(os.environ)", "{}"),
    "environment of init": (
        "sorted(e.split('=')[0] for e in open('/proc/1/environ').read().split(chr(0)) if e)",
        "['LC_ALL', 'LD_BIND_NOW', 'LD_LIBRARY_PATH', 'MKL_NUM_THREADS', 'OMP_NUM_THREADS', "
        "'OPENBLAS_NUM_THREADS', 'PYTHONHASHSEED', 'PYTHONPATH', 'TZ']",
    ),
    "own processes": ("import os\n[p for p in os.listdir('/proc') if p.isdigit()]", "['1']"),
    "accounts": ("open('/etc/passwd').read()", "'sandbox:x:1000:1000:sandbox:/tmp:/bin/sh\\n'"),
    "network interfaces": ("open('/proc/net/dev').read().count(':')", "1"),
    "working folder": ("import os\nos.getcwd(), os.listdir('.')", "('/tmp', [])"),
    "folders": (
        "import os\nsorted(set(os.listdir('/')) - {'lib', 'lib64', 'lib32', 'harness'})",
        "['bin', 'dev', 'etc', 'proc', 'python', 'tmp', 'usr']",
    ),
    "import path": ("import sys\nall(p.startswith('/python/') for p in sys.path)", "True"),
    "capabilities": ("'CapEff:\\t0000000000000000' in open('/proc/self/status').read()", "True"),
    "open descriptors": ("import os\nmax(map(int, os.listdir('/proc/self/fd'))) < 6", "True"),
    "harness source": ("import os\nos.listdir('/harness/infra/sandbox')", "[]"),
    "time zone": ("import time\ntime.tzname", "('UTC', 'UTC')"),
}


@pytest.mark.parametrize("name", SIGHTS)
async def test_sees_nothing_of_the_host(sandbox: Sandbox, name: str) -> None:
    code, value = SIGHTS[name]
    result = await run(sandbox, code)
    assert (result.value, result.stderr) == (value, "")


async def test_s13_killing_the_own_group_kills_nobody_else(sandbox: Sandbox) -> None:
    before = (await sandbox.health())["num_restarts"]
    result = await run(sandbox, "import os\nos.killpg(0, 9)\nprint('alive')")
    assert result.status in ("ok", "error", "oom")
    assert (await sandbox.health())["num_restarts"] == before


async def test_s13_fork_bomb_ends_by_a_limit(sandbox: Sandbox) -> None:
    result = await run(
        sandbox, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    )
    assert result.status in ("oom", "timeout_cpu")


async def test_memory_of_all_processes_together_is_limited(sandbox: Sandbox) -> None:
    code = (
        "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n"
        "        x = bytearray(200_000_000)\n        time.sleep(30)\ntime.sleep(30)"
    )
    assert (await run(sandbox, code)).status == "oom"


async def test_daemonised_grandchildren_die_with_the_call(sandbox: Sandbox) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n"
        "    os._exit(0)\nprint('done')"
    )
    result = await run(sandbox, code)
    assert (result.status, result.stdout) == ("ok", "done\n")
