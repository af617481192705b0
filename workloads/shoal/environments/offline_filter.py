"""The offline filter's last part: from the counts that its run has written to the tasks that are kept, with a report.

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
    if card.tasks_digest != before:
        raise CannotFilter(
            f"spec.tasks.offlineFilter: run {name} sampled a task table with digest {card.tasks_digest[:12]}..., this run's is {before[:12]}...:"
            " the data set was changed between the two; start the run anew"
        )
    outcomes = filtering.outcomes(counts, rule)
    # A slice whose file was damaged was left out (failurePolicy.badData): nobody knows how hard its problems are.
    became = [outcomes.get(task.problem_id, filtering.UNSAMPLED) for task in tasks]
    kept = [task for task, what in zip(tasks, became, strict=True) if what == filtering.KEPT]
    report = FilterReport(
        run=config.run,
        model_id=card.model_id,
        weights_digest=card.weights_digest,
        samples=card.samples_per_problem,
        min_correct=rule.min_correct,
        max_correct=rule.max_correct,
        tasks_digest_before=before,
        tasks_before=len(tasks),
        tasks_kept=len(kept),
        outcomes=dict(sorted(Counter(became).items())),
        histogram=card.correct_histogram,
    )
    if not kept:
        raise CannotFilter(
            f"spec.tasks.offlineFilter keeps none of {len(tasks)} tasks ({report.outcomes}); problems by right samples, none to all:"
            f" {report.histogram}. Widen minCorrect and maxCorrect, or give other tasks or another model"
        )
    return kept, report


def sampled_model(counted: Store, folder: Path) -> float | None:
    """Copy the base model that the filter's run has made or fetched into `folder`: the very one that was sampled, and no second
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
        raise CannotFilter(f"{key} has SHA-256 {found}, card.json says {sha256}")
    try:
        return list(read_problem_counts(data))
    except BadTraces as error:
        raise CannotFilter(f"{key}: {error}") from error
