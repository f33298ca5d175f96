"""The table `[gates.NAME]`: by which rules a stage ends, and their numbers.

Reads and writes nothing. What the rules mean is `rstar2.gate`; which of them a stage can have, given
its other settings, is checked in `rstar2.config`.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from rstar2.config_section import Count, Rate, Section

GateRule = Literal[
    "truncation_settled",
    "no_collapse",
    "reward_flat",
    "evaluation_flat",
    "mostly_solved",
    "evaluation_saturated",
]


class GateConfig(Section):
    """When a stage ends. Each named rule must hold for `promote`; see `rstar2.gate`."""

    rules: tuple[GateRule, ...] = ("truncation_settled", "no_collapse")
    threshold: Rate = 0.10
    """Of the truncation rate (report §4.3: settled near 10 %)."""
    window: Annotated[int, Field(ge=2)] = 8
    """Steps; its two halves are compared."""
    max_half_difference: Rate = 0.03
    min_steps: Count = 12
    max_steps: Count = 300
    at_max_steps: Literal["hold", "promote"] = "hold"
    """What becomes of a stage that reached `max_steps` without its rules holding. Where a profile
    does not say, `hold` for its first stage and `promote` for every later one."""
    max_reward_drop: Rate = 0.15
    """`no_collapse`: the window's reward is at least (1 - this) of the best earlier window's.
    The evaluation rules: a score below (1 - this) of the best one has fallen."""
    reward_flat_slope: Annotated[float, Field(ge=0.0)] = 0.005
    """`reward_flat`: reward gained over the window is at most this."""
    evaluation_patience: Count = 3
    """`evaluation_flat`, `evaluation_saturated`: evaluations without a new best. Steps between two
    evaluations are not counted."""
    solved_threshold: Rate = 0.70
    """`mostly_solved` (RL-2): share of drawn problems that all rollouts solved (report §4.3)."""
    collapse_steps: Count = 20
    """Reward below (1 - `collapse_drop`) of its best window for so many steps: abort."""
    collapse_drop: Rate = 0.5

    @property
    def evaluation_rules(self) -> tuple[GateRule, ...]:
        """Those of `rules` that read scores taken during the stage."""
        return tuple(rule for rule in self.rules if rule.startswith("evaluation_"))

    @model_validator(mode="after")
    def _check(self) -> GateConfig:
        if not self.rules:
            raise ValueError(
                "rules = []: a gate without a rule has nothing to decide by; expected one or more "
                f"of {', '.join(get_args(GateRule))}"
            )
        if self.min_steps > self.max_steps:
            raise ValueError(
                f"min_steps = {self.min_steps} lies above max_steps = {self.max_steps}: no rule "
                "could promote the stage; set min_steps to at most max_steps"
            )
        if self.window > self.max_steps:
            raise ValueError(
                f"window = {self.window} lies above max_steps = {self.max_steps}: the stage would "
                "end before its first window is full; set window to at most max_steps"
            )
        return self

    def check_evaluations(self, name: str, *, every: int) -> None:
        """Raises where an evaluation rule of stage `name`, scored `every` steps, could never hold."""
        if not self.evaluation_rules:
            return
        rules = ", ".join(self.evaluation_rules)
        if every == 0:
            raise ValueError(
                f"gates.{name}.rules names {rules}, but stages.{name}.evaluate_every_steps = 0: "
                f"there is no score to decide by; set stages.{name}.evaluate_every_steps to 1 or "
                "more, or take the rule out"
            )
        needed = (self.evaluation_patience + 1) * every
        if needed > self.max_steps:
            raise ValueError(
                f"gates.{name}.rules names {rules}, which needs {self.evaluation_patience + 1} "
                f"evaluations (evaluation_patience + 1), but with stages.{name}."
                f"evaluate_every_steps = {every} the last of them is at step {needed}, after "
                f"max_steps = {self.max_steps}; evaluate more often, or raise max_steps"
            )
