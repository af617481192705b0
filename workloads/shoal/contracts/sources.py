"""How rows of single sources of a mixture are learnt from: the member `sources` of a recipe. Pure.

In: nothing. Out: `SourceObjective`, and what names of sources look like. Part of `Recipe`.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from shoal.contracts.algorithm import SourceAlgorithm
from shoal.contracts.base import SpecModel, unset

MOST_SOURCES = 16
SourceName = Annotated[str, StringConstraints(max_length=40, pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]


class SourceObjective(SpecModel):
    """What rows of one source of `tasks.mixture` have of their own. Every other number is the recipe's."""

    name: SourceName = Field(..., description="Name of the source in `tasks.mixture`.")
    algorithm: SourceAlgorithm | None = Field(
        None,
        exclude_if=unset,
        description="Algorithm for rows of this source, with its own clip; schedules do not change it. Absent: the recipe's.",
    )
    loss_weight: float = Field(
        1.0,
        gt=0.0,
        le=1000.0,
        description="Factor of the whole loss of these rows: policy, KL and entropy. 1 leaves it as it is in a run without sources.",
    )
