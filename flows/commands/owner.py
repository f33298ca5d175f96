"""`rstar2 owner`: which process trains a run, asked of the storage alone."""

from __future__ import annotations

from flows.commands.options import Run, Storage


def owner(run: Run, /, *, storage: Storage = "runs") -> int:
    """Say which process trains a run. Exit code 0 where one does, 1 where none does.

    Takes a few seconds where the owner is on another machine: it is watched for a heartbeat.

    Example: rstar2 owner demo
    """
    from infra.object_store import open_store
    from infra.ownership import lives, read_owner

    store = open_store(storage)
    record = read_owner(store, run)
    if record is None:
        print(f"no process has trained a run {run!r} in {store.uri}")
        return 1
    where = f"process {record.pid} on {record.host} since {record.since} (owner {record.token})"
    if lives(store, run, record):
        print(f"run {run} is being trained by {where}")
        return 0
    print(f"no process trains the run {run}; the last was {where}")
    return 1
