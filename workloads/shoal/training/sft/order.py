"""Which rows an update has, and which updates a step: functions of the settings, the number of rows and the seed, and of nothing else.

In: `SftSettings`, counts. Out: indices of rows. An epoch is one pass over the rows in an order of its own, cut into updates of `batch_rows`; its last
update has what is left. A step makes its share of all updates, so that a resumed step makes the same ones. Pure; called by `method`.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int

from shoal.contracts.sft import SftSettings


class BadSchedule(ValueError):
    """Rows, epochs and steps do not go together; the message says which field to change."""


@dataclass(frozen=True)
class SftSchedule:
    """All updates of a run: `rows` are those that are learnt, `steps` the versions that the run makes."""

    settings: SftSettings
    rows: int
    steps: int
    seed: int

    def __post_init__(self) -> None:
        if self.updates < self.steps:
            raise BadSchedule(
                f"{self.rows} rows in updates of {self.settings.batch_rows} make {self.updates} updates in"
                f" {self.settings.epochs} epochs, and each of the {self.steps} steps needs one; lower spec.steps or"
                " spec.sft.batchRows, or raise spec.sft.epochs or maxUpdates"
            )

    @property
    def per_epoch(self) -> int:
        """Updates of one pass over the rows."""
        return -(-self.rows // self.settings.batch_rows)

    @property
    def updates(self) -> int:
        """Updates of the whole run."""
        every = self.per_epoch * self.settings.epochs
        return every if self.settings.max_updates is None else min(every, self.settings.max_updates)

    def of_step(self, step: int) -> range:
        """The updates of a step: as many as of any other, except for one."""
        return range(step * self.updates // self.steps, (step + 1) * self.updates // self.steps)

    def rows_of(self, update: int) -> Int[np.ndarray, " rows"]:
        """Indices of the rows that an update trains on."""
        epoch, place = divmod(update, self.per_epoch)
        start = place * self.settings.batch_rows
        return _order(self.seed, epoch, self.rows)[start : start + self.settings.batch_rows]


@lru_cache(maxsize=1)
def _order(seed: int, epoch: int, rows: int) -> Int[np.ndarray, " rows"]:
    """The order of an epoch, kept while its updates are made: millions of rows take a second to shuffle."""
    return np.random.default_rng([seed, epoch]).permutation(rows)
