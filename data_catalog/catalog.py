"""`catalog.duckdb`: a copy of what the manifests and parts say, made for questions.

Reads manifests and their parts, writes one file at the storage's root. The file is extended on a
copy aside and put in place by one rename: readers keep the version they opened, new readers see the
new one, and neither waits for the other. One process at a time publishes, under a lock that a killed
process frees. Deliberately never the truth: a lost file is made again from the manifests.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import duckdb

from data_catalog.ingest import ingest
from data_catalog.records import Manifest
from rstar2.types import ArtifactRef

SCHEMA_VERSION = 3
MIN_SECONDS_BETWEEN = 5.0
"""A run publishes at most so often, except where a stage ends."""
WITHOUT_PROGRESS = "set enable_progress_bar = false"
"""For each connection: after two seconds DuckDB draws a bar on standard output, between the lines or
the JSON that belong there."""
LOCK_SECONDS = 120.0
"""A forced publication waits so long for another process."""

Resolve = Callable[[ArtifactRef], Path]


class CatalogError(RuntimeError):
    """The catalogue cannot be read or published. What is committed is safe in the manifests."""


def publish(
    catalog_path: Path,
    manifests: Sequence[Manifest],
    resolve: Resolve,
    *,
    force: bool,
    everything: Callable[[], Sequence[Manifest]],
) -> bool:
    """Brings the published file up to `manifests`; reads the parts of new ones only.

    Returns whether it did: without `force` it declines while another process publishes, and within
    5 s of the run's last publication. Manifests may be all of a run or only the newest ones, of one
    run or several; none that the file holds is ever lost or replaced by an older version, except
    that a run started afresh (a later manifest of kind `run`) replaces the run as a whole. A file
    that is missing or has an older schema is made from `everything()`: all runs of the storage.
    """
    runs = sorted({manifest.run for manifest in manifests})
    with _explained(catalog_path), _locked(catalog_path, is_waiting=force) as lock:
        if lock is None or not (force or _is_due(lock, runs)):
            return False
        _publish(catalog_path, manifests, resolve, everything)
        _stamp(lock, runs)
        return True


def check_version(connection: duckdb.DuckDBPyConnection, catalog_path: Path) -> int:
    """Schema version of an open catalogue; raises where it is newer than this program or none."""
    try:
        row = connection.execute("select schema_version from catalogue").fetchone()
    except duckdb.CatalogException:
        row = None
    if row is None:
        raise CatalogError(
            f"{catalog_path} is no catalogue: expected a file that rstar2 published. Move it away; "
            "the catalogue is made again from the manifests by the next run."
        )
    if row[0] > SCHEMA_VERSION:
        raise CatalogError(
            f"{catalog_path} has schema version {row[0]}, this program knows {SCHEMA_VERSION}: "
            "expected at most that. Update rstar2, or use another storage."
        )
    return int(row[0])


def _publish(
    catalog_path: Path,
    manifests: Sequence[Manifest],
    resolve: Resolve,
    everything: Callable[[], Sequence[Manifest]],
) -> None:
    aside = _aside(catalog_path)
    is_changed = _extend(aside, catalog_path, manifests, resolve) if catalog_path.exists() else None
    if is_changed is None:
        _make(_aside(catalog_path), everything(), resolve)
    elif not is_changed:
        _remove(aside)
        return
    _put_in_place(aside, catalog_path)


def _extend(
    aside: Path, catalog_path: Path, manifests: Sequence[Manifest], resolve: Resolve
) -> bool | None:
    """Whether the copy aside got anything new; None where its schema is older than this program's.

    The published file itself is never opened here: DuckDB keeps one instance for a path in a
    process, which could be a reader's, of an older version.
    """
    shutil.copyfile(catalog_path, aside)
    with _connected(aside) as connection:
        if check_version(connection, catalog_path) < SCHEMA_VERSION:
            return None
        return ingest(connection, manifests, resolve)


def _make(aside: Path, manifests: Sequence[Manifest], resolve: Resolve) -> None:
    with _connected(aside) as connection:
        connection.execute("begin")
        for name in ("schema.sql", "views.sql"):
            connection.execute((Path(__file__).parent / name).read_text())
        connection.execute("insert into catalogue values (?)", [SCHEMA_VERSION])
        connection.execute("commit")
        ingest(connection, manifests, resolve)


_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "threads": 2,
}


def _connected(path: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(path, config=_CONFIG)
    connection.execute(WITHOUT_PROGRESS)
    return connection


def _aside(catalog_path: Path) -> Path:
    """Where the next version is made; what a killed publisher left there is removed."""
    catalog_path.parent.mkdir(parents=True, exist_ok=True)
    aside = catalog_path.with_name(catalog_path.name + ".publishing")
    _remove(aside)
    return aside


def _remove(aside: Path) -> None:
    aside.unlink(missing_ok=True)
    aside.with_name(aside.name + ".wal").unlink(missing_ok=True)


def _put_in_place(aside: Path, catalog_path: Path) -> None:
    for path in (aside, catalog_path.parent):
        if path == catalog_path.parent:
            aside.replace(catalog_path)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(catalog_path: Path, *, is_waiting: bool) -> Iterator[BinaryIO | None]:
    """The lock file, locked; None where another process holds it and waiting is not wanted."""
    catalog_path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + (LOCK_SECONDS if is_waiting else 0.0)
    with catalog_path.with_name(catalog_path.name + ".lock").open("a+b") as lock:
        while not _try_lock(lock):
            if not is_waiting:
                yield None
                return
            if time.monotonic() > deadline:
                raise CatalogError(
                    f"{catalog_path} is being published by another process for more than "
                    f"{LOCK_SECONDS:.0f} s: expected seconds. Find it with `fuser {lock.name}`; "
                    "nothing is lost, the next publication catches up."
                )
            time.sleep(0.05)
        yield lock


def _try_lock(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stamps(lock: BinaryIO) -> dict[str, float]:
    """When each run published last; what a kill left half-written counts as never."""
    lock.seek(0)
    try:
        stamps = json.loads(lock.read() or b"{}")
    except ValueError:
        return {}
    return stamps if isinstance(stamps, dict) else {}


def _is_due(lock: BinaryIO, runs: Sequence[str]) -> bool:
    stamps, now = _stamps(lock), time.time()
    return any(abs(now - stamps.get(run, 0.0)) >= MIN_SECONDS_BETWEEN for run in runs)


def _stamp(lock: BinaryIO, runs: Sequence[str]) -> None:
    stamps = _stamps(lock) | dict.fromkeys(runs, time.time())
    lock.truncate(0)
    lock.write(json.dumps(stamps).encode())
    lock.flush()


@contextmanager
def _explained(catalog_path: Path) -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, OSError) as error:
        raise CatalogError(
            f"the catalogue {catalog_path} could not be published: {str(error).splitlines()[0]}. "
            "What is committed is safe in the manifests. Expected a writable folder with room and a "
            "sound file: free space or correct permissions; move a damaged file away. The next "
            "publication catches up."
        ) from error
