"""The sources of a mixture of tasks as prepare pinned them: whose the rows of the task table are, what judges them, and how often each has its turn.

In `prepared.json` and in what nodes learn of a run. The rows of a source follow on those of the one before. Pure.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from shoal.contracts.base import Contract
from shoal.contracts.completions import LengthReward
from shoal.contracts.sources import SourceName
from shoal.contracts.task_source import LARGEST_WEIGHT
from shoal.sampling.mixture import SourceRows

MIXTURE = "mixture"
"""In the place of an environment's name, in documents of a run on a mixture."""


class SourceTerms(Contract):
    """One source. `targets`: lengths in tokens that its prompts ask for; empty: those of the run."""

    name: SourceName
    environment: str = Field(min_length=1, max_length=253)
    task_count: int = Field(ge=1)
    weight: int = Field(ge=1, le=LARGEST_WEIGHT)
    targets: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list, max_length=64)


def rows_of_sources(sources: Sequence[SourceTerms], lengths: LengthReward | None) -> tuple[SourceRows, ...]:
    """The sources with their places in the task table; none for a run of one environment. Without `lengths` no prompt asks for a length."""
    found, first = [], 0
    for each in sources:
        targets = (each.targets or lengths.targets) if lengths is not None else None
        found.append(SourceRows(each.name, range(first, first + each.task_count), each.weight, targets))
        first += each.task_count
    return tuple(found)
