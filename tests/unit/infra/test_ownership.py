"""Who owns a run: one at a time, by heartbeat and token, the same in a folder and in S3."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.fenced_store import FencedStore
from infra.object_store import ObjectStore, StoreError, open_store
from infra.ownership import (
    OwnedElsewhere,
    Ownership,
    OwnershipLost,
    Timing,
    owned,
    read_owner,
)

QUICK = Timing(beat_seconds=0.05, stale_seconds=0.6)
BY_HAND = Timing(beat_seconds=3600.0)
HOLDER = """
import sys, time
from infra.object_store import open_store
from infra.ownership import owned
with owned(open_store(sys.argv[1]), "demo"):
    print("owned", flush=True)
    time.sleep(60)
"""


def change_record(store: ObjectStore, **changes: object) -> None:
    """As another process or machine would leave the record."""
    record = json.loads(store.get_bytes("demo/owner.json"))
    store.put_bytes("demo/owner.json", json.dumps(record | changes).encode())


class Unsteady(FencedStore):
    """The store behind a network that loses things, or beside an owner who beats."""

    def __init__(self, store: ObjectStore) -> None:
        self._behind = store
        self.before_later_looks: Callable[[], None] = lambda: None
        self.before_facts: Callable[[], None] = lambda: None
        self.lost_answers: list[object] = []
        """For the next writes of the record: what is said of them once they are done."""
        self.is_cut = False
        """Nothing is written any more."""
        self._num_looks = 0

    @property
    def _store(self) -> ObjectStore:
        return self._behind

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        self._num_looks += 1
        if self._num_looks > 1:
            self.before_later_looks()
        return super().get_with_etag(key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        self._refuse_if_cut()
        is_written = super().put_if_match(key, data, etag)
        if self.lost_answers:
            answer = self.lost_answers.pop()
            if isinstance(answer, StoreError):
                raise answer
            return bool(answer)
        return is_written

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if not key.endswith("owner.json"):
            self._refuse_if_cut()
            self.before_facts()
        return super().put_if_absent(key, data)

    def _refuse_if_cut(self) -> None:
        if self.is_cut:
            raise LOST


LOST = StoreError("S3 failed", seen="a lost answer", expected="an answer", next_step="Again.")


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
    watched = Unsteady(store)
    beats = itertools.count(1)
    watched.before_later_looks = lambda: change_record(store, num_beats=next(beats))
    with pytest.raises(OwnedElsewhere, match="on gpu-7"):
        with owned(watched, "demo", timing=QUICK):
            pass
    record = read_owner(store, "demo")
    assert record is not None
    assert (record.host, record.token) == ("gpu-7", 1)


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


def test_a_heartbeat_is_written_again_and_again(store: ObjectStore) -> None:
    with owned(store, "demo", timing=Timing(beat_seconds=0.01)) as ownership:
        deadline = time.monotonic() + 60
        while (record := read_owner(store, "demo")) is None or record.num_beats < 3:
            assert time.monotonic() < deadline, record
            time.sleep(0.01)
        ownership.check()


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


@pytest.mark.parametrize("answer", [False, LOST])
def test_a_write_whose_answer_is_lost_loses_no_ownership(
    store: ObjectStore, answer: object
) -> None:
    unsteady = Unsteady(store)
    with owned(unsteady, "demo", timing=BY_HAND) as ownership:
        for _ in range(3):
            unsteady.lost_answers = [answer]
            ownership.beat()
        unsteady.lost_answers = [answer]
        assert ownership.commit("demo/a", b"one")
        ownership.check()
        unsteady.lost_answers = [answer]
    record = read_owner(store, "demo")
    assert record is not None
    assert (record.token, record.num_beats, record.is_released) == (1, 3, True)
    assert store.get_bytes("demo/a") == b"one"


def test_a_write_that_failed_is_told_and_loses_no_ownership(store: ObjectStore) -> None:
    unsteady = Unsteady(store)
    with owned(unsteady, "demo", timing=BY_HAND) as ownership:
        unsteady.is_cut = True
        with pytest.raises(StoreError, match="a lost answer"):
            ownership.beat()
        with pytest.raises(StoreError, match="a lost answer"):
            ownership.commit("demo/a", b"one")
        unsteady.is_cut = False
        ownership.beat()
        assert not store.exists("demo/a")
        assert ownership.commit("demo/a", b"one")


@pytest.mark.parametrize("answer", [False, LOST])
def test_a_lost_answer_hides_no_other_owner(store: ObjectStore, answer: object) -> None:
    unsteady = Unsteady(store)
    with owned(unsteady, "demo", timing=BY_HAND) as ownership:
        change_record(store, holder="another", token=2)
        unsteady.lost_answers = [answer]
        with pytest.raises(OwnershipLost, match="another process took it over"):
            ownership.beat()


def decide_without_writing(ownership: Ownership, unsteady: Unsteady) -> None:
    """A commit that is decided by the record and then finds the network gone."""

    def cut() -> None:
        raise LOST

    unsteady.before_facts = cut
    with pytest.raises(StoreError):
        ownership.commit("demo/a", b"decided")
    unsteady.before_facts = lambda: None


def test_a_heartbeat_finishes_a_commit_that_was_decided(store: ObjectStore) -> None:
    unsteady = Unsteady(store)
    with owned(unsteady, "demo", timing=BY_HAND) as ownership:
        decide_without_writing(ownership, unsteady)
        assert not store.exists("demo/a")
        ownership.beat()
        assert store.get_bytes("demo/a") == b"decided"


def test_the_next_commit_finishes_the_one_before(store: ObjectStore) -> None:
    unsteady = Unsteady(store)
    with owned(unsteady, "demo", timing=BY_HAND) as ownership:
        decide_without_writing(ownership, unsteady)
        assert ownership.commit("demo/b", b"two")
        assert store.get_bytes("demo/a") == b"decided"
        assert ownership.commit("demo/a", b"decided")
        assert not ownership.commit("demo/a", b"other")


def test_a_release_finishes_a_commit_that_was_decided(store: ObjectStore) -> None:
    unsteady = Unsteady(store)
    with owned(unsteady, "demo", timing=BY_HAND) as ownership:
        decide_without_writing(ownership, unsteady)
    assert store.get_bytes("demo/a") == b"decided"


def test_what_a_release_cannot_finish_is_left_to_the_next_owner(store: ObjectStore) -> None:
    unsteady = Unsteady(store)
    with owned(unsteady, "demo", timing=BY_HAND) as ownership:
        decide_without_writing(ownership, unsteady)
        unsteady.is_cut = True
    assert not store.exists("demo/a")
    change_record(store, pid=2**22 + 1)
    with owned(store, "demo"):
        assert store.get_bytes("demo/a") == b"decided"


def test_a_heartbeat_waits_for_a_commit_in_flight(store: ObjectStore) -> None:
    unsteady = Unsteady(store)
    is_written, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_written.set()
        assert may_go_on.wait(60)

    unsteady.before_facts = hold
    with owned(unsteady, "demo", timing=BY_HAND) as ownership:
        commit = threading.Thread(target=ownership.commit, args=("demo/a", b"one"))
        beat = threading.Thread(target=ownership.beat)
        commit.start()
        assert is_written.wait(60)
        beat.start()
        beat.join(0.2)
        record = read_owner(store, "demo")
        assert record is not None
        assert (record.pending_key, record.num_beats) == ("demo/a", 0)
        may_go_on.set()
        commit.join()
        beat.join()
        assert store.get_bytes("demo/a") == b"one"
        record = read_owner(store, "demo")
        assert record is not None
        assert (record.pending_key, record.num_beats) == ("", 1)
