"""The difficulty filter between two RL stages: sample with the newest policy, drop by its band."""

from __future__ import annotations

from prefect import flow
from prefect.logging import get_run_logger

from infra.server_outage import await_server
from rstar2.bands import band_name
from rstar2.config import RecipeConfig
from rstar2.types import ArtifactRef, StageResult
from tasks.difficulty import decide_difficulty, sample_chunk, show_bands
from tasks.filter_chunks import chunks_to_sample
from tasks.health import check_resources
from tasks.ledger import FILTER, Ledger, num_dropped
from tasks.resources import open_resources


@flow(name="difficulty-filter", flow_run_name="difficulty filter", validate_parameters=False)
def difficulty_filter(ledger: Ledger, config: RecipeConfig, *, start: StageResult) -> ArtifactRef:
    """The problems of the stage before that lie in the filter's band; done only once.

    Goes on after the last committed chunk: what a chunk holds is never sampled again.
    """
    known = ledger.find("filter", stage=FILTER)
    if known is not None:
        return known.parts["problems"]
    log = get_run_logger()
    with open_resources(ledger, config, checkpoint=start.checkpoint, trains=False) as resources:
        check_resources(resources, when="before")
        for chunk in chunks_to_sample(ledger, config, start):
            log.info(sample_chunk(resources, start=start, chunk=chunk))
            ledger.publish()
        healths = check_resources(resources, when="after")
    log.info(show_bands(ledger, config))
    kept = decide_difficulty(ledger, config, start=start, healths=healths)
    ledger.publish(force=True)
    dropped, total = num_dropped(ledger) or (0, 0)
    log.info(f"{FILTER}, {band_name(config.filter)}: {dropped} of {total} problems dropped")
    await_server()
    return kept
