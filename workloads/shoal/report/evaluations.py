"""The scores of a run's versions, as tables for the report and for the page of a run. Pure.

In: the records that the orchestrator wrote (`evaluations/`). Out: rows, newest version last, and which version is best.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.evaluation.scores import Estimate
from shoal.evaluation.versions import VersionEvaluation
from shoal.text import NONE, count, percent, plain

COLUMNS = ("version and benchmark", "avg@k", "95 % interval", "pass@k", "tokens", "cut", "tasks asked")


@dataclass(frozen=True)
class ScoreRow:
    """One version on one benchmark, as it is shown; `value` is avg@k, None where nothing was scored."""

    version: int
    benchmark: str
    value: float | None
    cells: tuple[str, ...]
    """Under `COLUMNS` but the first."""
    complete: bool


def score_rows(records: Sequence[VersionEvaluation]) -> list[ScoreRow]:
    """All records, by benchmark, then version."""
    return [_row(each) for each in sorted(records, key=lambda each: (each.benchmark.name, each.version))]


def _row(record: VersionEvaluation) -> ScoreRow:
    scores, terms = record.scores, record.benchmark
    average = scores.avg_at_k if scores is not None else None
    best_of_k = scores.pass_at_k[-1] if scores is not None and scores.pass_at_k else None
    cells = (
        _estimate(average, "avg"),
        f"{percent(average.low)} to {percent(average.high)}" if average is not None else NONE,
        _estimate(best_of_k, "pass"),
        count(scores.lengths.mean) if scores is not None else NONE,
        percent(scores.lengths.cut_share) if scores is not None else NONE,
        f"{record.tasks_asked} of {terms.task_count}",
    )
    value = average.value if average is not None else None
    return ScoreRow(record.version, plain(terms.name, 40), value, cells, record.complete)


def _estimate(found: Estimate | None, what: str) -> str:
    return NONE if found is None else f"{percent(found.value)} ({what}@{found.k})"


def without_problems(record: VersionEvaluation) -> dict[str, object]:
    """A record for `report.json`: without the line of each problem, which stays in the store."""
    document = record.model_dump(mode="json")
    if document["scores"] is not None:
        document["scores"].pop("problems")
    return document
