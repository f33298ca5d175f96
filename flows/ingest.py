"""Shows the problem sets that a run read: how many problems, how many rows were set aside."""

from __future__ import annotations

from prefect.artifacts import create_table_artifact

from tasks.ledger import Ledger
from tasks.problems import HELD_OUT
from tasks.promotion import artifact_key


def show_problem_sets(ledger: Ledger) -> str:
    """A table on the run's page; returns the same counts as a sentence."""
    names = [*ledger.config().stages, HELD_OUT]
    manifests = {n: m for n in names if (m := ledger.find("problems", stage=n)) is not None}
    rows = [
        {
            "problem set": name,
            "problems": manifest.values["num_problems"],
            "set aside": len(manifest.values["quarantined"]),
        }
        for name, manifest in manifests.items()
    ]
    key = artifact_key(ledger.run, "problem-sets")
    create_table_artifact(table=rows, key=key, description="Problem sets of the run")
    return "; ".join(
        f"{row['problem set']}: {row['problems']} problems, {row['set aside']} rows set aside"
        for row in rows
    )
