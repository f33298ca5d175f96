"""Publication: files it finds and cannot trust, and what it says of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from catalog_builders import (
    make_run_manifest,
    publish_all,
    small_run,
)

from data_catalog.catalog import SCHEMA_VERSION, CatalogError, publish
from data_catalog.queries import open_catalog
from rstar2.types import ArtifactRef

Ask = Callable[[str], list[tuple[object, ...]]]


def test_a_catalogue_of_a_newer_version_is_refused(tmp_path: Path, catalog_path: Path) -> None:
    publish_all(catalog_path, [make_run_manifest()])
    with duckdb.connect(catalog_path) as connection:
        connection.execute("update catalogue set schema_version = ?", [SCHEMA_VERSION + 1])
    before = catalog_path.read_bytes()
    with pytest.raises(CatalogError, match="Update rstar2"):
        publish_all(catalog_path, small_run(tmp_path))
    with pytest.raises(CatalogError, match="Update rstar2"), open_catalog(catalog_path):
        pass
    assert catalog_path.read_bytes() == before


def test_a_catalogue_of_an_older_version_is_rebuilt_from_the_parts(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    one, two = small_run(tmp_path, "one"), small_run(tmp_path, "two")
    publish_all(catalog_path, one)
    with duckdb.connect(catalog_path) as connection:
        connection.execute("update catalogue set schema_version = 0")
        connection.execute("drop table attempts cascade")
    publish_all(catalog_path, two[:1], everything=[*one, *two])
    assert ask("select run, count(*) from attempts group by run order by run") == [
        ("one", 16),
        ("two", 16),
    ]


def test_a_lost_catalogue_is_made_from_the_manifests_of_all_runs(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    one, two = small_run(tmp_path, "one"), small_run(tmp_path, "two")
    publish_all(catalog_path, two[:1], everything=[*one, *two])
    assert ask("select run, count(*) from attempts group by run order by run") == [
        ("one", 16),
        ("two", 16),
    ]


def test_a_file_that_is_no_catalogue_is_refused(tmp_path: Path, catalog_path: Path) -> None:
    catalog_path.write_bytes(b"something else")
    with pytest.raises(CatalogError, match="move a damaged file away"):
        publish_all(catalog_path, [make_run_manifest()])
    assert catalog_path.read_bytes() == b"something else"


def test_a_full_disk_is_explained(tmp_path: Path, catalog_path: Path) -> None:
    def resolve(ref: ArtifactRef) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CatalogError, match="No space left on device"):
        publish(catalog_path, [], resolve, force=True, everything=lambda: small_run(tmp_path))
    assert not catalog_path.exists()


def test_what_a_killed_publisher_left_is_removed(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    manifests = small_run(tmp_path)
    publish_all(catalog_path, manifests[:4])
    (tmp_path / "catalog.duckdb.publishing").write_bytes(b"half")
    (tmp_path / "catalog.duckdb.publishing.wal").write_bytes(b"half")
    (tmp_path / "catalog.duckdb.lock").write_bytes(b'{"demo": 17')
    assert ask("select count(*) from steps") == [(1,)]
    publish_all(catalog_path, manifests)
    assert ask("select count(*) from steps") == [(3,)]
    assert sorted(p.name for p in tmp_path.glob("catalog*")) == [
        "catalog.duckdb",
        "catalog.duckdb.lock",
    ]


def test_a_part_that_cannot_be_read_leaves_the_published_file(
    tmp_path: Path, catalog_path: Path, ask: Ask
) -> None:
    manifests = small_run(tmp_path)
    publish_all(catalog_path, manifests[:4])
    path = tmp_path / "demo/rl-1/step-2/rollouts.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CatalogError, match="could not be published"):
        publish_all(catalog_path, manifests)
    assert ask("select count(*) from steps") == [(1,)]
