"""What a run's own workers' answers say of one version on one benchmark: `evaluations/v000007/<name>.json`, and which version is best. Pure.

In: the benchmark's terms, accepted verdicts with the prompts that they are on. Out: `VersionEvaluation`. Called by the orchestrator; everything in a
record follows from the ledger and its verdicts, so that anybody who can read the store can make it again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from shoal.contracts.base import Contract, RunName
from shoal.contracts.evaluation import BenchmarkTerms, BestVersion
from shoal.contracts.verdicts import Verdict
from shoal.contracts.weights import VersionNumber
from shoal.evaluation.scores import Answer, AnsweredTask, Scores, scores


@dataclass(frozen=True)
class ScoredVersion:
    """A record in two words: a long run has thousands of them, with a line for every problem. `avg_at_k` is None where nothing was scored."""

    avg_at_k: float | None
    complete: bool
    interval: tuple[float, float] | None = None
    """95 % interval of avg@k over tasks."""


class VersionEvaluation(Contract):
    """The record. `scores` is over the tasks of the slices that were done; None: none was. Only a complete record is compared with others."""

    run: RunName
    version: VersionNumber
    benchmark: BenchmarkTerms
    slices_done: int = Field(ge=0)
    tasks_asked: int = Field(ge=0, description="tasks that were answered")
    nodes: int = Field(ge=0, description="nodes that answered")
    unix: float | None = Field(default=None, ge=0.0, description="when the last file was accepted")
    scores: Scores | None

    @property
    def complete(self) -> bool:
        """Whether every task was asked."""
        return self.slices_done == self.benchmark.slices

    @property
    def short(self) -> "ScoredVersion":
        """The part of it that is kept in memory."""
        found = self.scores.avg_at_k if self.scores is not None else None
        if found is None:
            return ScoredVersion(None, self.complete)
        return ScoredVersion(found.value, self.complete, (found.low, found.high))

    @model_validator(mode="after")
    def _slices_are_of_the_benchmark(self) -> Self:
        if self.slices_done > self.benchmark.slices:
            raise ValueError(f"slices_done is {self.slices_done}, but the benchmark has {self.benchmark.slices} slices")
        return self


@dataclass(frozen=True)
class AnsweredSlice:
    """An accepted file of one slice: which rows of the task table its groups are on, in their order, and which of them count."""

    verdict: Verdict
    prompts: Sequence[int]
    own: range
    accepted_unix: float


def record(
    run: str, version: int, terms: BenchmarkTerms, problem_ids: Sequence[str], answered: Sequence[AnsweredSlice]
) -> VersionEvaluation:
    """The record of what came; `problem_ids` are those of the benchmark's task table. Raises ValueError for a verdict that does not fit its slice."""
    answers: dict[int, list[Answer]] = {}
    for each in answered:
        answers |= {prompt: found for prompt, found in _answers(each, terms.samples).items() if prompt in each.own}
    problems = [AnsweredTask(problem_ids[prompt], answers[prompt]) for prompt in sorted(answers)]
    return VersionEvaluation(
        run=run,
        version=version,
        benchmark=terms,
        slices_done=len(answered),
        tasks_asked=len(problems),
        nodes=len({each.verdict.node for each in answered}),
        unix=max((each.accepted_unix for each in answered), default=None),
        scores=scores(problems, terms.samples) if problems else None,
    )


def _answers(each: AnsweredSlice, samples: int) -> dict[int, list[Answer]]:
    verdict = each.verdict
    rows = len(each.prompts) * samples
    if len(verdict.rewards) != rows or len(verdict.completion_lengths) != rows:
        raise ValueError(
            f"the verdict on file {verdict.sha256[:12]}... has {len(verdict.rewards)} rewards and"
            f" {len(verdict.completion_lengths)} lengths, its slice {rows} rows"
        )
    cut = set(verdict.cut_rows)
    found: defaultdict[int, list[Answer]] = defaultdict(list)
    for row, (reward, length) in enumerate(zip(verdict.rewards, verdict.completion_lengths, strict=True)):
        found[each.prompts[row // samples]].append(Answer(reward.task_reward, length, row in cut))
    return found


@dataclass(frozen=True)
class Standing:
    """How the newest version that was fully scored on one benchmark stands."""

    version: int
    avg_at_k: float
    interval: tuple[float, float]
    below_best: bool
    """Its whole interval lies below that of the version with the largest avg@k: that is not a chance draw of tasks."""


def standing(found: Mapping[int, ScoredVersion]) -> Standing | None:
    """Of one benchmark's versions; None while none is fully scored."""
    scored = {
        version: (made.avg_at_k, made.interval)
        for version, made in found.items()
        if made.complete and made.avg_at_k is not None and made.interval is not None
    }
    if not scored:
        return None
    newest = max(scored)
    value, interval = scored[newest]
    _, best_interval = max(scored.values())
    return Standing(newest, value, interval, interval[1] < best_interval[0])


def best_version(found: Mapping[int, float], benchmark: str) -> BestVersion | None:
    """The version with the largest avg@k, given as version -> avg@k of complete records; the earlier of two that are equal. None without one."""
    if not found:
        return None
    version = min(found, key=lambda number: (-found[number], number))
    return BestVersion(version=version, benchmark=benchmark, value=found[version])
