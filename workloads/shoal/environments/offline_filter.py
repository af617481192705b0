"""The offline filter's last part: from the counts that its run has written, or the rates that a data set ships, to the tasks kept.

In: the tasks before the filter and the store of the run that sampled them. Out: tasks in their old order, and `FilterReport`. Everything is checked
against the card that seals the counts: those of another table are an error and no guess. Called by `prepare`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.contracts import filtering, keys
from shoal.contracts.dataset_card import DatasetCard
from shoal.contracts.datasets import FILTER_DATASET, filter_run
from shoal.contracts.filtering import FilterReport, ProblemCount
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.sft_data import BadTraces, read_problem_counts
from shoal.contracts.task_source import OfflineFilter
from shoal.contracts.tasks import Task, tasks_digest
from shoal.environments.layouts import SOLVE_RATE
from shoal.environments.task_source import RunSource
from shoal.storage import NotFound, Store


class CannotFilter(ValueError):
    """The filter's counts cannot be used, or leave nothing; the message says what to do."""


@dataclass(frozen=True)
class Sampled:
    """What the filter's run has written: its card, and how often each problem was solved."""

    card: DatasetCard
    counts: Mapping[str, ProblemCount]


def filter_sources(
    config: RunConfig, found: Sequence[tuple[RunSource, list[Task]]], counted: Callable[[], Store]
) -> tuple[list[list[Task]], FilterReport | None]:
    """The tasks of each source that its filter keeps, and what became of all; no report without a filter. Raises CannotFilter.

    `counted` opens the store of the run that sampled, if a source needs one.
    """
    first = [task for source, tasks in found if source.origin.is_sampled_first for task in tasks]
    sampled = read_sampled(config, first, counted()) if first else None
    kept: list[list[Task]] = []
    reports: dict[str, FilterReport] = {}
    for source, tasks in found:
        rule = source.origin.offline_filter
        if rule is None:
            kept.append(tasks)
            continue
        if source.origin.is_sampled_first and sampled is not None:
            own, report = filtered(config, rule, tasks, sampled, source.field, alone=len(tasks) == len(first))
        else:
            own, report = filtered_by_rates(config, rule, tasks, source.field)
        kept.append(own)
        reports[source.name] = report
    if not reports:
        return kept, None
    if len(found) == 1:
        return kept, next(iter(reports.values()))
    return kept, _together([task for _, tasks in found for task in tasks], kept, reports)


def read_sampled(config: RunConfig, tasks: Sequence[Task], counted: Store) -> Sampled:
    """What is written in `counted`, the store of the run's filter, about these tasks. Raises CannotFilter."""
    name = filter_run(config.run)
    try:
        card = DatasetCard.from_json(counted.get(keys.dataset_card(FILTER_DATASET)))
        counts = [count for file in card.problem_files for count in _read(counted, file.name, file.sha256)]
    except NotFound as error:
        raise CannotFilter(f"spec.tasks.offlineFilter: run {name} has not written its counts: {error}") from error
    before = tasks_digest(tasks)
    if (card.tasks_digest_found or card.tasks_digest) != before:
        raise CannotFilter(
            f"spec.tasks.offlineFilter: run {name} sampled a task table with digest {card.tasks_digest[:12]}..., but this run's is {before[:12]}...:"
            " the data set was changed between the two; start the run again"
        )
    return Sampled(card, {count.problem_id: count for count in counts})


def filtered(
    config: RunConfig, rule: OfflineFilter, tasks: Sequence[Task], sampled: Sampled, field: str, *, alone: bool = True
) -> tuple[list[Task], FilterReport]:
    """The tasks of one source that `rule` keeps, by how often they were solved. `alone`: they are all that was sampled. Raises CannotFilter."""
    card = sampled.card
    own = [sampled.counts[task.problem_id] for task in tasks if task.problem_id in sampled.counts]
    outcomes = filtering.outcomes(own, rule)
    # A slice whose file was damaged was left out (failurePolicy.badData): nobody knows how hard its problems are.
    became = [outcomes.get(task.problem_id, filtering.UNSAMPLED) for task in tasks]
    solved = Counter(count.correct for count in own)
    histogram = card.correct_histogram if alone else [solved[number] for number in range(card.samples_per_problem + 1)]
    report = _report(config, rule, tasks_digest(tasks), became, card.model_id, card.samples_per_problem, histogram)
    return _kept(tasks, became, report.model_copy(update={"weights_digest": card.weights_digest}), field)


def filtered_by_rates(
    config: RunConfig, rule: OfflineFilter, tasks: Sequence[Task], field: str
) -> tuple[list[Task], FilterReport]:
    """The tasks that `rule` keeps by the solve rates that their data set ships, which are in their metadata. Raises CannotFilter."""
    rates = [task.metadata.get(SOLVE_RATE) for task in tasks]
    became = [
        filtering.UNSAMPLED if rate is None else filtering.of_share(max(0.0, min(1.0, rate)), rule) for rate in rates
    ]
    parts = Counter(round(rate * rule.samples) for rate in rates if rate is not None)
    histogram = [parts[number] for number in range(rule.samples + 1)]
    report = _report(config, rule, tasks_digest(tasks), became, f"column {rule.solve_rate}", rule.samples, histogram)
    return _kept(tasks, became, report, field)


def _together(tasks: Sequence[Task], kept: Sequence[Sequence[Task]], reports: dict[str, FilterReport]) -> FilterReport:
    """The report of a mixture: sums over its sources. Tasks of a source without a filter are kept."""
    each = list(reports.values())
    outcomes: Counter[str] = Counter()
    for report in each:
        outcomes.update(report.outcomes)
    outcomes[filtering.KEPT] += len(tasks) - sum(report.tasks_before for report in each)
    alike = len({len(report.histogram) for report in each}) == 1
    return FilterReport(
        run=each[0].run,
        model_id=", ".join(dict.fromkeys(report.model_id for report in each)),
        weights_digest=next((report.weights_digest for report in each if report.weights_digest), None),
        samples=max(report.samples for report in each),
        min_correct=min(report.min_correct for report in each),
        max_correct=max(report.max_correct for report in each),
        tasks_digest_before=tasks_digest(tasks),
        tasks_before=len(tasks),
        tasks_kept=sum(map(len, kept)),
        outcomes=dict(sorted(outcomes.items())),
        histogram=[sum(counts) for counts in zip(*(report.histogram for report in each), strict=True)] if alike else [],
        by_source=reports,
    )


def _report(
    config: RunConfig,
    rule: OfflineFilter,
    before: str,
    became: Sequence[str],
    model: str,
    samples: int,
    histogram: list[int],
) -> FilterReport:
    return FilterReport(
        run=config.run,
        model_id=model,
        samples=samples,
        min_correct=rule.min_correct,
        max_correct=rule.max_correct,
        tasks_digest_before=before,
        tasks_before=len(became),
        tasks_kept=sum(what == filtering.KEPT for what in became),
        outcomes=dict(sorted(Counter(became).items())),
        histogram=histogram,
    )


def _kept(
    tasks: Sequence[Task], became: Sequence[str], report: FilterReport, field: str
) -> tuple[list[Task], FilterReport]:
    kept = [task for task, what in zip(tasks, became, strict=True) if what == filtering.KEPT]
    if not kept:
        raise CannotFilter(
            f"{field}.offlineFilter keeps none of {len(tasks)} tasks ({report.outcomes}); problems by right samples, none to all:"
            f" {report.histogram}. Widen minCorrect and maxCorrect, or give other tasks or another model"
        )
    return kept, report


def sampled_model(counted: Store, folder: Path) -> float | None:
    """Copy the base model that the filter's run has made or fetched into `folder`: the one that was sampled, and no second
    download. Its proof profile comes along: the weights are the same. Returns the pass rate of a model that was made on the spot.
    """
    folder.mkdir(parents=True)
    for info in counted.list(keys.BASE_MODEL):
        counted.get_to_file(info.key, folder / info.key.removeprefix(keys.BASE_MODEL))
    return Prepared.from_json(counted.get(keys.PREPARED)).base_pass_rate


def _read(store: Store, name: str, sha256: str) -> list[ProblemCount]:
    key = keys.dataset(FILTER_DATASET) + name
    data = store.get(key)
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise CannotFilter(f"{key} has SHA-256 {found}, but card.json says {sha256}")
    try:
        return list(read_problem_counts(data))
    except BadTraces as error:
        raise CannotFilter(f"{key}: {error}") from error
