"""What a run hands to the catalogue: one record for each committed manifest.

A manifest is written last and names its parts with their hashes; a part that no manifest names does
not exist. This file fixes the record and its JSON form. It deliberately does not say where manifests
lie nor how they are committed: that is `tasks.ledger`.

| kind | parts | values |
|---|---|---|
| `run` | | `profile`, `config_hash`, `config` (resolved, as JSON text), `inputs` (sha256 by \
file), `command` that goes on with it |
| `base` | `checkpoint`: the model that training starts from | `base`: its name in the profile |
| `conversations` | | what SFT trains on, where it is not generated: `num_conversations`, `dropped`, \
`sources` (counts by public set) |
| `checkpoint` | `checkpoint`: how far SFT is | `loss`, `num_steps` |
| `answer` | | `verdict`: a person's answer to a `hold`, `approve` or `reject`; `band` of the filter, \
where another than the run's was chosen |
| `problems` | `problems` | `stage`, `num_problems`, `quarantined`: rows with `problem_id`, `reason` |
| `problems` of the stage `curation` | `victims`: rows that `rstar2 ingest` left out | `name` of the \
file, `num_rows`, `num_kept`, `victims` by rule |
| `stage` | | a `StageResult`: how SFT or an RL stage ended; `resources`: their health then |
| `step` | `rollouts` (all sampled groups), `batch`, `checkpoint` if written | `metrics`, \
`kept_rollout_ids`, `dropped` (reason by problem), `gate`, `losses` |
| `chunk` | `rollouts` of the filter's next problems; its number is `step` | `tries` (counts by \
problem), `measured` (checkpoint, sampler, seed, verifier), `is_last`, `losses`, `resources` |
| `filter` | `problems`: those it kept | `checkpoint`, `band`, `verdicts`, `losses`; before there \
were chunks also the part `rollouts`, and `resources` |
| `evaluation` | `rollouts`; `problems`: the set it tried, or the first of | `name`, `scores`, \
`totals`, `losses`, `checkpoint` (none where it was taken after a step that stored none) |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from rstar2.types import ArtifactRef

ManifestKind = Literal[
    "run", "base", "conversations", "checkpoint", "problems", "step", "stage", "answer", "chunk",
    "filter", "evaluation",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A committed fact of a run, never changed. A run started afresh commits its keys anew."""

    run: str
    stage: str
    """`sft`, `rl-1`, …, `difficulty-filter`, `evaluation`; empty for the kind `run`."""
    kind: ManifestKind
    step: int | None = None
    """1-based, where the fact belongs to a step."""
    created_at: str
    """ISO 8601 with offset, when it was committed: with `key` the identity of a version."""
    token: int = 0
    """Fencing token of the run's owner who committed it; 0: no owner did (a person's answer)."""
    parts: Mapping[str, ArtifactRef] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    """Small values; dataclasses of `rstar2.types` may stand as they are."""

    @property
    def key(self) -> str:
        """Identity over all runs: `demo/rl-1/step/3`, `demo/rl-1/evaluation/12/held-out`."""
        step = [] if self.step is None else [str(self.step)]
        name = [str(self.values["name"])] if "name" in self.values else []
        return "/".join([self.run, self.stage, self.kind, *step, *name])

    @property
    def committed_at(self) -> datetime:
        """`created_at` in UTC, without offset, as the catalogue stores times."""
        return datetime.fromisoformat(self.created_at).astimezone(UTC).replace(tzinfo=None)


def manifest_json(manifest: Manifest) -> bytes:
    """Stable bytes: equal manifests give equal bytes in any process."""
    tree = {name: getattr(manifest, name) for name in _FIELDS}
    text = json.dumps(tree, default=_plain, sort_keys=True, separators=(",", ":"))
    return text.encode()


def manifest_from_json(data: bytes | str) -> Manifest:
    """The inverse of `manifest_json`; what was a dataclass in `values` is a dictionary now."""
    tree = json.loads(data)
    tree["parts"] = {name: ArtifactRef(**ref) for name, ref in tree["parts"].items()}
    return Manifest(**tree)


_FIELDS = ("run", "stage", "kind", "step", "created_at", "token", "parts", "values")


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(
        f"a manifest cannot hold {type(value).__name__} ({value!r}): expected JSON values, mappings "
        "or dataclasses; convert it where the manifest is made"
    )
