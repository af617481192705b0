"""Benchmarks that a run's own workers score on its versions: what a person chooses, and what prepare pins.

A benchmark's task table is cut into slices, one submission each. `contracts.work` gives a slice of a version its number.
"""

from typing import Annotated, Self

from pydantic import Field, StringConstraints

from shoal.contracts.base import Contract, Sha256Hex, ShortText, SpecModel, unset
from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.datasets import DatasetSource
from shoal.contracts.prompts import PromptSettings, PromptTerms
from shoal.contracts.sources import SourceName
from shoal.contracts.weights import VersionNumber
from shoal.sampling.draw import slice_count

MOST_SLICES = 2_000
"""Of all benchmarks of a run: with a million versions the largest number is still a signed 32-bit integer, as `step` is in rollout files."""

BenchmarkName = Annotated[str, StringConstraints(max_length=40, pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]


class BenchmarkTasks(SpecModel):
    """Where a benchmark's tasks come from, and what judges the answers."""

    environment: ShortText | None = Field(
        None,
        description="Name of an installed environment (`shoal env list`). It judges answers, and makes the tasks when there is no dataset."
        " A task of lm-evaluation-harness is `lm-eval:TASK@REVISION`.",
    )
    source: SourceName | None = Field(
        None,
        exclude_if=unset,
        description="Name of a source of tasks.mixture, whose environment and prompt settings the benchmark has; given instead of environment.",
    )
    count: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Number of tasks. Absent: all of a dataset or a task of lm-evaluation-harness, or 128 that the environment makes.",
    )
    dataset: DatasetSource | None = Field(
        None,
        description="Files that the tasks come from. Absent: the environment makes them, with another seed than the run's.",
    )


class Truncation(Contract):
    """Which tokens a sampler leaves out, in this order: those below `min_p` times the likeliest, all but the `top_k` likeliest (0: none), and those
    beyond the likeliest ones that have `top_p` together. Of evaluation only: it would bias the ratios that a policy is trained with.
    """

    min_p: float = Field(default=0.0, ge=0.0, lt=1.0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)

    @classmethod
    def of(cls, min_p: float | None, top_k: int | None, top_p: float | None) -> Self | None:
        """None where nothing is left out."""
        found = cls(min_p=min_p or 0.0, top_k=top_k or 0, top_p=top_p or 1.0)
        return None if found == cls() else found


class Benchmark(SpecModel):
    """One benchmark: tasks, and how answers to them are sampled."""

    name: BenchmarkName = Field(..., description="Name in records and tables.")
    tasks: BenchmarkTasks = Field(..., description="Tasks of the benchmark.")
    samples: int = Field(4, ge=1, le=256, description="Answers sampled for each task: k of avg@k.")
    temperature: float = Field(
        0.6,
        gt=0.0,
        le=2.0,
        description="Sampling temperature. It must be above 0, because proofs do not cover greedy choices.",
    )
    top_p: float | None = Field(
        None,
        exclude_if=unset,
        gt=0.0,
        le=1.0,
        description="Sample from the likeliest tokens that have this probability together; absent: all.",
    )
    top_k: int | None = Field(
        None,
        exclude_if=unset,
        ge=1,
        le=1_000_000,
        description="Sample from this many of the likeliest tokens; absent: all.",
    )
    min_p: float | None = Field(
        None,
        exclude_if=unset,
        gt=0.0,
        lt=1.0,
        description="Leave out tokens less likely than this share of the likeliest; absent: none.",
    )
    prompt: PromptSettings | None = Field(
        None, exclude_if=unset, description="How prompts are made; absent: as those of the run's tasks."
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, le=1_048_576, description="Longest answer in tokens; absent: sampling.maxCompletionTokens."
    )
    target_length: int | None = Field(
        None,
        ge=1,
        le=1_048_576,
        description="Tokens that the prompt asks for, as in training; scores do not depend on it. Absent: none.",
    )


class EvaluationSettings(SpecModel):
    """Benchmarks scored on the run's versions by its own workers."""

    every_versions: int = Field(
        10, ge=1, le=999_999, description="Score every Nth version, from version 0, and the last one."
    )
    share: float = Field(
        0.25,
        gt=0.0,
        le=0.9,
        description="Most evaluation, as a share of the work handed out, while a training step needs work too.",
    )
    final_wait_seconds: int = Field(
        3600,
        ge=0,
        le=604_800,
        description="Seconds to wait for the last version's scores. The run is then complete without them.",
    )
    benchmarks: list[Benchmark] = Field(..., min_length=1, max_length=16, description="What is scored.")
    best_by: BenchmarkName | None = Field(
        None, description="Benchmark whose avg@k decides which version is best; absent: the first one."
    )

    @property
    def primary(self) -> str:
        """Name of the benchmark by which versions are compared."""
        return self.best_by or self.benchmarks[0].name


class BenchmarkTerms(Contract):
    """A benchmark as prepare pinned it, and as every role reads it: later edits of the run do not change its slices.

    `sampling.groups_per_submission` are the tasks of one slice, so of one file. The task table lies beside the run's own.
    """

    name: BenchmarkName
    environment: str
    environment_digest: Sha256Hex
    tasks_digest: Sha256Hex
    task_count: int = Field(ge=1)
    samples: int = Field(ge=1, le=256)
    sampling: Sampling
    target_length: int | None = None
    truncation: Truncation | None = Field(
        default=None, exclude_if=unset, description="what the sampler leaves out; None: nothing"
    )
    prompt: PromptTerms | None = Field(
        default=None, exclude_if=unset, description="how prompts are made; None: the environment's text"
    )

    @property
    def slices(self) -> int:
        """Slices of the task table; the last one is as long as the others and begins inside of the one before."""
        return slice_count(self.task_count, self.sampling.groups_per_submission)

    @property
    def length_reward(self) -> LengthReward | None:
        """The target as a length reward without penalty: it is put into prompts and costs nothing."""
        return None if self.target_length is None else LengthReward(targets=[self.target_length], alpha=0.0)


def sampling_of(benchmark: Benchmark, task_count: int, sampling: Sampling, group_size: int) -> Sampling:
    """How a benchmark's answers are sampled. Asked by prepare alone.

    `sampling` and `group_size` are the run's: a slice's file is about as large as a step's.
    """
    return Sampling(
        temperature=benchmark.temperature,
        max_completion_tokens=benchmark.max_completion_tokens or sampling.max_completion_tokens,
        groups_per_submission=tasks_of_a_file(
            task_count, benchmark.samples, sampling.groups_per_submission * group_size
        ),
    )


def tasks_of_a_file(task_count: int, samples: int, rows: int) -> int:
    """Tasks whose answers together are at most `rows`, one at least."""
    return max(1, min(task_count, rows // samples, 4096))


class BestVersion(Contract):
    """`evaluations/best.json`: the version with the largest avg@k on the benchmark that decides; the earlier one of two that are equal."""

    version: VersionNumber
    benchmark: BenchmarkName
    value: float = Field(ge=0.0, le=1.0, description="avg@k")


class EvaluationProgress(Contract):
    """How far a version's evaluation on one benchmark is, or what came of it."""

    version: VersionNumber
    benchmark: BenchmarkName
    slices: int = Field(ge=1)
    slices_done: int = Field(ge=0)
    avg_at_k: float | None = Field(default=None, ge=0.0, le=1.0, description="None: not fully scored")
    low: float | None = Field(default=None, ge=0.0, le=1.0, description="lower end of its 95 % interval over tasks")
    high: float | None = Field(default=None, ge=0.0, le=1.0, description="upper end of it")
    ended: bool = Field(default=False, description="no more work is handed out for it")
