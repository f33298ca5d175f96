"""A pause within the difficulty filter of a whole run, answered with another band."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_catalog.queries import query
from flows.outcome import EXIT_WAITING
from infra.object_store import open_store
from tasks.ledger import FILTER, Ledger, catalog_path

pytestmark = pytest.mark.slow
BAND = {"min_correct": 1, "max_correct": 2}


def rstar2(storage: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "flows.commands", *words, "--storage", str(storage)]


def test_a_person_sees_the_bands_and_chooses_one_before_it_is_applied(tmp_path: Path) -> None:
    options = ["--run", "drill", "--set", f"storage={tmp_path}"]
    again = [sys.executable, "-m", "flows.commands", "run", "smoke", *options]
    process = subprocess.Popen(again)
    while not (tmp_path / "drill" / "rl-2" / "manifest-stage.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    subprocess.run(rstar2(tmp_path, "gate", "pause", "drill"), check=True, timeout=60)
    assert process.wait(timeout=300) == EXIT_WAITING

    ledger = Ledger(open_store(str(tmp_path)), "drill")
    assert ledger.find("filter", stage=FILTER) is None
    bands = [f"--set=filter.{key}={value}" for key, value in BAND.items()]
    shown = rstar2(tmp_path, "filter", "show", "drill", *bands, "--json")
    rows = json.loads(subprocess.run(shown, check=True, capture_output=True, timeout=60).stdout)
    (chosen,) = [row for row in rows if row["is_configured"]]

    approve = rstar2(tmp_path, "gate", "approve", "drill", *bands)
    subprocess.run(approve, check=True, timeout=60)
    chunks = {path: path.stat().st_mtime_ns for path in tmp_path.glob("drill/*/chunk-*/*.parquet")}
    subprocess.run(again, check=True, timeout=300)

    assert {path: path.stat().st_mtime_ns for path in chunks} == chunks
    decided = Ledger(open_store(str(tmp_path)), "drill").find("filter", stage=FILTER)
    assert decided is not None
    assert decided.values["band"] == BAND
    sql = "select count(*) from filter_verdicts where decision = 'kept' and min_correct = 1"
    assert query(catalog_path(ledger.store), sql).rows == ((chosen["num_kept"],),)
