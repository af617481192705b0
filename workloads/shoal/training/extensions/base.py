"""The trainer's seam: hooks through which an extension takes part in training. The loop and the methods call them and know no extension.

In: the events of a run. Out: changed weights, other advantages, more state, more to report, as the extension needs. A hook that is not
overridden changes nothing. Hooks run on every rank alike, in the order in which `enabled` lists the extensions. One trainer calls them so:

    attach, before_run, (before_step, [keep_rows, before_updates,] after_update..., after_updates, after_step)..., after_run, close

Hooks in brackets belong to mode Train. A step that makes its version by a roll-back has `after_step` alone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from shoal.contracts.steps import StepMetrics
from shoal.storage import Store
from shoal.training.batches import AdvantageEstimator, StepPlan, group_relative
from shoal.training.context import TrainerContext
from shoal.training.host_copy import ExtraState, Learner
from shoal.training.model import Policy
from shoal.training.rollouts import Continuations, RolloutGroup, StepRows
from shoal.training.update import Beat, LogProbs
from shoal.training.waits import Waits

WHOLE = (0, 1)
"""The share of a trainer that learns all rows."""


class Extension:
    """One extension of a trainer. Attributes may depend on the run; they are final once `attach` has returned."""

    publishes = True
    """Whether this trainer announces versions. One that does not keeps states and reports only."""
    state_first = False
    """Whether a version may be handed over only after its state is durable: published weights are not enough to go on from."""
    catches_up = False
    """Whether a trainer without any state takes up in `before_run` what others of its run have learnt meanwhile."""
    share: tuple[int, int] = WHOLE
    """Which part of how many of a data set's rows this trainer learns; part 0 is the first."""
    weights_owner = ""
    """Who else changes the policy's weights, in words; empty: only this trainer's updates do."""
    idle_phases: Collection[str] = ()
    """The extension's phases in which the trainer waits."""
    advantages: AdvantageEstimator | None = None
    """Replaces the objective's own advantages."""
    continuations: Continuations | None = None
    """How to read the rows of a file that continue its completions."""
    extra_state: ExtraState | None = None
    """State to save in training states."""

    def state_store(self, store: Store) -> Store:
        """Where this trainer's states and reports go; `store` is the run's. Called before `attach`."""
        return store

    def attach(self, context: TrainerContext, policy: Policy) -> None:
        """The policy is loaded, with the base model's weights. Called once."""

    def learners(self) -> Mapping[str, Learner]:
        """Models trained beside the policy. Their names begin their keys in training states, followed by a dot.

        States hold weights and moments, and no count of updates: a learner's rate must be constant.
        """
        return {}

    def before_run(self, version: int) -> int:
        """States are restored, and training continues from `version`. Returns the version to continue from."""
        return version

    def before_step(self, step: int) -> None:
        """Step `step` begins to train."""

    def keep_rows(self, rows: StepRows) -> StepRows:
        """The rows of a step that may be learnt."""
        return rows

    def before_updates(
        self, groups: Sequence[RolloutGroup], plan: StepPlan, reference: LogProbs | None, beat: Beat
    ) -> StepPlan:
        """The plan of a step, perhaps with other advantages. `reference`: log-probabilities under the base model; None where nobody needs them."""
        return plan

    def after_update(self, step: int) -> None:
        """The optimizer made, or skipped, one update of step `step`."""

    def after_updates(self, step: int) -> None:
        """The optimizer made the last update of step `step`; or there was nothing to train on."""

    def measured(self, groups: Sequence[RolloutGroup]) -> dict[str, Any]:
        """Fields of `StepMetrics` for the report of a step that was trained on these groups."""
        return {}

    def after_step(self, version: int) -> int:
        """The step made `version`. Returns the version to continue from: a later one where its step need not be made here."""
        return version

    def after_run(self, result_is_there: Callable[[], bool], waits: Waits) -> None:
        """The last version is made, and announced where this trainer does that. `result_is_there`: whether the store has the run's result."""

    def close(self) -> None:
        """The loop ends, for whatever reason."""

    def progress(self) -> dict[str, Any]:
        """Fields of `TrainerProgress`."""
        return {}

    def show(self, metrics: StepMetrics, *, finished: bool) -> None:
        """Put a step into gauges. `finished`: it is new, so counters count it; else a restarted trainer shows the last one again."""


class Extensions:
    """The extensions of one trainer, called as one."""

    def __init__(self, *extensions: Extension) -> None:
        self._all = extensions

    def __iter__(self) -> Iterator[Extension]:
        return iter(self._all)

    @property
    def publishes(self) -> bool:
        return all(each.publishes for each in self)

    @property
    def state_first(self) -> bool:
        return any(each.state_first for each in self)

    @property
    def catches_up(self) -> bool:
        return any(each.catches_up for each in self)

    @property
    def share(self) -> tuple[int, int]:
        return next((each.share for each in self if each.share != WHOLE), WHOLE)

    @property
    def weights_owner(self) -> str:
        return next((each.weights_owner for each in self if each.weights_owner), "")

    @property
    def advantages(self) -> AdvantageEstimator:
        return next((each.advantages for each in self if each.advantages is not None), group_relative)

    @property
    def continuations(self) -> Continuations | None:
        return next((each.continuations for each in self if each.continuations is not None), None)

    @property
    def extra_states(self) -> list[ExtraState]:
        return [each.extra_state for each in self if each.extra_state is not None]

    def state_store(self, store: Store) -> Store:
        return reduce(lambda found, each: each.state_store(found), self, store)

    def attach(self, context: TrainerContext, policy: Policy) -> None:
        for each in self:
            each.attach(context, policy)

    def learners(self) -> dict[str, Learner]:
        return {name: learner for each in self for name, learner in each.learners().items()}

    def before_run(self, version: int) -> int:
        return reduce(lambda found, each: each.before_run(found), self, version)

    def before_step(self, step: int) -> None:
        for each in self:
            each.before_step(step)

    def keep_rows(self, rows: StepRows) -> StepRows:
        return reduce(lambda found, each: each.keep_rows(found), self, rows)

    def before_updates(
        self, groups: Sequence[RolloutGroup], plan: StepPlan, reference: LogProbs | None, beat: Beat
    ) -> StepPlan:
        return reduce(lambda found, each: each.before_updates(groups, found, reference, beat), self, plan)

    def after_update(self, step: int) -> None:
        for each in self:
            each.after_update(step)

    def after_updates(self, step: int) -> None:
        for each in self:
            each.after_updates(step)

    def measured(self, groups: Sequence[RolloutGroup]) -> dict[str, Any]:
        return {name: value for each in self for name, value in each.measured(groups).items()}

    def after_step(self, version: int) -> int:
        return reduce(lambda found, each: each.after_step(found), self, version)

    def after_run(self, result_is_there: Callable[[], bool], waits: Waits) -> None:
        for each in self:
            each.after_run(result_is_there, waits)

    def close(self) -> None:
        for each in self:
            each.close()
