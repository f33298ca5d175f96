"""The sandbox of a user without rights, in an environment that this user can read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import infra

NOBODY = 65534
PROJECT = str(Path(infra.__file__).resolve().parent.parent)

# Runs as root in a mount namespace of its own. Folders on the way to the interpreter, the environment
# and the project that only root may enter are covered by readable ones with these three inside.
BECOME_NOBODY = """
import os, subprocess, sys
from infra.sandbox import kernel
stash, needed = sys.argv[1], sys.argv[2].split(os.pathsep)
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
for number, path in enumerate(needed):
    os.mkdir(f"{stash}/{number}")
    kernel.mount(path, f"{stash}/{number}", flags=kernel.MS_BIND | kernel.MS_REC)
closed = set()
for path in needed:
    parts = path.strip("/").split("/")
    for end in range(1, len(parts)):
        folder = "/" + "/".join(parts[:end])
        if os.stat(folder).st_mode & 0o005 != 0o005:
            closed.add(folder)
            break
for folder in closed:
    kernel.mount("tmpfs", folder, kind="tmpfs", options="mode=0755")
for number, path in enumerate(needed):
    if any(path.startswith(folder + "/") for folder in closed):
        os.makedirs(path, exist_ok=True)
        kernel.mount(f"{stash}/{number}", path, flags=kernel.MS_BIND | kernel.MS_REC)
os.setgroups([])
os.setresgid(NOBODY, NOBODY, NOBODY)
os.setresuid(NOBODY, NOBODY, NOBODY)
os.chdir("/")
os.execve(sys.argv[3], sys.argv[3:], {"PYTHONPATH": PROJECT, "PYTHONDONTWRITEBYTECODE": "1"})
"""

ASK = """
import asyncio, json, sys
from pathlib import Path
from infra.sandbox.client import open_sandbox
from infra.sandbox.resident import stop_daemon
from rstar2.config import SandboxConfig

async def main(folder):
    async with open_sandbox(SandboxConfig(cpu_seconds=2.0), folder) as sandbox:
        return [(await sandbox.run(code, call_id="x")) for code in json.loads(sys.argv[2])]

folder = Path(sys.argv[1])
try:
    results = asyncio.run(main(folder))
finally:
    stop_daemon(folder)
print(json.dumps([[r.status, r.rung, r.stdout, r.stderr[-80:]] for r in results]))
"""

SNIPPETS = [
    "import numpy, os\nprint(numpy.eye(2).sum(), os.getuid(), dict(os.environ))",
    "open('/etc/shadow')",
    "import socket\nsocket.socket()",
    "import os\nprint(os.listdir('/proc').count('2'), os.path.exists('/home'))",
    "open('/python/x', 'w')",
]


def _as_nobody(folder: str, stash: str) -> list[str]:
    needed = os.pathsep.join(dict.fromkeys([sys.base_prefix, sys.prefix, PROJECT]))
    code = BECOME_NOBODY.replace("NOBODY", str(NOBODY)).replace("PROJECT", repr(PROJECT))
    ask = [sys.executable, "-c", ASK, folder, json.dumps(SNIPPETS)]
    return [sys.executable, "-c", code, stash, needed, *ask]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_user_without_rights_is_isolated_on_rung_b() -> None:
    folder, stash = tempfile.mkdtemp(prefix="nobody-"), tempfile.mkdtemp(prefix="stash-")
    try:
        os.chown(folder, NOBODY, NOBODY)
        os.chmod(stash, 0o755)
        done = subprocess.run(
            _as_nobody(folder, stash), capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr + _log(folder)
        answers = json.loads(done.stdout)
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(stash)
    assert [answer[1] for answer in answers] == ["B"] * len(SNIPPETS)
    assert answers[0][2] == "2.0 1000 {}\n"
    assert answers[1][3].endswith(
        "FileNotFoundError: [Errno 2] No such file or directory: '/etc/shadow'\n"
    )
    assert answers[2][3].endswith("PermissionError: [Errno 1] Operation not permitted\n")
    assert answers[3][2] == "0 False\n"
    assert answers[4][3].endswith("OSError: [Errno 30] Read-only file system: '/python/x'\n")


def _log(folder: str) -> str:
    file = Path(folder) / "sandbox/daemon.log"
    return file.read_text() if file.exists() else "(no log)"
