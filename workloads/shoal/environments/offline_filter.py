"""The offline filter's last part: from the counts that its run has written, or the rates that a data set ships, to the tasks kept.

In: the tasks before the filter and the store of the run that sampled them. Out: tasks in their old order, and `FilterReport`. Everything is checked
against the card that seals the counts: those of another table are an error and no guess. Called by `prepare`.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from shoal.contracts import filtering, keys
from shoal.contracts.datasets import FILTER_DATASET, filter_run
from shoal.contracts.filtering import FilterReport, ProblemCount
from shoal.contracts.recipe import OfflineFilter
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.sft_data import BadTraces, DatasetCard, read_problem_counts
from shoal.contracts.tasks import Task, tasks_digest
from shoal.environments.layouts import SOLVE_RATE
from shoal.storage import NotFound, Store


class CannotFilter(ValueError):
    """The filter's counts cannot be used, or leave nothing; the message says what to do."""


def filtered(
    config: RunConfig, rule: OfflineFilter, tasks: Sequence[Task], counted: Store
) -> tuple[list[Task], FilterReport]:
    """The tasks that `rule` keeps, by what is written in `counted`, the store of the run's filter. Raises CannotFilter."""
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
    outcomes = filtering.outcomes(counts, rule)
    # A slice whose file was damaged was left out (failurePolicy.badData): nobody knows how hard its problems are.
    became = [outcomes.get(task.problem_id, filtering.UNSAMPLED) for task in tasks]
    report = _report(config, rule, before, became, card.model_id, card.samples_per_problem, card.correct_histogram)
    return _kept(tasks, became, report.model_copy(update={"weights_digest": card.weights_digest}))


def filtered_by_rates(config: RunConfig, rule: OfflineFilter, tasks: Sequence[Task]) -> tuple[list[Task], FilterReport]:
    """The tasks that `rule` keeps by the solve rates that their data set ships, which are in their metadata. Raises CannotFilter."""
    rates = [task.metadata.get(SOLVE_RATE) for task in tasks]
    became = [
        filtering.UNSAMPLED if rate is None else filtering.of_share(max(0.0, min(1.0, rate)), rule) for rate in rates
    ]
    parts = Counter(round(rate * rule.samples) for rate in rates if rate is not None)
    histogram = [parts[number] for number in range(rule.samples + 1)]
    report = _report(config, rule, tasks_digest(tasks), became, f"column {rule.solve_rate}", rule.samples, histogram)
    return _kept(tasks, became, report)


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


def _kept(tasks: Sequence[Task], became: Sequence[str], report: FilterReport) -> tuple[list[Task], FilterReport]:
    kept = [task for task, what in zip(tasks, became, strict=True) if what == filtering.KEPT]
    if not kept:
        raise CannotFilter(
            f"spec.tasks.offlineFilter keeps none of {len(tasks)} tasks ({report.outcomes}); problems by right samples, none to all:"
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
