"""The offline filter: keep the problems that the model solves sometimes (paper section 3.3.1), and say what became of the others. Pure.

A run with `spec.tasks.offlineFilter` has a child, a run of mode `Generate` that samples every task. Prepare reads the child's counts of each problem,
keeps what `decide` keeps and writes `FilterReport` as `filter.json`. A data set that ships solve rates needs no child. Called by prepare; read by the
report and by people.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import Field

from shoal.contracts.base import Contract, RunName, Sha256Hex, unset
from shoal.contracts.task_source import OfflineFilter

TOO_HARD, TOO_EASY, KEPT = "too hard", "too easy", "kept"
UNSCORED, UNSAMPLED = "could not be scored", "was not sampled"


@dataclass(frozen=True)
class ProblemCount:
    """How often one problem was solved: `correct` of `samples` that could be scored."""

    problem_id: str
    samples: int
    correct: int
    mean_tokens: float


class FilterReport(Contract):
    """`filter.json` of a run: which share of the tasks is kept, and how hard they are for the model that was sampled."""

    run: RunName
    model_id: str
    weights_digest: Sha256Hex | None = Field(
        default=None, description="None: nothing was sampled, the data set gave solve rates"
    )
    samples: int = Field(ge=2)
    min_correct: float = Field(ge=0.0, le=1.0)
    max_correct: float = Field(ge=0.0, le=1.0)
    tasks_digest_before: Sha256Hex
    tasks_before: int = Field(ge=1)
    tasks_kept: int = Field(ge=0)
    outcomes: dict[str, int] = Field(description="problems by what became of them")
    histogram: list[int] = Field(
        description="problems by number of correct samples, from none to all; of a mixture only where all sources have as many samples"
    )
    by_source: dict[str, "FilterReport"] = Field(
        default_factory=dict, exclude_if=unset, max_length=16, description="of a mixture: each source that has a filter"
    )


def decide(count: ProblemCount, rule: OfflineFilter) -> str:
    """What becomes of a problem. Shares are of the samples that could be scored."""
    return UNSCORED if count.samples == 0 else of_share(count.correct / count.samples, rule)


def of_share(share: float, rule: OfflineFilter) -> str:
    """What becomes of a problem of which this share of the answers is right."""
    if share < rule.min_correct:
        return TOO_HARD
    return TOO_EASY if share > rule.max_correct else KEPT


def outcomes(counts: Iterable[ProblemCount], rule: OfflineFilter) -> Mapping[str, str]:
    """The outcome for each problem, by its id."""
    return {count.problem_id: decide(count, rule) for count in counts}
