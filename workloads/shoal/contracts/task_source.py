"""Where tasks come from, which are kept, and how often each is drawn: `tasks` of a manifest, and a part of `config/run.json`. Pure."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from shoal.contracts.base import Probability, ShortText, SpecModel, unset
from shoal.contracts.datasets import ColumnName, DatasetSource
from shoal.contracts.model_source import ModelSource
from shoal.contracts.packages import MOST_PACKAGES, EnvironmentPackage
from shoal.contracts.prompts import PromptSettings
from shoal.contracts.sources import MOST_SOURCES, SourceName
from shoal.sampling.curriculum import PoolRule


class OfflineFilter(SpecModel):
    """Sample every task before the run and keep those of middling difficulty (paper section 3.3.1)."""

    samples: int = Field(8, ge=2, le=1024, description="Completions sampled for each problem.")
    min_correct: Probability = Field(
        0.125, description="Drop a problem when a smaller share of its samples is correct."
    )
    max_correct: Probability = Field(0.5, description="Drop a problem when a greater share of its samples is correct.")
    model: ModelSource | None = Field(None, description="Model that is sampled; absent: the run's base model.")
    solve_rate: ColumnName | None = Field(
        None,
        exclude_if=unset,
        description="Column of the dataset with the share of right answers that some model gave, from 0 to 1. Given: it decides, nothing is sampled,"
        " and problems without a rate are dropped.",
    )


class TaskOrigin(SpecModel):
    """Which environment gives or judges tasks, where they come from, how many, and how they are asked."""

    environment: ShortText | None = Field(
        None,
        description="Name of an installed environment (`shoal env list`). It judges answers, and makes the tasks when there is no dataset.",
    )
    count: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="Number of tasks. Absent: all of a dataset, or 4096 that the environment makes.",
    )
    dataset: DatasetSource | None = Field(
        None, description="Files that the tasks come from; absent: the environment makes them."
    )
    offline_filter: OfflineFilter | None = Field(
        None, description="Sample every problem first, and keep those of middling difficulty only; absent: keep all."
    )
    prompt: PromptSettings | None = Field(
        None, exclude_if=unset, description="How prompts are made; absent: by the tokenizer's template."
    )

    @property
    def judged_by(self) -> str:
        """The environment's name; empty for a mixture, which has none of its own."""
        return self.environment or ""

    @property
    def is_sampled_first(self) -> bool:
        """Whether an offline filter needs these tasks sampled before the run. With the data set's own solve rates it does not."""
        return self.offline_filter is not None and self.offline_filter.solve_rate is None


LARGEST_WEIGHT = 1000
"""With 16 sources a cycle of turns has at most 16,000 prompts (`sampling.mixture`)."""


class MixtureSource(TaskOrigin):
    """One source of a mixture of tasks."""

    name: SourceName = Field(
        ..., description="Name in metrics, reports and problem ids; also the `task_type` of the source's tasks."
    )
    environment: ShortText = Field(
        ...,
        description="Name of an installed environment without tools. It judges answers, and makes the tasks when there is no dataset.",
    )
    weight: int = Field(
        1,
        ge=1,
        le=LARGEST_WEIGHT,
        description="The source's share of the prompts that are sampled: this number of the sum of all weights. The shares hold in every step:"
        " exactly where they are whole prompts of a file (sampling.groupsPerSubmission), else within two prompts for each node.",
    )
    length_targets: list[Annotated[int, Field(ge=1, le=1_048_576)]] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Target lengths of this source, in tokens, with the alpha of lengthReward. Absent: lengthReward.targets.",
    )


PoolWeight = Annotated[int, Field(ge=1, le=LARGEST_WEIGHT)]


class PoolWeights(SpecModel):
    """Shares of the prompts that are sampled: each number of the sum of all. Each is 1 or more, so that every problem comes again some time."""

    unseen: PoolWeight = Field(2, description="Problems that the run has not tried yet.")
    hard: PoolWeight = Field(1, description="Problems whose solve rate is below hardBelow.")
    middle: PoolWeight = Field(4, description="Problems between the two.")
    easy: PoolWeight = Field(1, description="Problems whose solve rate is easyFrom or more.")


class Curriculum(SpecModel):
    """Pools of problems by the solve rate that the run itself measures: how often each pool is drawn from."""

    weights: PoolWeights = Field(default_factory=PoolWeights, description="Each pool's share of the prompts.")
    hard_below: float = Field(
        0.125, gt=0.0, le=1.0, description="Problems with a lower share of right answers are hard."
    )
    easy_from: float = Field(
        0.875, gt=0.0, le=1.0, description="Problems with at least this share of right answers are easy."
    )
    votes: int = Field(
        4,
        ge=1,
        le=1000,
        description="Groups of a problem that its solve rate is a mean over. From then on each new group counts 1 / votes, and older ones fade.",
    )
    most_often: int = Field(
        8,
        ge=1,
        le=1000,
        description="A pool's share is at most this number times its share of the problems, or one prompt in a thousand."
        " A small pool leaves the rest to others.",
    )

    @property
    def rule(self) -> PoolRule:
        """The same for whoever makes pools."""
        weights = (self.weights.unseen, self.weights.hard, self.weights.middle, self.weights.easy)
        return PoolRule(weights, self.hard_below, self.easy_from, self.votes, self.most_often)


class TaskSource(TaskOrigin):
    """Tasks of one environment, or a mixture of several sources."""

    mixture: Annotated[list[MixtureSource], Field(min_length=1, max_length=MOST_SOURCES)] | None = Field(
        None,
        exclude_if=unset,
        description="Sources that are trained on together, each with its own environment, data and weight. Given instead of environment, count,"
        " dataset and offlineFilter; prompt counts for sources that have none. Absent: one environment.",
    )
    curriculum: Curriculum | None = Field(
        None,
        exclude_if=unset,
        description="Draw problems from pools, by the solve rate that the run measures. Absent: all problems are drawn equally often.",
    )
    packages: list[EnvironmentPackage] = Field(
        [],
        exclude_if=unset,
        max_length=MOST_PACKAGES,
        description="Wheels with environments that no image holds, and all that they need (`shoal env add`). Prepare fetches each once; workers,"
        " strangers' too, and validators have it from the run, and run it in a sandbox only. Empty: what is installed.",
    )

    @property
    def origins(self) -> Sequence[TaskOrigin]:
        """Where tasks come from: the sources of a mixture, or this alone."""
        return self.mixture or [self]

    @property
    def sampled_filter(self) -> OfflineFilter | None:
        """The offline filter, where it needs a run that samples; all sources of a mixture that have one say the same of samples and model."""
        return next((each.offline_filter for each in self.origins if each.is_sampled_first), None)
