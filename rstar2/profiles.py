"""Profiles: a `RecipeConfig` from a TOML file and overrides, its identity, and what differs.

Reads a profile (shipped under `recipes/`, or a path) and `--set` overrides; writes nothing. Loads
neither torch nor prefect, so `rstar2 plan` answers at once.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from rstar2.config import ConfigError, RecipeConfig
from rstar2.config_section import Section
from rstar2.curation import CurationConfig
from rstar2.problems import is_hub_source


def profile_names() -> list[str]:
    """Names of the profiles that ship, sorted."""
    return sorted(path.stem for path in _recipes().glob("*.toml"))


def load_config(profile: str, overrides: Sequence[str] = ()) -> RecipeConfig:
    """The validated profile (a shipped name or a TOML path) with `key.path=value` overrides.

    Raises `ConfigError` naming the field, the value seen and what is allowed.
    """
    tree = _read_profile(profile)
    tree.setdefault("profile", Path(profile).stem)
    return _validated(profile, tree, overrides)


def problem_overrides(
    profile: str, problems: str | Path | None, columns: Sequence[str] = ()
) -> list[str]:
    """Overrides by which every stage and the evaluation read the user's source; none without one.

    `columns` holds `question=COLUMN` and `answer=COLUMN`, as `rstar2 run --map` takes them.
    """
    named = [_column_field(entry) for entry in columns]
    if problems is None:
        if columns:
            raise ConfigError(f"--map {columns[0]} names a column of no file: add --problems FILE")
        return []
    text = str(problems)
    if not text:
        raise ConfigError("--problems is empty: expected a file, a folder or hub:OWNER/NAME:SPLIT")
    source = text if is_hub_source(text) else Path(text).absolute().as_posix()
    stages = load_config(profile).stages
    keys = [f"stages.{name}.problems.source" for name in stages] + ["evaluation.problems"]
    places = [*(f"stages.{name}.problems" for name in stages), "evaluation"]
    return [
        *(f"{key}={_quoted(source)}" for key in keys),
        *(f"stages.{name}.shares={{}}" for name in stages),
        *(f"{place}.{field}={_quoted(column)}" for place in places for field, column in named),
    ]


def _quoted(text: str) -> str:
    """As a TOML string, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)


def _column_field(entry: str) -> tuple[str, str]:
    """The setting and the column of `question=problem`."""
    name, _, column = entry.partition("=")
    if name not in ("question", "answer") or not column:
        raise ConfigError(
            f"--map {entry}: expected question=COLUMN or answer=COLUMN, as in "
            "answer=reward_model.ground_truth"
        )
    return f"{name}_column", column


def override_config(config: RecipeConfig, overrides: Sequence[str]) -> RecipeConfig:
    """The configuration with `key.path=value` overrides, checked as a profile is."""
    return _validated(config.profile, config.model_dump(mode="json"), overrides)


def stored_config(run: str, text: str) -> RecipeConfig:
    """The configuration from its JSON; raises `ConfigError` where this version cannot read it."""
    return _validated(run, json.loads(text), ())


def _validated(profile: str, tree: dict[str, object], overrides: Sequence[str]) -> RecipeConfig:
    for override in overrides:
        _apply(tree, override)
    try:
        return RecipeConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(profile, error)) from None


def base_folder(base: str) -> Path:
    """The folder behind `model.base`: `shipped:NAME` lies beside the profiles."""
    name = base.removeprefix("shipped:")
    return _recipes() / name if name != base else Path(base)


NOT_IDENTITY = frozenset(
    {
        "profile",
        "storage",
        "hold_days",
        "filter.problems_per_chunk",
        "sandbox.address",
        "sandbox.num_slots",
        "sandbox.remembers_pure_calls",
        *(f"curation.{name}" for name in CurationConfig.model_fields),
    }
)
"""Settings that may change between two starts of one run, because no result can depend on them: what
a profile is called, where things are kept, how long a person is waited for; which sandbox runs the
calls, how many at once, and whether a pure one is run again; how much the filter samples before it
commits; how problem files were chosen from, since what a file holds is in the identity itself. The
sandbox's limits and its weakest isolation stay in the identity: whether a call times out or may see a
file decides rewards."""


def config_hash(config: RecipeConfig) -> str:
    """Identity of what the run computes: 16 hex digits."""
    tree = identity(config.model_dump(mode="json"))
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(tree: Mapping[str, object]) -> dict[str, object]:
    """The settings of a resolved configuration that results depend on, by dotted key.

    The order of the stages is one of them.
    """
    flat = {key: value for key, value in _flatten(tree).items() if key not in NOT_IDENTITY}
    stages = tree.get("stages")
    return flat | {"stages": list(stages) if isinstance(stages, Mapping) else stages}


def config_difference(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Lines `field: old -> new` between two resolved configurations, fields that matter only."""
    return difference(identity(old), identity(new))


def difference(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Lines `key: old -> new` between two flat mappings."""
    return [
        f"{key}: {old.get(key, '(absent)')!r} -> {new.get(key, '(absent)')!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def _flatten(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _recipes() -> Path:
    return Path(__file__).parent / "recipes"


def _read_profile(profile: str) -> dict[str, object]:
    path = Path(profile) if profile.endswith(".toml") else _recipes() / f"{profile}.toml"
    if not path.is_file():
        raise ConfigError(
            f"unknown profile {profile!r}: expected one of {', '.join(profile_names())}, "
            "or the path of a .toml file"
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _apply(tree: dict[str, object], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"override {override!r}: expected key.path=value, as in seed=3")
    *parents, leaf = key.strip().split(".")
    node = tree
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override {override!r}: {parent} is a value, not a table")
        node = child
    node[leaf] = _parse_value(text.strip())


def _parse_value(text: str) -> object:
    """TOML where it parses (numbers, booleans, lists), the text itself elsewhere."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(profile: str, error: ValidationError) -> str:
    lines = [f"profile {profile!r} is not valid:"]
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "(whole profile)"
        seen = "" if isinstance(item["input"], dict) else f" (seen: {item['input']!r})"
        if item["type"] == "extra_forbidden":
            names = _known_keys(item["loc"][:-1])
            near = difflib.get_close_matches(str(item["loc"][-1]), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names)}"
            lines.append(f"  {where}: unknown key{seen}; {hint}")
            continue
        lines.append(f"  {where}: {item['msg'].removeprefix('Value error, ')}{seen}")
    return "\n".join(lines)


def _known_keys(path: Sequence[object]) -> list[str]:
    """The keys of the table at `path`, a stage's or gate's name being any."""
    section: type[Section] = RecipeConfig
    for part in path:
        field = section.model_fields.get(str(part))
        if field is None:  # the name of a stage or of a gate
            continue
        arguments = [field.annotation, *get_args(field.annotation)]
        tables = [a for a in arguments if isinstance(a, type) and issubclass(a, Section)]
        if not tables:
            return []
        section = tables[0]
    return sorted(section.model_fields)
