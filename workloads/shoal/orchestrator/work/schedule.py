"""What the mode of a run decides about its steps: which are open, when they are full, when the run is over. Pure.

A run of mode `Train` goes from step to step with the policy (`step_counter`). In mode `Generate` the steps are slices of the task table, all
fed by version 0 and open side by side; each takes the one file that holds every prompt of its slice. In mode `SFT` nothing is sampled: no step is
ever open. Made once from the configuration by `run_state`, which asks for nothing else.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from shoal.contracts.recipe import Recipe
from shoal.contracts.run import RunConfig
from shoal.contracts.steps import SourceGroups
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.contracts.work import TrainingStep, Work
from shoal.orchestrator.work import allocation, step_counter
from shoal.sampling.draw import slice_count
from shoal.sampling.mixture import SourceRows

OPEN_SLICES = 512
"""Slices handed out at once, smallest first: two leases and a few queued files for each of a hundred nodes. A request reads all of them."""


class Schedule(Protocol):
    """The rules of one run. `sealed` are the steps with a batch, `latest` is the newest announced version."""

    @property
    def steps(self) -> int:
        """Steps of the whole run."""

    @property
    def needed_groups(self) -> int:
        """Groups that make a step full."""

    @property
    def beacons_ahead(self) -> int:
        """How many steps after one whose beacon is revealed have theirs committed."""

    def openable_steps(self, sealed: Collection[int], latest: int | None) -> list[int]:
        """Steps that may be worked on, smallest first."""

    def counted_prompts(self, rewards: Sequence[RowReward], prompts: Sequence[int], group_size: int) -> list[int]:
        """Prompts of a file whose groups count towards the step."""

    def rate(self, judged_groups: int, counted_groups: int) -> float:
        """Expected share of groups that will count."""

    @property
    def several_files(self) -> bool:
        """Whether a step takes several files. Otherwise two nodes on one step do the same work twice."""

    def is_short(self, load: allocation.StepLoad, rate: float) -> bool:
        """Whether another file for this step is probably needed."""

    def has_room(self, load: allocation.StepLoad, rate: float) -> bool:
        """Whether one may be given: it may be needed. Holds of every step that is short."""

    def stalled(self, load: allocation.StepLoad) -> bool:
        """Whether a step has had as many groups as it may and still lacks some that count: a person must decide."""

    def may_announce(self, version: int, sealed: Collection[int]) -> bool:
        """Whether version `version` may exist by now."""

    def complete(self, latest: int | None, datasets: Collection[str]) -> bool:
        """Whether the run has made its result."""

    def waits_for(self, sealed: Collection[int], latest: int | None) -> str:
        """The event that opens the next step, in words; asked when none is open and the run is not complete."""


@dataclass(frozen=True)
class TrainSchedule:
    """Reinforcement learning: step `s` is fed by versions `s - async_level` to `s`."""

    steps: int
    async_level: int
    recipe: Recipe

    @property
    def needed_groups(self) -> int:
        return self.recipe.prompts_per_step

    @property
    def several_files(self) -> bool:
        return True

    @property
    def beacons_ahead(self) -> int:
        return self.async_level + 1

    def openable_steps(self, sealed: Collection[int], latest: int | None) -> list[int]:
        return step_counter.openable_steps(sealed, latest, self.async_level, self.steps)

    def counted_prompts(self, rewards: Sequence[RowReward], prompts: Sequence[int], group_size: int) -> list[int]:
        recipe = self.recipe
        return step_counter.signal_groups(rewards, prompts, group_size, recipe.online_filter, recipe.process_rewards)

    def rate(self, judged_groups: int, counted_groups: int) -> float:
        return allocation.signal_rate(judged_groups, counted_groups)

    def is_short(self, load: allocation.StepLoad, rate: float) -> bool:
        return not self.stalled(load) and allocation.is_short(load, rate)

    def has_room(self, load: allocation.StepLoad, rate: float) -> bool:
        return not self.stalled(load) and allocation.has_room(load, rate)

    def stalled(self, load: allocation.StepLoad) -> bool:
        return allocation.is_stalled(load, self.recipe.sampling_cap)

    def may_announce(self, version: int, sealed: Collection[int]) -> bool:
        return version == 0 or version - 1 in sealed

    def complete(self, latest: int | None, datasets: Collection[str]) -> bool:
        return latest is not None and latest >= self.steps

    def waits_for(self, sealed: Collection[int], latest: int | None) -> str:
        if latest is None:
            return "version 0, the base model, to be announced"
        step = step_counter.smallest_unsealed(sealed, self.steps)
        if step is None:
            return f"version {self.steps}, the last one, to be trained and announced"
        return f"version {max(0, step - self.async_level)} to be announced, so that step {step} opens"


@dataclass(frozen=True)
class GenerateSchedule:
    """Sampling a task table once: a step is a slice of `groups` tasks, full with the first accepted file. Every group counts, solved or not."""

    steps: int
    groups: int
    dataset: str

    @property
    def needed_groups(self) -> int:
        return self.groups

    @property
    def several_files(self) -> bool:
        return False

    @property
    def beacons_ahead(self) -> int:
        return 1

    def openable_steps(self, sealed: Collection[int], latest: int | None) -> list[int]:
        if latest is None:
            return []
        return list(islice((step for step in range(self.steps) if step not in sealed), OPEN_SLICES))

    def counted_prompts(self, rewards: Sequence[RowReward], prompts: Sequence[int], group_size: int) -> list[int]:
        return list(prompts)

    def rate(self, judged_groups: int, counted_groups: int) -> float:
        return 1.0

    def is_short(self, load: allocation.StepLoad, rate: float) -> bool:
        return load.accepted_groups + load.pending_groups < load.needed_groups

    def has_room(self, load: allocation.StepLoad, rate: float) -> bool:
        # No overshoot: one file is all that a slice can use.
        return self.is_short(load, rate)

    def stalled(self, load: allocation.StepLoad) -> bool:
        return False

    def may_announce(self, version: int, sealed: Collection[int]) -> bool:
        return version == 0

    def complete(self, latest: int | None, datasets: Collection[str]) -> bool:
        return self.dataset in datasets

    def waits_for(self, sealed: Collection[int], latest: int | None) -> str:
        if latest is None:
            return "version 0, the base model, to be announced"
        return f"data set {self.dataset!r} to be written from {self.steps} sampled slices of the task table"


@dataclass(frozen=True)
class SupervisedSchedule:
    """A supervised warm start: versions come from the trainer alone."""

    steps: int

    @property
    def needed_groups(self) -> int:
        return 0

    @property
    def several_files(self) -> bool:
        return False

    @property
    def beacons_ahead(self) -> int:
        return 0

    def openable_steps(self, sealed: Collection[int], latest: int | None) -> list[int]:
        return []

    def counted_prompts(self, rewards: Sequence[RowReward], prompts: Sequence[int], group_size: int) -> list[int]:
        return []

    def rate(self, judged_groups: int, counted_groups: int) -> float:
        return 1.0

    def is_short(self, load: allocation.StepLoad, rate: float) -> bool:
        return False

    def has_room(self, load: allocation.StepLoad, rate: float) -> bool:
        return False

    def stalled(self, load: allocation.StepLoad) -> bool:
        return False

    def may_announce(self, version: int, sealed: Collection[int]) -> bool:
        return version <= self.steps

    def complete(self, latest: int | None, datasets: Collection[str]) -> bool:
        return latest is not None and latest >= self.steps

    def waits_for(self, sealed: Collection[int], latest: int | None) -> str:
        return f"version {0 if latest is None else latest + 1} to be made by the trainer: mode SFT samples nothing"


def told_apart(schedule: Schedule, work: Work, verdict: Verdict, prompts: Sequence[int]) -> step_counter.AcceptedFile:
    """An accepted file of a step with its groups told apart by signal. `prompts`: those that were drawn for it.

    ValueError for a verdict that does not fit its work.
    """
    # Continuations say nothing of a group: whether it carries signal is for its own completions to say.
    groups = len(prompts)
    learnt_from = verdict.rewards[: groups * work.shape.group_size]
    carrying = schedule.counted_prompts(learnt_from, prompts, work.shape.group_size)
    assert verdict.policy_version is not None  # an accept has one
    has_pools = isinstance(work, TrainingStep) and work.curriculum is not None
    return step_counter.AcceptedFile(
        node=verdict.node,
        submission=verdict.submission,
        sha256=verdict.sha256,
        policy_version=verdict.policy_version,
        rows=verdict.rows,
        signal_prompts=tuple(carrying),
        dropped_groups=groups - len(carrying),
        by_source=_by_source(work.sources, prompts, carrying),
        part=verdict.part,
        solved=step_counter.solved_groups(learnt_from, prompts, work.shape.group_size) if has_pools else (),
    )


def _by_source(
    sources: Sequence[SourceRows], prompts: Sequence[int], carrying: Sequence[int]
) -> dict[str, SourceGroups]:
    """How many of a file's groups each source of a mixture has."""
    return {
        source.name: SourceGroups(
            sampled=sum(prompt in source.rows for prompt in prompts),
            with_signal=sum(prompt in source.rows for prompt in carrying),
        )
        for source in sources
    }


def schedule_of(config: RunConfig, task_count: Callable[[], int]) -> Schedule:
    """The rules of a run; `task_count` is asked for only where they need the task table."""
    match config.mode:
        case "Train":
            return TrainSchedule(config.steps, config.async_level, config.recipe)
        case "Generate":
            groups = config.sampling.groups_per_submission
            return GenerateSchedule(slice_count(task_count(), groups), groups, config.generate.dataset)
        case "SFT":
            return SupervisedSchedule(config.steps)
