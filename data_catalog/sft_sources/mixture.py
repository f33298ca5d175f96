"""The SFT mixture: of each public set its share, in the recipe's template, every row accounted for.

Reads the sets through `row_sources`: from the hub, or a copy on this machine. What is drawn depends on
the seed and the rows, not on their order. Nothing is left out in silence: what was not used is counted
by reason, and data that teaches reasoning is counted apart.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_catalog.row_sources import RowSource, SourceError, hub_files, open_hub, open_rows
from data_catalog.sft_sources import apigen_mt, glaive, magicoder, nemotron, toolace, tulu
from data_catalog.sft_sources.draft import Draft, Unusable, write
from rstar2.config import SftSource
from rstar2.dialogues import Dialogue
from rstar2.jsonl import listed
from rstar2.reasoning_markers import reasoning_marker


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A set as it is published."""

    hub: str
    """`hub:OWNER/NAME[/CONFIG]:SPLIT`."""
    columns: Sequence[str]
    convert: Callable[[Mapping[str, Any]], Draft]
    other_columns: Sequence[str] = ()
    """Those of a second release that the loader reads too."""


PUBLISHED: Mapping[SftSource, Published] = {
    "toolace": Published(
        hub="hub:Team-ACE/ToolACE:train", columns=toolace.COLUMNS, convert=toolace.convert
    ),
    "apigen-mt": Published(
        hub="hub:Salesforce/APIGen-MT-5k:train",
        columns=apigen_mt.COLUMNS,
        convert=apigen_mt.convert,
    ),
    "glaive": Published(
        hub="hub:glaiveai/glaive-function-calling-v2:train",
        columns=glaive.COLUMNS,
        convert=glaive.convert,
    ),
    "magicoder": Published(
        hub="hub:ise-uiuc/Magicoder-OSS-Instruct-75K:train",
        columns=magicoder.COLUMNS,
        convert=magicoder.convert,
        other_columns=magicoder.EVOL_COLUMNS,
    ),
    "tulu-3": Published(
        hub="hub:allenai/tulu-3-sft-personas-instruction-following:train",
        columns=tulu.COLUMNS,
        convert=tulu.convert,
    ),
    "nemotron-chat": Published(
        hub="hub:nvidia/Llama-Nemotron-Post-Training-Dataset/SFT:chat",
        columns=nemotron.COLUMNS,
        convert=nemotron.convert,
    ),
}


@dataclass(kw_only=True, slots=True)
class SourceCounts:
    """What became of the rows of a set: they add up to `num_rows`."""

    source: str
    num_wanted: int
    num_rows: int = 0
    num_kept: int = 0
    num_not_drawn: int = 0
    """Usable, but over the share."""
    reasoning: Counter[str] = field(default_factory=Counter)
    """Left out because they teach reasoning, by sign."""
    unusable: Counter[str] = field(default_factory=Counter)
    """Left out for another reason."""

    def row(self) -> dict[str, object]:
        """As a manifest and a table hold it."""
        return {
            "source": self.source,
            "wanted": self.num_wanted,
            "rows": self.num_rows,
            "kept": self.num_kept,
            "not_drawn": self.num_not_drawn,
            "reasoning": dict(sorted(self.reasoning.items())),
            "unusable": dict(sorted(self.unusable.items())),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    dialogues: tuple[Dialogue, ...]
    counts: tuple[SourceCounts, ...]


def read_mixture(
    shares: Mapping[SftSource, int], paths: Mapping[SftSource, str], *, seed: int
) -> Mixture:
    """Of each set in `shares` so many conversations, or all that can be used where there are fewer.

    `paths` names copies on this machine; other sets come from the hub.
    """
    dialogues: list[Dialogue] = []
    counts: list[SourceCounts] = []
    for source, num_wanted in shares.items():
        count = SourceCounts(source=source, num_wanted=num_wanted)
        dialogues += _draw(_usable(source, paths.get(source), count), count, seed)
        counts.append(count)
    return Mixture(dialogues=tuple(dialogues), counts=tuple(counts))


def check_mixture(shares: Mapping[SftSource, int], paths: Mapping[SftSource, str]) -> None:
    """Raises `SourceError` where a set is not there or not in its published layout."""
    for source in shares:
        _open(source, PUBLISHED[source], paths.get(source))


def mixture_files(
    shares: Mapping[SftSource, int], paths: Mapping[SftSource, str]
) -> dict[str, list[Path]]:
    """The files that a mixture is read from, by set."""
    return {
        source: [Path(paths[source])] if source in paths else hub_files(PUBLISHED[source].hub)
        for source in shares
    }


def _draw(usable: Iterator[tuple[int, Dialogue]], count: SourceCounts, seed: int) -> list[Dialogue]:
    """The rows whose hash with the seed is lowest, in their own order; the rest is not held."""
    heap: list[tuple[int, int, Dialogue]] = []
    for number, dialogue in usable:
        digest = hashlib.sha256(f"{seed}/{dialogue.dialogue_id}".encode()).digest()
        entry = (-int.from_bytes(digest[:8]), -number, dialogue)
        if len(heap) < count.num_wanted:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
            count.num_not_drawn += 1
    count.num_kept = len(heap)
    return [dialogue for _, _, dialogue in sorted(heap, key=lambda entry: -entry[1])]


def _usable(
    source: SftSource, path: str | None, count: SourceCounts
) -> Iterator[tuple[int, Dialogue]]:
    published = PUBLISHED[source]
    rows, columns = _open(source, published, path)
    malformed: list[str] = []
    for row in rows.read(columns):
        count.num_rows += 1
        try:
            draft = _draft(row.value, published)
            columns_seen = row.value if isinstance(row.value, Mapping) else {}
            marker = reasoning_marker(columns_seen, draft.replies, draft.tools_called)
            if marker is not None:
                count.reasoning[marker] += 1
                continue
            messages = write(draft)
        except Unusable as reason:
            count.unusable[str(reason)] += 1
            continue
        except SourceError as error:
            malformed.append(f"  row {row.number}: {error}")
            continue
        name = f"{source}/{row.number}"
        yield (
            row.number,
            Dialogue(dialogue_id=name, source=source, messages=messages, tools=draft.tools),
        )
    if malformed:
        raise SourceError(
            f"{rows.name}: {len(malformed)} malformed rows, nothing was started:\n"
            + "\n".join(listed(malformed))
            + f"\nExpected rows as {published.hub} has them; copy the set again."
        )


def _draft(row: Mapping[str, Any] | str, published: Published) -> Draft:
    """What the loader makes of a row; `SourceError` where the row is not in the published layout."""
    if isinstance(row, str):
        raise SourceError(row)
    try:
        return published.convert(row)
    except (KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"not in the published layout ({type(error).__name__}: {error})"
        ) from None


def _open(source: str, published: Published, path: str | None) -> tuple[RowSource, Sequence[str]]:
    if path is None:
        rows = open_rows(published.hub)
    elif Path(path).is_dir() and not (Path(path) / "state.json").is_file():
        rows = open_hub(published.hub, folder=path)  # a copy of the set's repository
    else:
        rows = open_rows(path)
    for columns in (published.columns, published.other_columns):
        if columns and set(columns) <= set(rows.columns):
            wanted = {"reasoning", "system_prompt"} & set(rows.columns)
            return rows, sorted({*columns, *wanted})
    raise SourceError(
        f"{rows.name}: not the published layout of {source}; expected the columns "
        f"{', '.join(published.columns)}, seen: {', '.join(rows.columns) or 'none'}"
    )
