"""What a step learns from, and how: the one thing in which kinds of training differ. All else is the loop's, and the same for all of them.

In: the number of a step. Out: policy and optimizer changed in place, and what the step's report says. Two of them exist: `reinforcement` trains on
batches of rollouts, `sft` on rows of a data set. Made by `loop`, and called by it on every rank alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shoal.contracts.steps import StepMetrics
from shoal.training.host_copy import HostCopy
from shoal.training.metrics import StepTimes
from shoal.training.optimizer import Optimizer
from shoal.training.state import States
from shoal.training.waits import Waits


@dataclass(frozen=True)
class StepTools:
    """Policy and optimizer, as the loop builds them: the copy that versions are made from, the states, the waits."""

    copy: HostCopy
    states: States
    waits: Waits


@dataclass(frozen=True)
class Untrained:
    """A step that had nothing to train on: its version has the weights of the one before."""

    warning: str
    rows_left_out: int = 0


Report = Callable[[StepTimes], StepMetrics]
"""Of a trained step, once its times are known."""


class Method(Protocol):
    """One kind of training. `data` is the digest of what all of its steps train on, or None where that is decided step by step."""

    optimizer: Optimizer
    data: str | None

    def begin(self, tools: StepTools) -> None:
        """Called once, before the first step."""

    def train(self, step: int) -> Report | Untrained:
        """Make the updates that lead from version `step` to the next. A step that is done again gives the same ones."""

    def keep(self, version: int) -> None:
        """The host copy holds this version now."""

    def stop(self) -> None:
        """The loop ends, for whatever reason."""
