"""The ledger of one run: its committed manifests, and nothing else is true.

Reads and writes small JSON manifests through the object store, one for each step, stage, chunk of the
filter, filter and evaluation, written last and only once. A part (rollouts, batch, checkpoint) that no
manifest names does not exist. One owner per run (`infra.ownership`): whoever was taken over commits
nothing.
Deliberately does not know Prefect: a run is resumed from here, whatever Prefect's state says.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from data_catalog.catalog import CatalogError, publish
from data_catalog.records import Manifest, ManifestKind, manifest_from_json, manifest_json
from infra.fenced_store import FencedStore
from infra.health import ResourceHealth
from infra.object_store import ObjectStore, StoreError, open_store
from infra.ownership import Ownership, owned
from rstar2.config import ConfigError, RecipeConfig
from rstar2.profiles import config_difference, config_hash, difference, stored_config
from rstar2.step_metrics import StepMetrics
from rstar2.types import ArtifactRef, GateDecision, GateVerdict, Losses, Score, StageResult
from tasks.runs import gate_command, resume_command

log = logging.getLogger(__name__)

FINAL = "final"
"""Name of the evaluation that ends a run."""
BASE = "base"
"""Name of the evaluation of the model that SFT starts from."""
SFT = "sft"
FILTER = "difficulty-filter"
EVALUATION = "evaluation"


class LedgerError(ValueError):
    """The run cannot be started or continued as asked. The message says what to do."""


class Ledger:
    """Committed manifests of one run, in memory and in the store. Use `open_ledger`."""

    # Slots keep Prefect from encoding the whole ledger as a flow parameter.
    __slots__ = ("_manifests", "_ownership", "run", "store")

    def __init__(self, store: ObjectStore, run: str, ownership: Ownership | None = None) -> None:
        self.store: ObjectStore = FencedStore(store, ownership) if ownership else store
        self._ownership = ownership
        self.run = run
        self._manifests = read_manifests(store, run)

    def key(self, stage: str, *parts: str) -> str:
        """Store key of something that belongs to a stage of this run."""
        return "/".join((self.run, stage, *parts))

    def commit(
        self,
        kind: ManifestKind,
        *,
        stage: str = "",
        step: int | None = None,
        name: str = "",
        parts: Mapping[str, ArtifactRef] | None = None,
        values: Mapping[str, object] | None = None,
    ) -> Manifest:
        """Writes the manifest that makes its parts true. Raises if it was committed before.

        `name` tells facts of one kind and stage apart that have no step.
        """
        manifest = Manifest(
            run=self.run,
            stage=stage,
            kind=kind,
            step=step,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            token=self._ownership.token if self._ownership else 0,
            parts=dict(parts or {}),
            values=dict(values or {}),
        )
        key = self._manifest_key(kind, stage, step, name)
        if not self._put_once(key, manifest_json(manifest)):
            raise LedgerError(
                f"{key} is committed already: another process trains the run {self.run!r}; "
                "stop one of the two, then start this one again"
            )
        self._manifests[key] = manifest
        return manifest

    def _put_once(self, key: str, data: bytes) -> bool:
        if self._ownership is None:
            return self.store.put_if_absent(key, data)
        return self._ownership.commit(key, data)

    def find(
        self, kind: str, *, stage: str = "", step: int | None = None, name: str = ""
    ) -> Manifest | None:
        return self._manifests.get(self._manifest_key(kind, stage, step, name))

    def _manifest_key(self, kind: str, stage: str, step: int | None, name: str) -> str:
        if not stage:
            return f"{self.run}/run.json"
        suffix = f"-{step:05d}" if step is not None else f"-{name}" if name else ""
        return self.key(stage, f"manifest-{kind}{suffix}.json")

    def steps(self, stage: str, kind: str = "step") -> list[Manifest]:
        """The stage's committed manifests of `kind` that have a step, in order."""
        found = [m for m in self._manifests.values() if m.stage == stage and m.kind == kind]
        return sorted(found, key=lambda m: m.step or 0)

    def series(self, stage: str) -> list[StepMetrics]:
        """What the stage's gate reads."""
        names = {field.name for field in fields(StepMetrics)}
        rows = [m.values["metrics"] for m in self.steps(stage)]
        return [StepMetrics(**{k: v for k, v in row.items() if k in names}) for row in rows]

    def commit_result(self, result: StageResult, healths: Sequence[ResourceHealth]) -> None:
        """How a stage ended, with the health of its resources then."""
        resources = [asdict(health) for health in healths]
        values = asdict(result) | {"resources": resources}
        self.commit("stage", stage=result.stage, values=values)

    def healths(self, stage: str) -> tuple[ResourceHealth, ...]:
        """Of a finished stage's resources at its end."""
        manifest = self.find("stage", stage=stage)
        rows = manifest.values.get("resources", []) if manifest else []
        return tuple(ResourceHealth(**row) for row in rows)

    def step_losses(self, stage: str, kind: str = "step") -> Losses:
        """What the stage's committed steps lost and redid, over every process that took them."""
        total = Losses()
        for manifest in self.steps(stage, kind):
            total = total.plus(Losses(**manifest.values.get("losses", {})))
        return total

    def stage_result(self, stage: str) -> StageResult | None:
        """How a finished stage ended, or None."""
        manifest = self.find("stage", stage=stage)
        return stage_result_from(manifest.values) if manifest else None

    def stage_names(self) -> list[str]:
        """The stages that train, in order."""
        return [SFT, *self.config().stages]

    def scores(self) -> dict[str, tuple[Score, ...]]:
        """Every evaluation's scores, by the checkpoint they were measured after."""
        found = {}
        for name in [BASE, *(n for s in self.stage_names() for n in (s, f"{s}-all")), FINAL]:
            manifest = self.find("evaluation", stage=EVALUATION, name=name)
            if manifest is not None:
                found[name] = tuple(Score(**row) for row in manifest.values["scores"])
        return found

    def command(self) -> str:
        """The command line that goes on with the run."""
        manifest = self.find("run")
        assert manifest is not None, "the run is registered"
        stored = str(manifest.values["command"])
        return stored or resume_command(manifest.values["profile"], self.run, ())

    def gate_command(self, verb: Literal["show", "approve", "reject"]) -> str:
        """The command line about the run's gates."""
        return gate_command(verb, self.run, self.store.uri)

    def config(self) -> RecipeConfig:
        """The configuration that the run was started with."""
        manifest = self.find("run")
        if manifest is None:
            raise LedgerError(
                f"no run {self.run!r} in {self.store.uri}: expected one of {_known_runs(self.store)}"
            )
        try:
            return stored_config(self.run, manifest.values["config"])
        except ConfigError as error:
            raise LedgerError(
                f"the run {self.run!r} was started by another version of rstar2, whose settings this "
                f"one does not read: {error}\nuse that version to go on with it; what it committed "
                "stays in the storage and the catalogue"
            ) from None

    def publish(self, *, force: bool = False) -> None:
        """Brings the catalogue up to the committed manifests; a busy catalogue is not an error."""
        try:
            publish(
                catalog_path(self.store),
                list(self._manifests.values()),
                self.store.local_path,
                force=force,
                everything=lambda: all_manifests(self.store),
            )
        except (CatalogError, StoreError) as error:
            log.warning("the catalogue was not published, the run goes on: %s", error)


@contextmanager
def open_ledger(storage: str, run: str) -> Iterator[Ledger]:
    """The ledger of `run` with this process as its only owner, on a store that can tell."""
    store = open_store(storage)
    store.probe()
    with owned(store, run) as ownership:
        yield Ledger(store, run, ownership)


def start_run(
    ledger: Ledger, config: RecipeConfig, inputs: Mapping[str, str], *, command: str = ""
) -> None:
    """Registers a new run, or refuses to continue one under other settings or other data.

    `inputs` maps the files that the run reads to their sha256; `command` is what goes on with it.
    """
    known = ledger.find("run")
    if known is None:
        values = {
            "profile": config.profile,
            "config_hash": config_hash(config),
            "config": config.model_dump_json(),
            "inputs": dict(inputs),
            "command": command,
        }
        ledger.commit("run", values=values)
        return
    check_unchanged(ledger, config, inputs)


def check_unchanged(ledger: Ledger, config: RecipeConfig, inputs: Mapping[str, str]) -> None:
    """Raises `LedgerError` naming each setting or file that differs from the run's own.

    A setting that came after the run was started counts as its default.
    """
    known = ledger.find("run")
    assert known is not None, "the run is registered"
    started_with = ledger.config().model_dump(mode="json")
    changes = config_difference(started_with, config.model_dump(mode="json"))
    changes += difference(known.values["inputs"], inputs)
    if changes:
        raise LedgerError(
            f"the run {ledger.run!r} was started with other settings:\n  "
            + "\n  ".join(changes)
            + "\nundo the change to go on with it, or start a new run with another name "
            "(--run NAME)"
        )


def num_dropped(ledger: Ledger) -> tuple[int, int] | None:
    """Problems that the difficulty filter dropped, of how many; None before it ran."""
    manifest = ledger.find("filter", stage=FILTER)
    if manifest is None:
        return None
    decisions = [verdict["decision"] for verdict in manifest.values["verdicts"]]
    return decisions.count("drop"), len(decisions)


def run_names(store: ObjectStore) -> list[str]:
    """The runs in a store by name; `folder/name` for one of a storage that lies inside it."""
    ending = "/run.json"
    return sorted(key.removesuffix(ending) for key in store.list("") if key.endswith(ending))


def read_manifests(store: ObjectStore, run: str) -> dict[str, Manifest]:
    """What the run has committed, by key."""
    keys = sorted(key for key in store.list(f"{run}/") if _is_manifest(key))
    return {key: manifest_from_json(store.get_bytes(key)) for key in keys}


def all_manifests(store: ObjectStore) -> list[Manifest]:
    """Of every run of the store: what its catalogue is made from where it is lost."""
    names = [name for name in run_names(store) if "/" not in name]
    return [m for name in names for m in read_manifests(store, name).values()]


def catalog_path(store: ObjectStore) -> Path:
    """Where the store's catalogue is published on this machine."""
    return store.local_root / "catalog.duckdb"


def gate_decision_from(values: Mapping[str, Any]) -> GateDecision:
    """A `GateDecision` from a manifest's values."""
    return GateDecision(
        verdict=GateVerdict(values["verdict"]),
        reason=values["reason"],
        evidence=values["evidence"],
    )


def stage_result_from(values: Mapping[str, object]) -> StageResult:
    """A `StageResult` from its manifest's values."""
    tree = json.loads(json.dumps(values))
    return StageResult(
        stage=tree["stage"],
        checkpoint=ArtifactRef(**tree["checkpoint"]),
        problem_set=ArtifactRef(**tree["problem_set"]) if tree["problem_set"] else None,
        last_step=tree["last_step"],
        gate=gate_decision_from(tree["gate"]),
        scores=tuple(Score(**score) for score in tree["scores"]),
        losses=Losses(**tree.get("losses", {})),
    )


def _known_runs(store: ObjectStore) -> str:
    """In words; a run of a storage inside this one with the option that reaches it."""
    known = []
    for path in run_names(store):
        inside, _, name = path.rpartition("/")
        known.append(f"{name} (with --storage {store.uri}/{inside})" if inside else name)
    return ", ".join(known) or "(none)"


def _is_manifest(key: str) -> bool:
    name = key.rsplit("/", 1)[-1]
    return name == "run.json" or name.startswith("manifest-")
