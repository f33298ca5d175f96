"""Folders for files on their way into a store: on the store's disk, never part of it.

Makes and removes folders `.tmp-…` below a root. Each is locked while its process lives, so that what
a killed one left is known and removed by the next.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp-"
"""Prefix of unfinished files and folders: never listed, removed once their writer is gone."""
LOCK = f"{TEMPORARY}lock"
LEFTOVER_SECONDS = 10.0
"""Younger ones are left alone: their writer may not have locked them yet."""


@contextmanager
def staging_folder(root: Path) -> Iterator[Path]:
    """An empty folder below `root`, removed on leaving, or by `sweep` after a kill."""
    folder = root / f"{TEMPORARY}{uuid.uuid4().hex}"
    folder.mkdir(parents=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep(root: Path) -> int:
    """Removes temporary files and folders whose writer was killed; returns their number."""
    leftovers = [p for p in root.glob(f"{TEMPORARY}*") if p.name != LOCK and _is_leftover(p)]
    for path in leftovers:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return len(leftovers)


def _is_leftover(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return time.time() - os.fstat(descriptor).st_mtime > LEFTOVER_SECONDS
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
