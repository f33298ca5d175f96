"""What every table of the configuration is made of: the frozen section, and fields with bounds.

Reads and writes nothing. The tables themselves are in `rstar2.config` and `rstar2.gate_config`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Rate = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0.0)]


class Section(BaseModel):
    """Settings of every table: frozen, unknown keys are errors, docstrings are the description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
