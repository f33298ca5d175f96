"""The curation of problem files as the flows use it: done once, shown, recorded with the run.

Reads problem files, writes the folder of `data_catalog.curation`. A run that trains on such a folder's
problems takes the rows that were left out into its ledger, so that the catalogue can say why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from data_catalog.curation.curate import COUNTS, PROBLEMS, VICTIMS, Curation, curate, read_curation
from rstar2.curation import RULES, CurationConfig
from tasks.ledger import Ledger
from tasks.promotion import artifact_key

CURATION = "curation"


@task(name="curate problems", cache_policy=NO_CACHE)
def curate_problems(
    source: str,
    folder: Path,
    *,
    run: str,
    config: CurationConfig,
    evaluation_sets: Sequence[str],
    reference: str | None,
) -> Path:
    """The file of the problems that are kept, in `folder`; shows the count of every rule."""
    result = curate(
        [source],
        folder,
        config=config,
        evaluation_sets=evaluation_sets,
        reference=reference,
        say=get_run_logger().info,
    )
    _show(run, result)
    return folder / PROBLEMS


def _show(run: str, result: Curation) -> None:
    rows = [
        {"rule": rule, "rows": count, "left out because": f"off: {off}" if off else RULES[rule]}
        for rule, count in result.victims.items()
        for off in [result.off.get(rule)]
    ]
    text = f"{result.num_kept:,} of {result.num_rows:,} rows kept"
    create_table_artifact(table=rows, key=artifact_key(run, CURATION), description=text)
    get_run_logger().info(text)


def record_curation(ledger: Ledger, source: str) -> None:
    """Takes what was left out of a curated file into the ledger; of any other file nothing."""
    folder = Path(source).parent
    is_curated = Path(source).name == PROBLEMS and (folder / COUNTS).is_file()
    name = hashlib.sha256(source.encode()).hexdigest()[:8]
    if not is_curated or ledger.find("problems", stage=CURATION, name=name) is not None:
        return
    result = read_curation(folder)
    key = ledger.key(CURATION, f"victims-{name}.parquet")
    victims = ledger.store.put_file(folder / VICTIMS, key, kind="victims")
    values = {
        "name": name,
        "num_rows": result.num_rows,
        "num_kept": result.num_kept,
        "victims": dict(result.victims),
    }
    ledger.commit("problems", stage=CURATION, name=name, parts={"victims": victims}, values=values)
