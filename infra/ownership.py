"""Who trains a run: one owner at a time, with a fencing token and a heartbeat, in the object store.

Reads and writes one small record per run by compare-and-swap, so it works alike in a folder and in
S3, between processes and between machines. Clocks of two machines are never compared: a watcher
takes over when the record did not change for `stale_seconds` of its own clock, or at once where it
can see that the owner's process is gone. Every commit goes through the record, so that an owner who
was taken over commits nothing. Deliberately knows nothing of manifests: it commits bytes to a key.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from infra.background import BackgroundProcess, is_running, start_time
from infra.object_store import ObjectStore, StoreError

log = logging.getLogger(__name__)

RECORD = "owner.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    beat_seconds: float = 5.0
    stale_seconds: float = 60.0
    """A record that did not change for so long has no owner any more."""

    @property
    def fence_seconds(self) -> float:
        """An owner whose heartbeat is older writes nothing: earlier than anybody takes over."""
        return 0.75 * self.stale_seconds


class OwnedElsewhere(ValueError):
    """Another process owns the run. The message says which and what to do."""


class OwnershipLost(RuntimeError):
    """This process owned the run and does not any more: nothing it does may count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerRecord:
    token: int
    """Fencing token: goes up by one with each owner."""
    holder: str
    """One taking of the run, by a random id."""
    host: str
    place: str
    """Boot and process-id space: in the same place a pid can be looked up."""
    pid: int
    process_started: str
    since: str
    """ISO 8601, for people only."""
    num_beats: int = 0
    is_released: bool = False
    pending_key: str = ""
    pending_text: str = ""
    """A commit that this record decided and that may not lie at its key yet."""


@dataclass(slots=True)
class _Held:
    record: OwnerRecord
    etag: str
    beaten_at: float


class Ownership:
    """This process owns the run. Use `owned`."""

    def __init__(self, store: ObjectStore, key: str, timing: Timing, held: _Held) -> None:
        self._store = store
        self._key = key
        self._timing = timing
        self._held = held
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._is_lost = False
        self._is_settled = True
        """The record's commit, if it has one, lies at its key."""

    @property
    def token(self) -> int:
        return self._held.record.token

    def check(self) -> None:
        """Raises `OwnershipLost` where another may own the run by now."""
        age = _now() - self._held.beaten_at
        if self._is_lost or age > self._timing.fence_seconds:
            raise OwnershipLost(self._lost_message(age))

    def commit(self, key: str, data: bytes) -> bool:
        """Writes `data` to `key` if nothing is there; False where other data is.

        Decided by one swap of the record: whoever writes the record next, this owner or one who
        takes over, finishes it first. An owner who was taken over before raises `OwnershipLost`.
        """
        self.check()
        found = self._store.get_with_etag(key)
        if found is not None:
            return found[0] == data
        with self._lock:
            self._swap(replace(self._settled(), pending_key=key, pending_text=data.decode()))
            self._is_settled = False
            is_there = self._store.put_if_absent(key, data) or self._store.get_bytes(key) == data
            self._is_settled = True
            return is_there

    def beat(self) -> None:
        """Shows that the owner lives."""
        with self._lock:
            record = self._settled()
            self._swap(replace(record, num_beats=record.num_beats + 1))

    def beat_until_released(self) -> None:
        while not self._ended.wait(self._timing.beat_seconds):
            try:
                self.beat()
            except OwnershipLost:
                return
            except StoreError as error:  # `check` gives up when it lasts too long
                log.warning("no heartbeat could be written: %s", error)

    def release(self) -> None:
        """Lets the next owner in at once."""
        self._ended.set()
        if self._is_lost:
            return
        try:
            with self._lock:
                self._swap(replace(self._settled(), is_released=True))
        except (StoreError, OwnershipLost) as error:
            log.warning("the run could not be released, the next start finds out: %s", error)

    def _settled(self) -> OwnerRecord:
        """The record that is held, without its commit: that lies at its key."""
        record = self._held.record
        if not self._is_settled:
            _finish_commit(self._store, record)
            self._is_settled = True
        return replace(record, pending_key="", pending_text="")

    def _swap(self, record: OwnerRecord) -> None:
        """Puts `record` in place of the one that this owner wrote last.

        What counts is what lies there afterwards: the answer to a write may get lost. A second try
        goes over such a write of this owner's own, whose commit was decided all the same.
        """
        started, etag = _now(), self._held.etag
        for _ in range(2):
            problem = self._put_record(record, etag)
            found = self._store.get_with_etag(self._key)
            there = _parse(found[0]) if found else None
            if found is None or there is None or there.holder != record.holder:
                break
            if there == record:
                self._held = _Held(record, found[1], started)
                return
            if problem is not None:
                raise problem
            _finish_commit(self._store, there)
            etag = found[1]
        self._is_lost = True
        raise OwnershipLost(self._lost_message(0.0))

    def _put_record(self, record: OwnerRecord, etag: str) -> StoreError | None:
        try:
            self._store.put_if_match(self._key, _json(record), etag)
        except StoreError as error:
            return error
        return None

    def _lost_message(self, age: float) -> str:
        run = self._key.removesuffix(f"/{RECORD}")
        seen = f"its last heartbeat is {age:.0f} s old" if age else "another process took it over"
        return (
            f"this process does not own the run {run!r} any more: {seen}; expected to be its only "
            "owner. Nothing was committed since; start the run again if no other process trains it"
        )


@contextmanager
def owned(store: ObjectStore, run: str, *, timing: Timing | None = None) -> Iterator[Ownership]:
    """This process as the run's only owner; raises `OwnedElsewhere` where there is a live one."""
    timing = timing or Timing()
    ownership = _take(store, f"{run}/{RECORD}", timing)
    beats = threading.Thread(target=ownership.beat_until_released, daemon=True, name="heartbeat")
    beats.start()
    try:
        yield ownership
    finally:
        ownership.release()
        beats.join()


def read_owner(store: ObjectStore, run: str) -> OwnerRecord | None:
    """The record of the run's present or last owner."""
    found = store.get_with_etag(f"{run}/{RECORD}")
    return _parse(found[0]) if found else None


def is_known_dead(record: OwnerRecord) -> bool:
    """Whether this machine can see that the owner is gone; False where it cannot tell."""
    return record.is_released or (record.place == _place() and not _runs_here(record))


def lives(store: ObjectStore, run: str, record: OwnerRecord, timing: Timing | None = None) -> bool:
    """Whether the owner of the record trains; one on another machine is watched for a heartbeat."""
    if record.is_released or record.place == _place():
        return not is_known_dead(record)
    deadline = _now() + 3.0 * (timing or Timing()).beat_seconds
    while _now() < deadline:
        time.sleep(0.2)
        latest = read_owner(store, run)
        if latest != record:
            return latest is not None and not latest.is_released
    return False


def _take(store: ObjectStore, key: str, timing: Timing) -> Ownership:
    started = _now()
    found = store.get_with_etag(key)
    if found is None:
        mine = _new_record(token=1)
        is_mine = store.put_if_absent(key, _json(mine))
    else:
        record, etag = _await_end(store, key, _parse(found[0]), found[1], timing)
        _finish_commit(store, record)
        started = _now()
        mine = _new_record(token=record.token + 1)
        is_mine = store.put_if_match(key, _json(mine), etag)
    now_there = store.get_with_etag(key)
    if not is_mine or now_there is None or _parse(now_there[0]).holder != mine.holder:
        raise OwnedElsewhere(_refusal(key, _parse(now_there[0]) if now_there else mine))
    return Ownership(store, key, timing, _Held(mine, now_there[1], started))


def _finish_commit(store: ObjectStore, record: OwnerRecord) -> None:
    """Writes what the record decided, if that is not there yet."""
    if record.pending_key:
        store.put_if_absent(record.pending_key, record.pending_text.encode())


def _await_end(
    store: ObjectStore, key: str, record: OwnerRecord, etag: str, timing: Timing
) -> tuple[OwnerRecord, str]:
    """The last record of an owner who is gone; raises `OwnedElsewhere` where he lives."""
    if is_known_dead(record):
        return record, etag
    if record.place == _place():
        raise OwnedElsewhere(_refusal(key, record))
    log.warning(
        "%s belongs to process %d on %s: watching for %.0f s whether it lives",
        key, record.pid, record.host, timing.stale_seconds,
    )  # fmt: skip
    deadline = _now() + timing.stale_seconds
    while _now() < deadline:
        time.sleep(min(1.0, timing.beat_seconds))
        found = store.get_with_etag(key)
        if found is None or found[1] != etag:
            latest = _parse(found[0]) if found else record
            if found and latest.is_released:
                return latest, found[1]
            raise OwnedElsewhere(_refusal(key, latest))
    return record, etag


def _refusal(key: str, record: OwnerRecord) -> str:
    run = key.removesuffix(f"/{RECORD}")
    return (
        f"the run {run!r} is being trained by another process: {record.pid} on {record.host}, since "
        f"{record.since}; wait for it or end it (the run goes on where it was), or choose another "
        "name with --run"
    )


def _new_record(*, token: int) -> OwnerRecord:
    return OwnerRecord(
        token=token,
        holder=uuid.uuid4().hex,
        host=platform.node(),
        place=_place(),
        pid=os.getpid(),
        process_started=start_time(os.getpid()),
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _runs_here(record: OwnerRecord) -> bool:
    process = BackgroundProcess(pid=record.pid, started=record.process_started, log_file="")
    return is_running(process)


def _place() -> str:
    """This boot and this space of process ids; the host's name where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def _now() -> float:
    """Seconds that also pass while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def _json(record: OwnerRecord) -> bytes:
    return json.dumps(asdict(record), indent=1).encode()


def _parse(data: bytes) -> OwnerRecord:
    return OwnerRecord(**json.loads(data))
