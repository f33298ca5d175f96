"""What this machine offers: cores, memory, disk, accelerators. Reads the system, writes nothing.

Loads neither torch nor prefect, so accelerators are seen by their vendor's tool and not by torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerators:
    vendor: str
    """`nvidia`, `amd`, or empty where neither tool is installed."""
    names: tuple[str, ...]
    """One per device, as the tool prints it."""
    problem: str
    """Why the tool gave no device although it is there; else empty."""


def num_cores() -> int:
    """Cores this process may use, which is less than the machine's in a container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> tuple[int, int]:
    """Total memory, and what is available now (the total again where the system does not say)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return total, total
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return total, int(fields["MemAvailable"].split()[0]) * 1024


def free_disk_bytes(folder: Path) -> int:
    """Free for us on the disk that holds, or would hold, the folder."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def accelerators() -> Accelerators:
    """Devices by `nvidia-smi` or `rocm-smi`, whichever is installed."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
        return _ask("nvidia", query, marker="")
    if shutil.which("rocm-smi"):
        return _ask("amd", ["rocm-smi", "--showproductname"], marker="Card Series")
    return Accelerators(vendor="", names=(), problem="")


def _ask(vendor: str, query: list[str], *, marker: str) -> Accelerators:
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Accelerators(vendor=vendor, names=(), problem=f"{query[0]}: {error}")
    lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode != 0 or not lines:
        seen = (answer.stderr or answer.stdout).strip() or "no output"
        return Accelerators(vendor=vendor, names=(), problem=f"{query[0]}: {seen}")
    names = tuple(line.rpartition(":")[2].strip() for line in lines if marker in line)
    return Accelerators(vendor=vendor, names=names, problem="")
