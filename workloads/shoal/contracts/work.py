"""Work: what a lease may be for, and the only place that knows which number stands for it in leases, keys, files and the ledger.

A piece of work is one of three: a step of training, a slice of the task table (mode Generate), or a slice of a benchmark that one version answers.
It knows which versions may feed it (`window`), what its files hold (`shape`), which rows they are drawn from (`drawn`) and for whom (`drawn_for`).
Documents name it by its `number`, in their field `step`. `WorkCodec` decodes numbers by the run's terms alone, so that everybody who knows them
computes the same. Code that has no terms, such as the ledger's, asks for a number's kind (`kind_of`).

A further kind of work is added here: a member of `WorkKind` with numbers of its own, a type, and a case in `WorkCodec.decode`. mypy then names each
function that does not answer for it. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from typing import ClassVar, Protocol, Self

from pydantic import Field, field_validator

from shoal.contracts.base import Contract, NodeId
from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.datasets import Mode
from shoal.contracts.evaluation import BenchmarkTerms
from shoal.sampling.curriculum import Pools
from shoal.sampling.draw import (
    DrawnGroup,
    draw_for_prompts,
    draw_from_pools,
    draw_mixture,
    draw_submission,
    own_tasks,
    slice_tasks,
)
from shoal.sampling.mixture import SourceRows

EVERYBODY: NodeId = "0" * 64
"""In the place of a node where a draw is the same for all."""
FIRST_SLICE = 1_000_000
"""Number of version 0's first slice of a benchmark. Steps are at most 999,999."""
BASE_SECONDS = 60.0
"""Seconds of a lease for swap, start and scoring. After this a dead worker's share of the step is free again."""
SECONDS_A_TOKEN = 0.05
"""Slowest decoding that is waited for: 20 tokens a second in a row. 30,720 tokens get 27 minutes, about the paper's time for a batch."""
TOGETHER = 128
"""Sequences that the smallest engines, those on a CPU, decode at a time (`inference.engine`)."""


def lease_seconds(max_completion_tokens: int, continuations: int = 0) -> float:
    """How long a file may take, from the longest completion of the run and the continuations in a file.

    Completions are decoded together. Continuations can only begin when those are there, and are then decoded `TOGETHER` at a time: whoever ends
    makes room, and they are half as long on average. So what fills the engine takes half a round for
    each `TOGETHER`, and the last of them a whole one.
    """
    rounds = 1.0 + min(-(-continuations // TOGETHER), 1.0 + 0.5 * continuations / TOGETHER)
    return BASE_SECONDS + SECONDS_A_TOKEN * max_completion_tokens * rounds


@dataclass(frozen=True)
class FileShape:
    """The content that every file of a piece of work must have. `targets`: lengths that are drawn from; None: none is asked for.

    `rows_each`: rows for each completion that is learnt from, itself and with algorithm `vineppo` its continuations, which follow on all of them.
    """

    groups: int
    group_size: int
    max_completion_tokens: int
    targets: Sequence[int] | None
    rows_each: int

    @classmethod
    def of(cls, sampling: Sampling, group_size: int, lengths: LengthReward | None, rows_each: int = 1) -> Self:
        targets = lengths.targets if lengths is not None else None
        return cls(sampling.groups_per_submission, group_size, sampling.max_completion_tokens, targets, rows_each)

    @property
    def completions(self) -> int:
        return self.groups * self.group_size

    @property
    def rows(self) -> int:
        return self.completions * self.rows_each

    @property
    def lease_seconds(self) -> float:
        """How long a lease for such a file lasts that is new."""
        return lease_seconds(self.max_completion_tokens, self.rows - self.completions)


class PoolsByStep(Protocol):
    """The part of `contracts.curriculum.StepPools` that a draw needs."""

    def of(self, step: int) -> Pools: ...


@dataclass(frozen=True)
class _Step:
    """The common part of the steps of all modes: a number of their own, and the run's task table."""

    number: int
    shape: FileShape
    task_count: int
    sources: Sequence[SourceRows] = field(default=(), kw_only=True)
    """Whose the rows of the task table are, in a run on a mixture; none: all are alike."""

    @property
    def beacon_number(self) -> int:
        """The number under which the ledger has its beacon."""
        return self.number

    def drawn_for(self, node: NodeId, submission: int) -> tuple[NodeId, int]:
        """For whom prompts, targets and seeds of a file are drawn."""
        return node, submission


@dataclass(frozen=True)
class TrainingStep(_Step):
    """A step of training: each file draws prompts of its own from the whole task table, of a mixture by its sources' turns.

    With a curriculum by the turns of its pools: `curriculum` has them where the run's batches can be read. A worker cannot read them, and is told
    the `prompts` of its lease.
    """

    async_level: int
    curriculum: PoolsByStep | None = field(default=None, kw_only=True, compare=False)
    prompts: Sequence[int] | None = field(default=None, kw_only=True)

    def on(self, prompts: Sequence[int]) -> Self:
        """The same step with these prompts of one lease. ValueError for rows that the task table does not have, and for too few or too many."""
        known = [row for row in set(prompts) if 0 <= row < self.task_count]
        if not len(known) == len(prompts) == self.shape.groups:
            raise ValueError(
                f"a lease names {len(prompts)} prompts, {len(known)} different ones of the task table; allowed: {self.shape.groups}"
            )
        return replace(self, prompts=tuple(prompts))

    @property
    def window(self) -> tuple[int, int]:
        """Oldest and newest policy version that may feed it."""
        return max(0, self.number - self.async_level), self.number

    @property
    def drawn(self) -> range:
        """Rows of the task table that the prompts of a file are drawn from."""
        return range(self.task_count)


@dataclass(frozen=True)
class TableSlice(_Step):
    """A slice of the task table, sampled once by the base model: each file holds every row of the slice, in an order that is drawn."""

    @property
    def window(self) -> tuple[int, int]:
        return 0, 0

    @property
    def drawn(self) -> range:
        return slice_tasks(self.number, self.task_count, self.shape.groups)


@dataclass(frozen=True)
class EvaluationSlice:
    """A slice of a benchmark, answered by one version. No batch contains it: the first accepted file answers it."""

    sources: ClassVar[Sequence[SourceRows]] = ()
    """A benchmark has one source."""
    number: int
    version: int
    benchmark: BenchmarkTerms
    slice: int
    beacon_number: int
    """The version's first number: all slices of its evaluation share one beacon."""

    @property
    def window(self) -> tuple[int, int]:
        return self.version, self.version

    @property
    def shape(self) -> FileShape:
        return FileShape.of(self.benchmark.sampling, self.benchmark.samples, self.benchmark.length_reward)

    @property
    def drawn(self) -> range:
        return slice_tasks(self.slice, self.benchmark.task_count, self.benchmark.sampling.groups_per_submission)

    @property
    def own(self) -> range:
        """Rows that this slice alone answers for."""
        return own_tasks(self.slice, self.benchmark.task_count, self.benchmark.sampling.groups_per_submission)

    def drawn_for(self, node: NodeId, submission: int) -> tuple[NodeId, int]:
        """A slice has one draw: neither who answers it nor how often somebody tried can choose among several."""
        return EVERYBODY, 0


Work = TrainingStep | TableSlice | EvaluationSlice


FIRST_PART_NUMBER = 1 << 24
"""Submission numbers from here on are of leases that finish another one. They draw nothing of their own, so that a node passes over no number by
them."""


def ascending(groups: list[int]) -> list[int]:
    """These places in a draw, at least one; ValueError where they do not ascend from 0."""
    if groups != sorted(set(groups)) or groups[0] < 0:
        raise ValueError("groups are places in the draw, from 0, ascending, each once")
    return groups


class LeasePart(Contract):
    """Part of what a lease drew: the file holds `groups` of those that are drawn for number `submission` of `node`, in their order.

    Prompts, targets and seeds are theirs, whoever makes the file: a row that one node left out is drawn by another exactly so.
    """

    node: NodeId = Field(description="for which the groups are drawn")
    submission: int = Field(ge=0)
    groups: list[int] = Field(min_length=1, max_length=65536, description="places in the draw, from 0, ascending")
    left: int = Field(
        default=0,
        ge=0,
        exclude_if=lambda left: left == 0,
        description="groups of the same lease that its file did not bring",
    )

    @field_validator("groups")
    @classmethod
    def _ascending(cls, groups: list[int]) -> list[int]:
        return ascending(groups)

    @property
    def drawn_for(self) -> tuple[NodeId, int]:
        """Whose draw it is a part of."""
        return self.node, self.submission


def pools_digest(work: Work) -> str | None:
    """The digest of the pools that prompts are drawn from; None for work without a curriculum."""
    if not isinstance(work, TrainingStep) or work.curriculum is None:
        return None
    return work.curriculum.of(work.number).digest


def may_be_parted(work: Work) -> bool:
    """Whether a lease for this work may be handed in in parts: a step's of several groups, without rows that continue all of them."""
    return isinstance(work, TrainingStep) and work.shape.groups > 1 and work.shape.rows_each == 1


def draw(
    work: Work, *, beacon: bytes, run: str, node: NodeId, submission: int, part: LeasePart | None = None
) -> list[DrawnGroup]:
    """The groups that a file of this work must hold; of a `part`, its own.

    ValueError for a beacon that is none, for a table with too few rows, and for a part of what is not drawn.
    """
    if part is not None:
        if not may_be_parted(work) or part.groups[-1] >= work.shape.groups:
            raise ValueError(
                f"groups {part.groups[:8]} are no part of a lease of {work.shape.groups} groups for {work.number}"
            )
        whole = draw(work, beacon=beacon, run=run, node=part.node, submission=part.submission)
        return [whole[place] for place in part.groups]
    node, submission = work.drawn_for(node, submission)
    drawn, shape = work.drawn, work.shape
    prompts = work.prompts if isinstance(work, TrainingStep) else None
    if prompts is None and isinstance(work, TrainingStep) and work.curriculum is not None:
        prompts = draw_from_pools(
            beacon=beacon,
            run=run,
            step=work.number,
            node=node,
            submission=submission,
            groups=shape.groups,
            pools=work.curriculum.of(work.number),
        )
    if prompts is not None:
        return draw_for_prompts(
            beacon=beacon,
            run=run,
            step=work.number,
            node=node,
            submission=submission,
            prompts=prompts,
            group_size=shape.group_size,
            targets=shape.targets,
        )
    if isinstance(work, TrainingStep) and work.sources:
        return draw_mixture(
            beacon=beacon,
            run=run,
            step=work.number,
            node=node,
            submission=submission,
            groups=shape.groups,
            group_size=shape.group_size,
            sources=work.sources,
        )
    return draw_submission(
        beacon=beacon,
        run=run,
        step=work.number,
        node=node,
        submission=submission,
        task_count=len(drawn),
        first_task=drawn.start,
        groups=shape.groups,
        group_size=shape.group_size,
        targets=shape.targets,
        sources=work.sources,
    )


class WorkKind(Enum):
    """The kind of work that a number alone shows."""

    STEP = auto()
    """A step of the run, of training or of the task table: a batch seals it."""
    EVALUATION = auto()
    """A slice of a benchmark."""


def kind_of(number: int) -> WorkKind:
    """The kind of work that a number stands for, in every run."""
    return WorkKind.EVALUATION if number >= FIRST_SLICE else WorkKind.STEP


def may_share_beacon(number: int, committed: int) -> bool:
    """Whether a slice's beacon can be the one committed to under another number: that of its version's first slice, none after its own."""
    return kind_of(number) is kind_of(committed) is WorkKind.EVALUATION and committed <= number


class UnknownWorkError(ValueError):
    """A number that stands for no work of this run."""


@dataclass(frozen=True)
class WorkCodec:
    """The numbers of one run's work. `shape`, `task_count` and the `sources` of a mixture are those of its steps."""

    mode: Mode
    shape: FileShape
    task_count: int
    async_level: int
    benchmarks: Sequence[BenchmarkTerms] = ()
    sources: Sequence[SourceRows] = ()
    curriculum: PoolsByStep | None = None

    def decode(self, number: int) -> Work:
        """The work behind a number. Raises `UnknownWorkError`."""
        match kind_of(number):
            case WorkKind.STEP:
                return self.step(number)
            case WorkKind.EVALUATION:
                return self.slice(number)

    def step(self, step: int) -> TrainingStep | TableSlice:
        """A step of the run."""
        if self.mode == "Generate":
            return TableSlice(step, self.shape, self.task_count, sources=self.sources)
        return TrainingStep(
            step, self.shape, self.task_count, self.async_level, sources=self.sources, curriculum=self.curriculum
        )

    def slice(self, number: int) -> EvaluationSlice:
        """The slice of a benchmark with this number. Raises `UnknownWorkError`."""
        if kind_of(number) is WorkKind.EVALUATION and self._slices:
            version, rest = divmod(number - FIRST_SLICE, self._slices)
            for each in self.benchmarks:
                if rest < each.slices:
                    return EvaluationSlice(number, version, each, rest, self.first_number(version))
                rest -= each.slices
        raise UnknownWorkError(f"{number} is not a number of an evaluation of this run")

    def first_number(self, version: int) -> int:
        """The number of a version's first slice."""
        return FIRST_SLICE + version * self._slices

    def numbers(self, version: int, benchmark: str) -> range:
        """The numbers of a version's slices of a benchmark, in order. KeyError when there is no such benchmark."""
        number = self.first_number(version)
        for each in self.benchmarks:
            if each.name == benchmark:
                return range(number, number + each.slices)
            number += each.slices
        raise KeyError(f"there is no benchmark {benchmark!r}")

    @cached_property
    def _slices(self) -> int:
        """Slices of all benchmarks: the numbers that one version takes."""
        return sum(each.slices for each in self.benchmarks)
