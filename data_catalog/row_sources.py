"""Rows of a source, whatever holds them: JSONL, JSON, Parquet, a folder of `datasets`, a set of the hub.

Reads one row at a time and numbers them; writes nothing. Knows no column: which of them is the question
is `sources`' business. A row that cannot be read comes as the sentence that says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress

from rstar2.jsonl import object_or_reason, parse_line
from rstar2.problems import is_hub_source

PROGRESS_FROM = 100_000
"""Rows, or bytes of a JSONL file, from which reading shows a progress bar."""
BATCH_ROWS = 4096
EXPECTED = "expected a JSONL, JSON or Parquet file, a folder of `datasets`, or hub:OWNER/NAME:SPLIT"
_SHARD = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}\.parquet")
_HUB = re.compile(
    r"hub:(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?:(?P<split>[\w.+\[\]%:-]+)"
)


class SourceError(ValueError):
    """A source is not what it should be. Names file and rows, what was seen and expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    number: int
    """1-based: the line of a JSONL file, the row of another."""
    value: Mapping[str, Any] | str
    """The row by column, or why it cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSource:
    """A source that was opened: what its rows hold, and a way to read them, as often as needed."""

    name: str
    """As the user wrote it."""
    label: str
    """A short name for the problems of it: the file's, the folder's or the set's."""
    columns: tuple[str, ...]
    """Names of the columns; of a JSONL file, those of its first row."""
    has_schema: bool
    """Every row has these columns and no other."""
    read: Callable[[Sequence[str]], Iterator[Row]]
    """The rows, with at least the columns named."""


def open_rows(source: str | Path) -> RowSource:
    """Raises `SourceError` where there is nothing that can be read as rows."""
    if is_hub_source(str(source)):
        return open_hub(str(source))
    path = Path(source)
    if source == "":
        raise SourceError(f"a source is named by an empty text; {EXPECTED}")
    if not path.exists():
        raise SourceError(f"no such file: {path}; {EXPECTED}")
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".parquet":
        return _open_parquet(path, [path], path.stem)
    if path.suffix in (".jsonl", ".ndjson", ".json"):
        return _open_json(path)
    raise SourceError(f"{path}: unknown kind of file {path.suffix!r}; {EXPECTED}")


def _open_json(path: Path) -> RowSource:
    read = _read_json_array if _starts_array(path) else _read_jsonl
    first = next((row.value for row in read(path)), {})
    columns = () if isinstance(first, str) else tuple(first)

    def rows(_: Sequence[str]) -> Iterator[Row]:
        return read(path)

    return RowSource(name=str(path), label=path.stem, columns=columns, has_schema=False, read=rows)


def _starts_array(path: Path) -> bool:
    """Whether the file is one JSON array, as some sets are published."""
    with path.open("rb") as file:
        return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _read_json_array(path: Path) -> Iterator[Row]:
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON ({error}); expected one array of objects") from None
    for number, value in enumerate(values, start=1):
        yield Row(number=number, value=object_or_reason(value))


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as file, _progress(path.name, path.stat().st_size) as advance:
        for number, line in enumerate(file, start=1):
            advance(len(line))
            if line.strip():
                yield Row(number=number, value=parse_line(line, is_first=number == 1))


def _open_parquet(name: Path, files: Sequence[Path], label: str) -> RowSource:
    with _explained(files[0]), pq.ParquetFile(files[0]) as file:
        columns = tuple(file.schema_arrow.names)

    def rows(wanted: Sequence[str]) -> Iterator[Row]:
        return _read_parquet(files, wanted)

    return RowSource(name=str(name), label=label, columns=columns, has_schema=True, read=rows)


def _read_parquet(files: Sequence[Path], wanted: Sequence[str]) -> Iterator[Row]:
    number = 0
    for path in files:
        with _explained(path), pq.ParquetFile(path) as file:
            with _progress(path.name, file.metadata.num_rows) as advance:
                for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(wanted)):
                    for value in batch.to_pylist():
                        number += 1
                        yield Row(number=number, value=value)
                    advance(batch.num_rows)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path}: not a readable Parquet file ({str(error).splitlines()[0]}); expected a whole "
            "one: copy it again, its end may be missing"
        ) from error


def _open_folder(path: Path) -> RowSource:
    """A folder of `datasets.save_to_disk` (one split), one file of rows, or the shards of one split."""
    if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return _open_saved(path)
    files = sorted(f for f in path.iterdir() if f.suffix in (".jsonl", ".json", ".parquet"))
    shards = [_SHARD.fullmatch(f.name) for f in files]
    splits = {shard["split"] for shard in shards if shard}
    if len(files) > 1 and all(shards) and len(splits) == 1:
        return _open_parquet(path, files, path.name)
    if len(files) != 1:
        raise SourceError(
            f"{path}: a folder with {len(files)} files of rows, neither one that `datasets` saved "
            "(state.json) nor the shards of one split; expected one of these: name the file itself"
        )
    return open_rows(files[0])


def _open_saved(path: Path) -> RowSource:
    import datasets  # takes a second: loaded where it is used

    data = datasets.load_from_disk(str(path))
    if isinstance(data, datasets.DatasetDict):
        raise SourceError(
            f"{path} holds the splits {', '.join(sorted(data))}; expected one of them: name its "
            f"folder, as in {path / sorted(data)[0]}"
        )
    return _of_dataset(str(path), path.name, data)


def _of_dataset(name: str, label: str, data: Any) -> RowSource:
    def rows(wanted: Sequence[str]) -> Iterator[Row]:
        with _progress(label, len(data)) as advance:
            for number, value in enumerate(data.select_columns(list(wanted)), start=1):
                advance(1)
                yield Row(number=number, value=value)

    columns = tuple(data.column_names)
    return RowSource(name=name, label=label, columns=columns, has_schema=True, read=rows)


def hub_files(source: str) -> list[Path]:
    """The files in which this machine keeps a set of the hub."""
    return [Path(part["filename"]) for part in _load_hub(source, None).cache_files]


def open_hub(source: str, *, folder: str | None = None) -> RowSource:
    """A split of a set on the hub, which `datasets` downloads once and keeps.

    With `folder`, a copy of the set's repository on this machine, its card with it.
    """
    data = _load_hub(source, folder)
    return _of_dataset(folder or source, source.split(":")[1].split("/")[1], data)


def _load_hub(source: str, folder: str | None) -> Any:
    parts = _HUB.fullmatch(source)
    if parts is None:
        raise SourceError(
            f"{source!r} names no set of the hub: expected hub:OWNER/NAME:SPLIT or "
            "hub:OWNER/NAME/CONFIG:SPLIT, as in hub:open-r1/DAPO-Math-17k-Processed/en:train"
        )
    import datasets

    place = folder or parts["name"]
    try:
        return datasets.load_dataset(place, parts["config"], split=parts["split"])
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        # not there, not reachable, no such split, or files that are no rows
        cause = error.__cause__ or error
        reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise SourceError(
            f"{folder or source}: {reason}; expected a set that the hub has and this machine "
            "reaches, or a copy of it on disk: name that file or folder"
        ) from error


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error for a big source; only where a person watches."""
    console = Console(stderr=True)
    is_seen = total >= PROGRESS_FROM and console.is_terminal
    with Progress(console=console, transient=True, disable=not is_seen) as progress:
        bar = progress.add_task(name, total=total)
        pending = 0

        def advance(amount: int) -> None:
            nonlocal pending
            pending += amount
            if pending * 200 > total:  # a redraw for each row would cost more than the row
                progress.advance(bar, pending)
                pending = 0

        yield advance
