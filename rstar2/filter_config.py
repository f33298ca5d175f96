"""The table `[filter]`: how often the difficulty filter tries a problem, and which ones it keeps.

Reads and writes nothing. What a band makes of counted attempts is `rstar2.difficulty`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from rstar2.config_section import Count, Section


class FilterConfig(Section):
    """The difficulty filter (report §4.2): problems the policy always solves are dropped.

    Kept are those solved `min_correct` to `max_correct` times; both ends belong to the band.
    """

    num_rollouts: Count = 8
    min_correct: Annotated[int, Field(ge=0)] = 0
    """0: problems that are never solved stay (the report's)."""
    max_correct: Annotated[int, Field(ge=0)] | None = None
    """None: all but `num_rollouts` of them, so that only those always solved are dropped."""
    problems_per_chunk: Count = 512
    """Sampled, then committed: so much at most is held in memory, and is lost by a crash."""

    @property
    def band(self) -> tuple[int, int]:
        """Fewest and most correct rollouts of a problem that is kept."""
        highest = self.num_rollouts - 1 if self.max_correct is None else self.max_correct
        return self.min_correct, highest

    @model_validator(mode="before")
    @classmethod
    def _read_drop_at(cls, tree: object) -> object:
        """`drop_at = 8`, as profiles and runs had it before there were bands: `max_correct = 7`."""
        if not isinstance(tree, Mapping) or "drop_at" not in tree:
            return tree
        drop_at = tree["drop_at"]
        num_rollouts = tree.get("num_rollouts", cls.model_fields["num_rollouts"].default)
        if tree.get("max_correct") is not None:
            raise ValueError(
                f"drop_at = {drop_at!r} and max_correct = {tree['max_correct']!r} say the same in "
                "two ways; leave drop_at out"
            )
        if type(drop_at) is not int or drop_at < 1:
            raise ValueError(
                f"drop_at = {drop_at!r}: expected 1 or more; better, write max_correct, which is "
                "drop_at - 1"
            )
        if isinstance(num_rollouts, int) and drop_at > num_rollouts:
            raise ValueError(
                f"drop_at = {drop_at} can never be reached with num_rollouts = {num_rollouts}; "
                "set drop_at to at most num_rollouts, or leave it out"
            )
        rest = {key: value for key, value in tree.items() if key != "drop_at"}
        return rest | {"max_correct": None if drop_at == num_rollouts else drop_at - 1}

    @model_validator(mode="after")
    def _check(self) -> FilterConfig:
        lowest, highest = self.band
        if highest > self.num_rollouts:
            raise ValueError(
                f"max_correct = {highest} can never be reached with num_rollouts = "
                f"{self.num_rollouts}; set max_correct to at most num_rollouts"
            )
        if lowest > highest:
            raise ValueError(
                f"min_correct = {lowest} lies above max_correct = {highest}"
                f"{' (num_rollouts - 1)' if self.max_correct is None else ''}: no problem could be "
                "kept; lower min_correct or raise max_correct"
            )
        return self
