"""What must hold after a fault: nothing left behind, nothing sampled again, the same run in the end.

Reads the ledgers and catalogues of two runs and the process table; writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import duckdb
from crash_bench import MARK, RUN, Bench, process_state
from sandbox_daemons import is_left_alone

from data_catalog.records import Manifest, manifest_from_json
from infra.object_store import ObjectStore
from infra.sandbox.resident import daemon_status
from rstar2.rollout_files import read_rollouts
from tasks.ledger import Ledger, catalog_path

TIMES = {"created_at", "started_at", "ended_at"}
OF_THIS_FILE = {"manifest_id", "body", "config", "sha256", "num_bytes"}
"""Columns of the catalogue that differ between equal runs: numbers within the file, the address of the
storage, and hashes of rollouts, which hold how long each tool call took. Weights are compared whole."""


def manifests(store: ObjectStore) -> dict[str, Manifest]:
    """The committed manifests of the run, by key."""
    keys = [key for key in store.list(f"{RUN}/") if "/manifest-" in key]
    return {key: manifest_from_json(store.get_bytes(key)) for key in keys}


def committed_rollouts(store: ObjectStore) -> set[str]:
    """Keys of the rollouts that count: those which a manifest names."""
    found = manifests(store).values()
    return {m.parts["rollouts"].uri for m in found if "rollouts" in m.parts}


def differences(bench: Bench, reference: Bench) -> list[str]:
    """Where the finished run differs from the undisturbed one."""
    ours, theirs = bench.open_store(), reference.open_store()
    seen = manifests(ours)
    wanted = manifests(theirs)
    found = [f"no {key}" for key in sorted(wanted.keys() - seen.keys())]
    found += [f"too many: {key}" for key in sorted(seen.keys() - wanted.keys())]
    if found:
        return found
    found += [f"other {name}" for name in _other_hashes(seen, wanted)]
    if _rollouts(ours, seen.values()) != _rollouts(theirs, wanted.values()):
        found.append("other rollouts")
    if _final_weights(ours) != _final_weights(theirs):
        found.append("other weights")
    return found + _catalogue_differences(catalog_path(ours), catalog_path(theirs))


def orphans(bench: Bench, *, serving: int) -> list[str]:
    """Processes that a run has left behind: not servers, the sandbox or the serving process."""
    found = []
    mark = f"{MARK}={bench.settings.state_folder}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            is_ours = mark in (folder / "environ").read_bytes()
        except OSError:  # gone meanwhile
            continue
        is_meant = int(folder.name) == serving or "infra.sandbox" in words or "server" in words
        if is_ours and not is_meant and process_state(int(folder.name)) not in ("Z", ""):
            found.append(f"{folder.name} {words[:80]}")
    if daemon_status(bench.settings.state_folder) and not is_left_alone(
        bench.settings.state_folder, seconds=1.0
    ):
        found.append("sandbox calls")
    return found


def _other_hashes(ours: dict[str, Manifest], theirs: dict[str, Manifest]) -> list[str]:
    """Checkpoints, batches and problem sets whose content differs."""
    return [
        f"{name} of {key}"
        for key, manifest in ours.items()
        for name, part in manifest.parts.items()
        if name != "rollouts" and part.sha256 != theirs[key].parts[name].sha256
    ]


def _rollouts(store: ObjectStore, found: Iterable[Manifest]) -> list[tuple[object, ...]]:
    """Every committed rollout: what was sampled and what it earned, not how long its tools took."""
    parts = [m.parts["rollouts"] for m in found if "rollouts" in m.parts]
    groups = [group for part in parts for group in read_rollouts(store.local_path(part))]
    return sorted(
        (r.rollout_id, r.token_ids.tobytes(), r.status, r.reward or 0.0, r.reward is None)
        for group in groups
        for r in group.rollouts
    )


def _final_weights(store: ObjectStore) -> bytes:
    result = Ledger(store, RUN).stage_result("rl-3")
    assert result is not None, "the run is complete"
    return (store.local_path(result.checkpoint) / "model" / "model.safetensors").read_bytes()


def _catalogue_differences(ours: Path, theirs: Path) -> list[str]:
    with (
        duckdb.connect(ours, read_only=True) as one,
        duckdb.connect(theirs, read_only=True) as other,
    ):
        tables = [name for (name,) in other.execute("show tables").fetchall()]
        return [
            f"other {table} in the catalogue"
            for table in tables
            if _rows(one, table) != _rows(other, table)
        ]


def _rows(connection: duckdb.DuckDBPyConnection, table: str) -> list[tuple[object, ...]]:
    described = connection.execute(f"describe {table}").fetchall()
    names = [
        row[0]
        for row in described
        if row[0] not in TIMES | OF_THIS_FILE and not row[0].endswith("_seconds")
    ]
    return connection.execute(f"select {', '.join(names)} from {table} order by all").fetchall()
