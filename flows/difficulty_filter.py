"""The difficulty filter between two RL stages: sample with the newest policy, drop by its band."""

from __future__ import annotations

from prefect import flow
from prefect.logging import get_run_logger

from infra.server_outage import await_server
from rstar2.bands import band_name
from rstar2.config import RecipeConfig
from rstar2.types import GateVerdict, StageResult
from tasks.difficulty import decide_difficulty, sample_chunk, show_bands
from tasks.filter_chunks import chunks_to_sample, filter_in_force
from tasks.health import check_resources
from tasks.ledger import FILTER, Ledger, num_dropped
from tasks.promotion import pass_gate
from tasks.resources import open_resources


@flow(name="difficulty-filter", flow_run_name="difficulty filter", validate_parameters=False)
def difficulty_filter(ledger: Ledger, config: RecipeConfig, *, start: StageResult) -> StageResult:
    """Keeps the problems of the stage before that lie in the filter's band; done only once.

    Goes on after the last committed chunk: what a chunk holds is never sampled again. Returns
    `start`, as a hold where a person asked to see first what each band would keep.
    """
    if ledger.find("filter", stage=FILTER) is not None:
        return start
    log = get_run_logger()
    if chunks := chunks_to_sample(ledger, config, start):
        with open_resources(ledger, config, checkpoint=start.checkpoint, trains=False) as resources:
            check_resources(resources, when="before")
            for chunk in chunks:
                log.info(sample_chunk(resources, start=start, chunk=chunk))
                ledger.publish()
    log.info(show_bands(ledger, config))
    result = pass_gate(ledger, stage=start.stage, result=start)
    if result.gate.verdict is GateVerdict.PROMOTE:
        decide_difficulty(ledger, config, start=start)
        dropped, total = num_dropped(ledger) or (0, 0)
        name = band_name(filter_in_force(ledger, config))
        log.info(f"{FILTER}, {name}: {dropped} of {total} problems dropped")
    ledger.publish(force=True)
    await_server()
    return result
