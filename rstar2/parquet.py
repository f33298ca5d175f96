"""Parquet tables on disk, and list columns over flat arrays.

Writes one file under its final name by rename, after fsync, so a reader sees a whole file or none.
Token arrays move as arrays and never as Python lists: a paper-size step holds over 100 million ids.
Text that is no valid Unicode (a lone surrogate, which JSON from a model can hold) is stored as
U+FFFD. Knows no noun: `rollout_files` does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

T = TypeVar("T")


class ParquetFileError(ValueError):
    """A file is not what it should be. The message names it and what was expected."""


def text_column(values: Sequence[str | None]) -> pa.Array:
    """Strings or nulls; U+FFFD for each lone surrogate, which UTF-8 cannot hold."""
    return pa.array([_valid(value) for value in values], pa.large_string())


def _valid(text: str | None) -> str | None:
    if text is None or text.isascii():
        return None if text is None else str(text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _offsets(sizes: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]), pa.int64())


def array_column(arrays: Sequence[np.ndarray], dtype: type[np.generic]) -> pa.Array:
    """A list column over one flat array."""
    flat = np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype, copy=False)
    return pa.LargeListArray.from_arrays(_offsets([len(a) for a in arrays]), pa.array(flat))


def nested_column(
    rows: Sequence[Sequence[T]], build: Callable[[Sequence[T]], pa.Array]
) -> pa.Array:
    """A list column over the array that `build` makes of all items."""
    items = [item for row in rows for item in row]
    return pa.LargeListArray.from_arrays(_offsets([len(row) for row in rows]), build(items))


def whole_column(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


def _bounds(column: pa.Array) -> Iterator[tuple[int, int]]:
    """`[start, stop)` of each row in `column.flatten()`, also where the column is a slice."""
    offsets = column.offsets.to_numpy()
    base = int(offsets[0]) if len(offsets) else 0
    return zip((offsets[:-1] - base).tolist(), (offsets[1:] - base).tolist(), strict=True)


def row_arrays(column: pa.Array) -> Iterator[np.ndarray]:
    """The rows of a list column as read-only views of one array."""
    flat = column.flatten().to_numpy(zero_copy_only=False)
    flat.setflags(write=False)
    return (flat[start:stop] for start, stop in _bounds(column))


def split_rows(column: pa.Array, items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start:stop] for start, stop in _bounds(column)]


def write_table(path: Path, table: pa.Table, *, kind: str, metadata: dict[str, str]) -> None:
    """Under a temporary name beside `path`, synced, then renamed: whole or not there."""
    named = {"rstar2": kind, **metadata}
    table = table.replace_schema_metadata({k.encode(): v.encode() for k, v in named.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable. Some file systems refuse to sync a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fsync(descriptor)
    os.close(descriptor)


def read_table(path: Path, kind: str) -> tuple[pa.Table, dict[str, str]]:
    if not path.is_file():
        raise ParquetFileError(f"{path}: no such file; expected a Parquet file of {kind}")
    try:
        with path.open("rb") as file:
            table = pq.read_table(file)
    except (pa.ArrowInvalid, OSError) as error:
        # Pyarrow says of a damaged page that the input failed, and not of which file.
        raise ParquetFileError(
            f"{path}: not a readable Parquet file of {kind} ({error}); expected a whole one: it is "
            "damaged or cannot be read"
        ) from None
    raw = table.schema.metadata or {}
    metadata = {key.decode(): value.decode() for key, value in raw.items()}
    if metadata.get("rstar2") != kind:
        raise ParquetFileError(
            f"{path}: holds {metadata.get('rstar2', 'something else')!r}, expected {kind!r}"
        )
    return table, metadata
