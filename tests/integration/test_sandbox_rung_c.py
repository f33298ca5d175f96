"""Rung C: Landlock and a system-call filter, for machines that grant no namespaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sandbox_daemons import daemon_on_rung, is_left_alone

from infra.sandbox import landlock
from infra.sandbox.client import Sandbox, open_sandbox
from rstar2.config import SandboxConfig


def _has_landlock() -> bool:
    try:
        return landlock.version() > 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not _has_landlock(), reason="this kernel has no Landlock"),
]
CONFIG = SandboxConfig(cpu_seconds=0.5, wall_seconds=8.0, memory_mib=256, min_rung="C")


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rungC")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(state_dir: Path) -> AsyncIterator[Sandbox]:
    with daemon_on_rung(state_dir, "C"):
        async with open_sandbox(CONFIG, state_dir, replace=False) as sandbox:
            yield sandbox


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(opened: Sandbox, state_dir: Path) -> AsyncIterator[Sandbox]:
    yield opened
    benign = await opened.run("print(6 * 7)", call_id="benign")
    assert (benign.status, benign.stdout, benign.rung) == ("ok", "42\n", "C")
    assert is_left_alone(state_dir)
    assert list((state_dir / "sandbox/root").iterdir()) == []


WORKS = {
    "numpy": ("import numpy\nnumpy.linalg.det(numpy.eye(2))", "np.float64(1.0)"),
    "sympy": ("import sympy\nsympy.factorint(12)", "{2: 2, 3: 1}"),
    "a module not loaded yet": ("import colorsys, numpy.polynomial\n1", "1"),
    "temporary files": (
        "import tempfile\nwith tempfile.TemporaryFile('w+') as f:\n    f.write('hi')\n1",
        "1",
    ),
    "own folder": ("import os\nopen('a', 'w').write('x')\nos.listdir('.')", "['a']"),
    "threads": (
        "import threading\nx = []\nt = threading.Thread(target=x.append, args=(1,))\n"
        "t.start(); t.join()\nx",
        "[1]",
    ),
    "environment": ("import os\ndict(os.environ)", "{}"),
    "asyncio": ("import asyncio\nasync def f(): return 5\nawait f()", "5"),
}


@pytest.mark.parametrize("name", WORKS)
async def test_ordinary_code_works(sandbox: Sandbox, name: str) -> None:
    code, value = WORKS[name]
    result = await sandbox.run(code, call_id="case")
    assert (result.status, result.value) == ("ok", value), result


REFUSED = {
    "network": "import socket\nsocket.socket()",
    "accounts": "open('/etc/passwd')",
    "home": "import os\nos.listdir(os.path.expanduser('~root'))",
    "other processes": "import os\nos.listdir('/proc')",
    "the parent's environment": "import os\nopen(f'/proc/{os.getppid()}/environ')",
    "write outside": "open('/tmp/x', 'w')",
    "the folders of other calls": "import os\nos.listdir('..')",
    "fork": "import os\nos.fork()",
    "subprocess": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1'])",
    "signal to the parent": "import os\nos.kill(os.getppid(), 9)",
    "limits of the parent": (
        "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (9, 9))"
    ),
    "become another user": "import os\nos.setuid(1234)",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_is_refused(sandbox: Sandbox, name: str) -> None:
    result = await sandbox.run(REFUSED[name], call_id="case")
    assert result.status == "error", result
    assert "PermissionError: [Errno 1" in result.stderr.splitlines()[-1], result.stderr


async def test_the_project_cannot_be_imported(sandbox: Sandbox) -> None:
    for name in ("rstar2.types", "torch", "infra.sandbox.client"):
        result = await sandbox.run(f"import {name}", call_id="import")
        assert result.status == "error"


async def test_endless_programs_are_stopped(sandbox: Sandbox) -> None:
    loop = await sandbox.run("while True: pass", call_id="loop")
    sleep = await sandbox.run("import time\ntime.sleep(9)", call_id="sleep", wall_seconds=0.5)
    assert (loop.status, sleep.status) == ("timeout_cpu", "timeout_wall")


async def test_answers_are_graded(sandbox: Sandbox) -> None:
    (verdict,) = await sandbox.grade([("(x-1)(x+1)", "x^2-1")])
    assert verdict.kind == "correct"
