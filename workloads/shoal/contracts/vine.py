"""Monte-Carlo values as in VinePPO (arXiv:2410.01679): where a completion is cut, and which continuations a file holds for the cuts.

With algorithm `vineppo` a file holds the completions that every run's files hold (the *parents*, group after group). Behind them are, parent after
parent and boundary after boundary, `continuations` rows that continue from the parent's tokens up to that boundary. How many there are, from where
and with which seeds follows from the parents alone, so that nobody chooses which rows get any. Workers make them by these rules, validators check
them, the trainer reads values from them. Pure. The settings are part of `Recipe`, and so of the CRD and of `config/run.json`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import Field

from shoal.contracts.base import SpecModel


class VineSettings(SpecModel):
    """How finely completions are cut, and how many continuations a boundary's value is the mean of."""

    segments: int = Field(
        4,
        ge=2,
        le=64,
        description="Equal parts that each completion is cut into; tokens of one part have one advantage.",
    )
    continuations: int = Field(
        4,
        ge=1,
        le=64,
        description="Continuations sampled from each inner boundary; its value is the mean of their rewards.",
    )

    @property
    def rows_each(self) -> int:
        """Rows of a file for each completion: itself and its continuations. This is what the method costs in sampling."""
        return 1 + (self.segments - 1) * self.continuations

    def positions(self, length: int) -> list[int]:
        """Tokens before each inner boundary of a completion of `length` (1 or more) tokens: floor(j x length / segments), j = 1 to segments - 1.

        A completion of fewer tokens than segments has boundaries that coincide, and some at 0, where continuations are answers to the prompt.
        Every position is less than `length`, so that each continuation has a token to sample, and no end-of-sequence token lies before it.
        """
        return [boundary * length // self.segments for boundary in range(1, self.segments)]


@dataclass(frozen=True)
class Continuation:
    """One row of a file that continues from row `parent`, at inner boundary `boundary` (from 1), the `number`-th from there (from 0)."""

    row: int
    parent: int
    boundary: int
    number: int

    def sample_index(self, group_size: int, settings: VineSettings) -> int:
        """Its sample index, which names parent, boundary and number: those of continuations follow on the group's own, in the order of the rows."""
        place = (self.parent % group_size) * (settings.segments - 1) + self.boundary - 1
        return group_size + place * settings.continuations + self.number


def continuations(parents: int, settings: VineSettings | None) -> Iterator[Continuation]:
    """The rows that follow on the first `parents` rows of a file, in their order; none without settings."""
    if settings is None:
        return
    row = parents
    for parent in range(parents):
        for boundary in range(1, settings.segments):
            for number in range(settings.continuations):
                yield Continuation(row, parent, boundary, number)
                row += 1
