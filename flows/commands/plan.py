"""`rstar2 plan`: the validated profile and what follows from it, before anything runs.

Prints a table, or one JSON object with the whole configuration and the plan. Loads neither prefect
nor torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from rstar2.planning import Plan, StagePlan

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def plan(
    profile: str,
    /,
    *,
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Check a profile and print what it would do and need, without doing it.

    Example: rstar2 plan laptop --set seed=3

    Parameters
    ----------
    profile
        A shipped profile, or the path of a TOML file.
    set
        Overrides one setting, as in `gates.rl-1.threshold=0.08`; may be repeated.
    as_json
        The whole configuration and the plan, as one JSON object.
    """
    from rstar2.planning import make_plan
    from rstar2.profiles import load_config

    config = load_config(profile, set or [])
    made = make_plan(config)
    if as_json:
        print(json.dumps({"config": config.model_dump(mode="json"), "plan": _as_tree(made)}))
        return 0
    print("\n".join(_lines(made)))
    return 0


def _as_tree(plan: Plan) -> dict[str, object]:
    """The plan's fields, and the totals, which are properties."""
    tree = asdict(plan)
    tree["memory"]["total"] = plan.memory.total
    tree["evaluation"]["total"] = plan.evaluation.total
    tree["artefacts"]["total"] = plan.artefacts.total
    return tree


def _lines(plan: Plan) -> list[str]:
    memory, artefacts, evaluation = plan.memory, plan.artefacts, plan.evaluation
    return [
        f"profile {plan.profile}: {plan.model.num_parameters:,} parameters in "
        f"{plan.model.num_layers} layers",
        "",
        f"SFT          {plan.num_sft_steps:,} optimizer steps",
        *(line for stage in plan.stages for line in _stage_lines(stage)),
        f"filter       {_filter_text(plan.num_filter_rollouts_max)}",
        f"evaluation   {evaluation.num_rollouts_final:,} rollouts at the end, "
        f"{evaluation.num_rollouts_between:,} at each of {evaluation.num_times_between} times "
        f"between stages, at most {evaluation.num_rollouts_during:,} during them",
        "",
        f"memory       {_size(memory.total)}: weights {_size(memory.weights)}, optimizer "
        f"{_size(memory.optimizer)}, gradients {_size(memory.gradients)}, KV cache "
        f"{_size(memory.kv_cache)}",
        f"storage      {_size(artefacts.total)}: rollouts {_size(artefacts.rollouts)}, batches "
        f"{_size(artefacts.batches)}, {artefacts.num_checkpoints} checkpoints "
        f"{_size(artefacts.checkpoints)}",
        "",
        "assumed",
        *(f"  {line}" for line in plan.assumptions),
    ]


def _filter_text(num_rollouts: int | None) -> str:
    if num_rollouts is None:
        return "as many rollouts for each problem as `filter.num_rollouts` says; the file decides"
    return f"at most {num_rollouts:,} rollouts"


def _stage_lines(stage: StagePlan) -> list[str]:
    updates = stage.num_updates_per_step
    return [
        f"{stage.stage:12} {stage.num_steps_min} to {stage.num_steps_max} steps; in each "
        f"{stage.num_problems_per_step:,} problems, {stage.num_rollouts_per_step:,} rollouts "
        f"(with refills at most {stage.num_rollouts_per_step_max:,}),",
        f"{'':12} {stage.num_kept_per_step:,} kept, at most "
        f"{stage.num_response_tokens_per_step_max:,} response tokens and "
        f"{stage.num_trained_tokens_per_step_max:,} trained on, {updates} "
        f"update{'s' if updates > 1 else ''}",
    ]


def _size(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} {UNITS[-1]}"
