"""Who owns a run: one at a time, by heartbeat and token, the same in a folder and in S3."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from s3_servers import BUCKET

from infra.fenced_store import FencedStore
from infra.object_store import ObjectStore, open_store
from infra.ownership import OwnedElsewhere, OwnershipLost, Timing, owned, read_owner

QUICK = Timing(beat_seconds=0.05, stale_seconds=0.6)
HOLDER = """
import sys, time
from infra.object_store import open_store
from infra.ownership import owned
with owned(open_store(sys.argv[1]), "demo"):
    print("owned", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store(str(tmp_path / "store"))
    request.getfixturevalue("s3_environment")
    return open_store(f"s3://{BUCKET}/{tmp_path.name}", cache=tmp_path / "cache")


def change_record(store: ObjectStore, **changes: object) -> None:
    """As another process or machine would leave the record."""
    record = json.loads(store.get_bytes("demo/owner.json"))
    store.put_bytes("demo/owner.json", json.dumps(record | changes).encode())


def start_holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "owned\n"
    return process


def test_a_second_owner_is_refused_by_name_of_the_first(store: ObjectStore) -> None:
    with owned(store, "demo"):
        with pytest.raises(OwnedElsewhere, match=rf"trained by another process: {os.getpid()} on"):
            with owned(store, "demo"):
                pass


def test_each_owner_has_a_higher_token(store: ObjectStore) -> None:
    tokens = []
    for _ in range(3):
        with owned(store, "demo") as ownership:
            tokens.append(ownership.token)
    assert tokens == [1, 2, 3]


def test_a_killed_owner_is_followed_at_once(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with owned(open_store(str(tmp_path)), "demo") as ownership:
        assert ownership.token == 2


def test_an_owner_that_is_stopped_but_lives_is_not_followed(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    holder.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(OwnedElsewhere, match=f"process: {holder.pid} on"):
            with owned(open_store(str(tmp_path)), "demo"):
                pass
    finally:
        holder.kill()
        holder.wait()


def test_an_owner_elsewhere_without_heartbeat_is_followed(store: ObjectStore) -> None:
    with owned(store, "demo"):
        pass
    change_record(store, place="another machine", is_released=False)
    with owned(store, "demo", timing=QUICK) as ownership:
        assert ownership.token == 2


def test_an_owner_elsewhere_with_a_heartbeat_is_not_followed(store: ObjectStore) -> None:
    with owned(store, "demo"):
        pass
    change_record(store, place="another machine", host="gpu-7", is_released=False)
    beats = iter(range(1000))
    quick = QuickWatch(store, lambda: change_record(store, num_beats=next(beats)))
    with pytest.raises(OwnedElsewhere, match="on gpu-7"):
        with owned(quick, "demo", timing=QUICK):
            pass


class QuickWatch(FencedStore):
    """The store, where the other owner beats before each look."""

    def __init__(self, store: ObjectStore, before_look: Callable[[], None]) -> None:
        self._behind = store
        self._before_look = before_look

    @property
    def _store(self) -> ObjectStore:
        self._before_look()
        return self._behind


def test_an_owner_who_was_taken_over_commits_nothing(store: ObjectStore) -> None:
    with owned(store, "demo") as ownership:
        change_record(store, holder="another", token=2)
        with pytest.raises(OwnershipLost, match="another process took it over"):
            ownership.commit("demo/rl-1/manifest-step-00001.json", b"{}")
        with pytest.raises(OwnershipLost):
            FencedStore(store, ownership).put_bytes("demo/rl-1/batch", b"stale")
    assert not store.exists("demo/rl-1/manifest-step-00001.json")
    assert not store.exists("demo/rl-1/batch")


def test_an_owner_without_a_late_heartbeat_stops_itself(store: ObjectStore) -> None:
    slow = Timing(beat_seconds=60, stale_seconds=0.2)
    with owned(store, "demo", timing=slow) as ownership:
        time.sleep(0.2)
        with pytest.raises(OwnershipLost, match="its last heartbeat is"):
            FencedStore(store, ownership).get_bytes("demo/run.json")


def test_a_heartbeat_keeps_the_ownership(store: ObjectStore) -> None:
    with owned(store, "demo", timing=QUICK) as ownership:
        time.sleep(1.0)
        ownership.check()
        record = read_owner(store, "demo")
        assert record is not None
        assert record.num_beats > 0


def test_a_fact_is_committed_once_whoever_asks(store: ObjectStore) -> None:
    with owned(store, "demo") as ownership:
        assert ownership.commit("demo/a", b"one")
        assert not ownership.commit("demo/a", b"two")
    assert store.get_bytes("demo/a") == b"one"


def test_a_commit_that_was_decided_is_finished_by_the_next_owner(store: ObjectStore) -> None:
    with owned(store, "demo"):
        pass
    change_record(store, pending_key="demo/a", pending_text="decided", pid=2**22 + 1)
    with owned(store, "demo"):
        assert store.get_bytes("demo/a") == b"decided"


def test_a_released_run_is_free_on_another_machine_too(store: ObjectStore) -> None:
    with owned(store, "demo"):
        pass
    change_record(store, place="another machine")
    with owned(store, "demo") as ownership:
        assert ownership.token == 2
