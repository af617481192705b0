"""The numbers of work at the wire: a training step is its own number, a slice of an evaluation one above all steps.

Number, version, benchmark and slice follow from one another with the run's benchmarks alone (`numbers_of`, `located`): everybody who knows them
computes the same. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.contracts.base import NodeId
from shoal.contracts.evaluation import BenchmarkTerms
from shoal.sampling.draw import drawn_tasks, own_tasks

FIRST_NUMBER = 1_000_000
"""Steps are at most 999,999."""


@dataclass(frozen=True)
class EvaluationSlice:
    """One piece of evaluation work: a slice of a benchmark, answered by one version."""

    version: int
    benchmark: BenchmarkTerms
    slice: int

    @property
    def drawn(self) -> range:
        """Rows of the benchmark's task table that a file of this slice holds, in an order that is drawn."""
        terms = self.benchmark
        return drawn_tasks("Generate", self.slice, terms.task_count, terms.sampling.groups_per_submission)

    @property
    def own(self) -> range:
        """Rows that this slice alone answers for."""
        terms = self.benchmark
        return own_tasks(self.slice, terms.task_count, terms.sampling.groups_per_submission)


def slices_of(benchmarks: Sequence[BenchmarkTerms]) -> int:
    """Slices of all benchmarks: the numbers that one version takes."""
    return sum(each.slices for each in benchmarks)


def is_evaluation(number: int) -> bool:
    """Whether a `step` is the number of a slice."""
    return number >= FIRST_NUMBER


def first_number(version: int, benchmarks: Sequence[BenchmarkTerms]) -> int:
    """The number of the first slice of a version; the beacon of the version's evaluation goes by it too."""
    return FIRST_NUMBER + version * slices_of(benchmarks)


def numbers_of(version: int, name: str, benchmarks: Sequence[BenchmarkTerms]) -> range:
    """The numbers of a benchmark's slices, in order, for one version. KeyError when there is no such benchmark."""
    number = first_number(version, benchmarks)
    for each in benchmarks:
        if each.name == name:
            return range(number, number + each.slices)
        number += each.slices
    raise KeyError(f"there is no benchmark {name!r}")


def located(number: int, benchmarks: Sequence[BenchmarkTerms]) -> EvaluationSlice:
    """What a number stands for. ValueError for a number that is none of this run's evaluations."""
    slices = slices_of(benchmarks)
    if not is_evaluation(number) or slices == 0:
        raise ValueError(f"{number} is no number of an evaluation of this run")
    version, rest = divmod(number - FIRST_NUMBER, slices)
    for each in benchmarks:
        if rest < each.slices:
            return EvaluationSlice(version, each, rest)
        rest -= each.slices
    raise AssertionError("a remainder is less than the sum of the slices")


EVERYBODY: NodeId = "0" * 64
"""In the place of a node where a draw is the same for all."""


def drawn_for(step: int, node: NodeId, submission: int) -> tuple[NodeId, int]:
    """For whom the prompts, targets and seeds of a file are drawn: its node and submission, or of a slice everybody.

    So a slice has one draw: neither who answers it nor how often somebody tried can choose among several.
    """
    return (EVERYBODY, 0) if is_evaluation(step) else (node, submission)
