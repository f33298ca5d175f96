"""One part of the recipe at a time, for a person: the deployments `…/by-hand`.

The same stages on the same run as in the recipe, each a flow of its own. A part first looks into the
ledger for what it builds on; the recipe started later on the same run finds what was done by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.difficulty_filter import difficulty_filter
from flows.evaluation import evaluation
from flows.ingest import ingest
from flows.parameters import (
    CuratedFolder,
    EvaluationSets,
    MeasuredStage,
    Overrides,
    ProblemFile,
    Profile,
    ReferenceCounts,
    RlStage,
    RunName,
)
from flows.rl_stage import rl_stage
from flows.sft import sft
from infra.object_store import open_store
from infra.server_outage import await_server
from rstar2.config import ConfigError, RecipeConfig
from rstar2.profiles import load_config, problem_overrides
from rstar2.types import GateVerdict, StageResult
from tasks.curation import curate_problems
from tasks.inputs import check_sources, input_files
from tasks.ledger import FILTER, FINAL, Ledger, LedgerError, open_ledger, start_run
from tasks.problems import prepare_problems
from tasks.promotion import pass_gate
from tasks.promotion_answers import answered
from tasks.runs import resume_command


@flow(name="rl-stage", flow_run_name="{run} {stage} by hand")
def rl_stage_by_hand(
    run: RunName, stage: RlStage = "rl-1", profile: Profile = "laptop", set: Overrides = ()
) -> State:
    """One RL stage with all that it needs and lacks; the first one begins with SFT."""
    config = _checked_config(profile, set, stage=stage)
    is_first = stage == next(iter(config.stages))
    command = resume_command(profile, run, set)
    with _opened(config, run, command, may_be_new=is_first) as ledger:
        await_server()
        start = sft(ledger, config) if is_first else result_before(ledger, stage)
        if config.stages[stage].filter_problems:
            await_server()
            start = difficulty_filter(ledger, config, start=start)
            if start.gate.verdict is not GateVerdict.PROMOTE:
                return _ended(start)
        problem_set = prepare_problems(ledger, config, stage=stage)
        await_server()
        result = rl_stage(ledger, config, stage, start=start, problem_set=problem_set)
        return _ended(pass_gate(ledger, stage=stage, result=result))


@flow(name="difficulty-filter", flow_run_name="{run} difficulty filter by hand")
def difficulty_filter_by_hand(
    run: RunName, profile: Profile = "laptop", set: Overrides = ()
) -> State:
    """The difficulty filter before the stage that asks for it."""
    config = _checked_config(profile, set)
    filtered = [name for name, stage in config.stages.items() if stage.filter_problems]
    if not filtered:
        raise ConfigError(
            f"profile {profile!r} has no difficulty filter: expected filter_problems = true in one "
            "of its stages"
        )
    with _opened(config, run, resume_command(profile, run, set)) as ledger:
        result = difficulty_filter(ledger, config, start=result_before(ledger, filtered[0]))
        decided = ledger.find("filter", stage=FILTER)
    if decided is None:
        return _ended(result)
    return Completed(message=f"the kept problems: {decided.parts['problems'].uri}")


@flow(name="evaluation", flow_run_name="{run} evaluation by hand")
def evaluation_by_hand(
    run: RunName,
    stage: MeasuredStage = "last",
    profile: Profile = "laptop",
    set: Overrides = (),
) -> State:
    """The policy after a stage on all held-out problems; `last`: the last stage that ended."""
    config = _checked_config(profile, set)
    with _opened(config, run, resume_command(profile, run, set)) as ledger:
        result = result_of(ledger, stage)
        is_final = result.stage == list(config.stages)[-1]
        name = FINAL if is_final else f"{result.stage}-all"
        scores = evaluation(ledger, config, result, name=name)
    return Completed(message="; ".join(f"{s.name} {s.mean:.1%}" for s in scores))


@flow(name="ingest", flow_run_name="{run} ingest by hand")
def ingest_by_hand(
    run: RunName,
    problems: ProblemFile = "",
    profile: Profile = "laptop",
    set: Overrides = (),
    curate_into: CuratedFolder = "",
    evaluation_sets: EvaluationSets = (),
    reference: ReferenceCounts = "",
) -> State:
    """Reads the run's problems, those of a file where it is given, into sets with their counts.

    With `curate_into` the file is curated first, and the sets are made of what is kept.
    """
    if curate_into:
        problems = str(
            curate_problems(
                _named(problems),
                Path(curate_into),
                run=run,
                config=load_config(profile, set).curation,
                evaluation_sets=evaluation_sets,
                reference=reference or None,
            )
        )
    overrides = [*set, *problem_overrides(profile, problems or None)]
    config = _checked_config(profile, overrides)
    command = resume_command(profile, run, overrides)
    with _opened(config, run, command, may_be_new=True) as ledger:
        message = ingest(ledger, config)
    return Completed(message=message)


def _ended(result: StageResult) -> State:
    """A promotion is a success; what else a gate says ends the flow run under that name."""
    gate = result.gate
    if gate.verdict is GateVerdict.PROMOTE:
        return Completed(message=gate.reason)
    return Failed(name=str(gate.verdict).title(), message=gate.reason)


def _named(problems: str) -> str:
    if not problems:
        raise ConfigError(
            "curate_into without problems: expected a file to curate; name it with problems=FILE"
        )
    return problems


def result_before(ledger: Ledger, stage: str) -> StageResult:
    """What `stage` starts from; raises `LedgerError` where it is not there yet."""
    order = ledger.stage_names()
    return result_of(ledger, order[order.index(stage) - 1])


def result_of(ledger: Ledger, stage: str) -> StageResult:
    """How the stage ended (`last`: the last that did), promoted by its gate or a person."""
    ended = [name for name in ledger.stage_names() if ledger.stage_result(name) is not None]
    wanted = ended[-1] if stage == "last" and ended else stage
    result = ledger.stage_result(wanted)
    if result is None:
        raise LedgerError(
            f"{wanted} of the run {ledger.run!r} has not ended: expected one of "
            f"{', '.join(ended) or '(none has)'}; train it first"
        )
    gate = answered(ledger, wanted, result).gate
    if gate.verdict is not GateVerdict.PROMOTE:
        raise LedgerError(
            f"{wanted} of the run {ledger.run!r} ended with {gate.verdict}: {gate.reason} Expected "
            f"a promotion; a hold is answered by `{ledger.gate_command('approve')}`"
        )
    return result


def _checked_config(
    profile: str, overrides: Sequence[str], *, stage: str | None = None
) -> RecipeConfig:
    config = load_config(profile, overrides)
    if stage is not None and stage not in config.stages:
        raise ConfigError(
            f"stage {stage!r}: profile {profile!r} has {', '.join(config.stages)}; name one of them"
        )
    check_sources(config)
    return config


@contextmanager
def _opened(
    config: RecipeConfig, run: str, command: str, *, may_be_new: bool = False
) -> Iterator[Ledger]:
    if not may_be_new:
        Ledger(open_store(config.storage), run).config()  # raises, naming the runs that there are
    with open_ledger(config.storage, run) as ledger:
        start_run(ledger, config, input_files(config), command=command)
        yield ledger
        ledger.publish(force=True)
