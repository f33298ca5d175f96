"""`rstar2 ingest`: problem files into one curated set, with a count and a reason for every row left out.

Needs no server. Loads neither prefect nor torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from data_catalog.curation.curate import Curation

Several = Parameter(negative="", consume_multiple=False)


def ingest(
    *files: str,
    out: Path,
    map: Annotated[list[str] | None, Several] = None,
    evaluation_set: Annotated[list[str] | None, Several] = None,
    reference: str | None = None,
    profile: str = "laptop",
    set: Annotated[list[str] | None, Several] = None,
) -> int:
    """Choose the problems to train on: no repetitions, no contradictions, nothing of the evaluation.

    Example: rstar2 ingest dapo.parquet euler.jsonl --evaluation-set math500.jsonl --out curated

    Parameters
    ----------
    files
        JSONL, Parquet, folders of `datasets`, or hub:OWNER/NAME[/CONFIG]:SPLIT: together one set.
    out
        A new folder: problems.parquet (for `rstar2 run --problems`), victims.parquet, curation.json.
    map
        Which column is which, as in `--map question=problem --map num_correct=pass.right`.
    evaluation_set
        Problems that must not be trained on; may be repeated.
    reference
        Counts of a reference policy: problem_id or question, num_correct, num_attempts, as `rstar2
        catalog export` writes them (filter_verdicts.parquet). Without, columns of the files are used.
    profile
        Its table [curation] has the settings.
    set
        Overrides one of them, as in `curation.max_answer_digits=18`; may be repeated.
    """
    from data_catalog.curation.curate import curate, curation_table
    from data_catalog.curation.rows import mapped_columns
    from rstar2.config import ConfigError
    from rstar2.profiles import load_config

    if not files:
        raise ConfigError("no file was named: expected at least one, as in rstar2 ingest a.jsonl")
    result = curate(
        files,
        out,
        config=load_config(profile, set or []).curation,
        columns=mapped_columns(map or []),
        evaluation_sets=evaluation_set or [],
        reference=reference,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(curation_table(result))
    _print_next(result, out)
    return 0


def _print_next(result: Curation, out: Path) -> None:
    from data_catalog.curation.curate import PROBLEMS, VICTIMS

    print(f"every row left out, with its reason: {out / VICTIMS}")
    if result.num_kept:
        print(f"train on the rest: rstar2 run PROFILE --problems {out / PROBLEMS}")
