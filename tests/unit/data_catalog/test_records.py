"""Manifests as records: the same facts before and after JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from catalog_builders import make_run_manifest, small_run

from data_catalog.records import manifest_from_json, manifest_json


def test_a_manifest_survives_json(tmp_path: Path) -> None:
    for manifest in small_run(tmp_path):
        data = manifest_json(manifest)
        again = manifest_from_json(data)
        assert again.key == manifest.key
        assert manifest_json(again) == data


def test_a_manifest_refuses_what_json_cannot_hold() -> None:
    manifest = replace(make_run_manifest(), values={"path": Path("a")})
    with pytest.raises(TypeError, match="convert it where the manifest is made"):
        manifest_json(manifest)
