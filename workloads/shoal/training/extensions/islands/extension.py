"""When the trainer of an island meets the others: before the run, between updates, and after the last one.

In: the seam's events. Out: calls of `membership`, which makes the rounds, and the run's version where the others are further. In mode Train an
island exchanges after a step's last update: what the step computed under fixed policies is used up then, and the version that the step makes has
the weights that came of it. In mode SFT it exchanges after any update that is due.
"""

from collections.abc import Callable
from typing import Any

from shoal import telemetry
from shoal.storage import Store
from shoal.training.context import TrainerContext
from shoal.training.extensions.base import Extension
from shoal.training.extensions.islands.membership import Membership, OwnIsland
from shoal.training.model import Policy
from shoal.training.rollouts import StepRows
from shoal.training.waits import Waits


class Islands(Extension):
    """This trainer as one of several islands."""

    idle_phases = ("join", "exchange")
    weights_owner = "its island"
    state_first = True  # what the islands share is in the state alone

    def __init__(self, own: OwnIsland) -> None:
        self._own = own
        self.publishes = own.publishes
        self._updates = 0
        """Updates of the step so far."""
        self._owes = False
        """An exchange is overdue: it is tried after each step until it succeeds."""

    def state_store(self, store: Store) -> Store:
        return self._own.store

    def attach(self, context: TrainerContext, policy: Policy) -> None:
        """The weights that the islands share at the beginning are the base model's, which the policy has now."""
        self._config, self._progress = context.config, context.progress
        self._supervised = context.config.sft is not None
        self.membership = Membership(context.config, self._own, context.ranks, policy, context.alive)
        self.extra_state = self.membership
        self.share = (self.membership.share, self.membership.shares)
        self.catches_up = not self.membership.federated

    def before_run(self, version: int) -> int:
        """Take up what the islands share."""
        if version < self._config.steps:
            with self._progress.phase("join", "for the other islands"):
                self.membership.join(version)
        return self.after_step(version)

    def before_step(self, step: int) -> None:
        self._look_for_a_jump(step)

    def keep_rows(self, rows: StepRows) -> StepRows:
        return sampled_after(rows, self.membership.left_behind)

    def after_update(self, step: int) -> None:
        self._updates += 1
        if self._supervised and self.membership.due():
            with self._progress.phase("exchange", "with the other islands"):
                self.membership.exchange(step)

    def after_updates(self, step: int) -> None:
        updates, self._updates = self._updates, 0
        if updates and not self._supervised:
            self._exchange(step, updates)
        if step + 1 == self._config.steps:
            with self._progress.phase("exchange", "what was learnt last, with the other islands"):
                self.membership.finish(step + 1)
        self._look_for_a_jump(step)

    def after_step(self, version: int) -> int:
        """Steps that the other islands made without this one are not made again; the last one is, since it ends with the run's result.
        A run of a group has steps of its own, which nobody else makes."""
        ahead = min(self.membership.position, self._config.steps - 1)
        if self.membership.federated or ahead <= version:
            return version
        telemetry.get_logger().info("the islands are further", version=version, theirs=ahead)
        return ahead

    def after_run(self, result_is_there: Callable[[], bool], waits: Waits) -> None:
        if not self.publishes:
            self.membership.linger(result_is_there, waits)

    def close(self) -> None:
        self.membership.close()

    def progress(self) -> dict[str, Any]:
        return {"islands": self.membership.progress()}

    def _exchange(self, step: int, updates: int) -> None:
        """With the other islands, when it is time; once it is overdue, after each step."""
        due = self.membership.due(updates)
        if due or self._owes:
            with self._progress.phase("exchange", "with the other islands"):
                made = self.membership.exchange(step + 1, overdue=not due)
                # Where a member has other settings, the next try is when the next exchange is due.
                self._owes = not made and not self.membership.held

    def _look_for_a_jump(self, version: int) -> None:
        """Whether the weights were replaced by others' since the last look; what up to `version` sampled is not trained on then."""
        if self.membership.jumped and not self._supervised:
            self.membership.jumped = False
            self.membership.left_behind = version
            telemetry.get_logger().warning(
                "leaving out rows from before a copy of other islands' weights", up_to=version
            )


def sampled_after(rows: StepRows, version: int) -> StepRows:
    """Without the groups that a version up to this one had a hand in."""
    kept = [group for group in rows.groups if all(sample.policy_version > version for sample in group.samples)]
    gone = sum(len(group.samples) for group in rows.groups) - sum(len(group.samples) for group in kept)
    if gone == 0:
        return rows
    why = f"{gone} rows are of version {version} or older, before the weights of other islands were copied"
    return StepRows(kept, rows.left_out + gone, [*rows.problems, why])
