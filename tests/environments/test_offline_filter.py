"""The offline filter's verdict on each problem, and what prepare makes of the counts that its run has written."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from samples import DIGEST, run_config
from shoal.contracts import filtering, keys
from shoal.contracts.dataset_card import DatasetCard, DatasetFile
from shoal.contracts.datasets import FILTER_DATASET, GenerateSettings
from shoal.contracts.filtering import FilterReport, ProblemCount
from shoal.contracts.proof_profile import PROFILE_FILE
from shoal.contracts.run import Prepared
from shoal.contracts.sft_data import write_problem_counts
from shoal.contracts.task_source import MixtureSource, OfflineFilter, TaskSource
from shoal.contracts.tasks import Task, tasks_digest
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.layouts import SOLVE_RATE
from shoal.environments.offline_filter import CannotFilter, filter_sources, sampled_model
from shoal.environments.task_source import RunSource
from shoal.storage.store import Store, open_folder

TASKS = Arithmetic().tasks(6, 0)
CORRECT = [0, 1, 4, 5, 8]  # of 8; the sixth task was not sampled
RULE = OfflineFilter()


@pytest.mark.parametrize(
    ("samples", "correct", "outcome"),
    [
        (8, 0, "too hard"),
        (8, 1, "kept"),
        (8, 4, "kept"),
        (8, 5, "too easy"),
        (0, 0, "could not be scored"),
        (2, 1, "kept"),
    ],
)
def test_between_one_and_four_of_eight_are_kept_as_in_the_paper(samples: int, correct: int, outcome: str) -> None:
    assert filtering.decide(ProblemCount("a", samples, correct, 10.0), RULE) == outcome


def counted(folder: Path, correct: list[int] = CORRECT, **changes: Any) -> Store:
    """The store of a filter's run."""
    folder.mkdir()
    store = open_folder(folder, "shoal/arithmetic-filter", deadline_seconds=2.0)
    counts = [ProblemCount(task.problem_id, 8, number, 20.0) for task, number in zip(TASKS, correct, strict=False)]
    data = write_problem_counts(counts)
    store.put(keys.dataset_problems(FILTER_DATASET, 0), data)
    fields: dict[str, Any] = {
        "name": FILTER_DATASET, "run": "arithmetic-filter", "licence": "unknown", "model_id": "tiny", "weights_digest": DIGEST,
        "environment": "arithmetic", "environment_digest": DIGEST, "tasks_digest": tasks_digest(TASKS), "task_count": len(TASKS),
        "samples_per_problem": 8, "temperature": 1.0, "filters": GenerateSettings(), "rows": 0, "completion_tokens": 0, "problems": 5,
        "problems_solved": 4, "correct_histogram": [1, 1, 0, 0, 1, 1, 0, 0, 1], "parts": [],
        "problem_files": [DatasetFile(name="problems-00000.parquet", sha256=hashlib.sha256(data).hexdigest(), size=len(data), rows=5)],
    }  # fmt: skip
    store.put(keys.dataset_card(FILTER_DATASET), DatasetCard(**(fields | changes)).to_json())
    return store


def filtered_from(store: Store) -> tuple[list[Task], FilterReport]:
    config = run_config(tasks=TaskSource(environment="arithmetic", offline_filter=RULE))
    [kept], report = filter_sources(config, [(RunSource.of_run(config.tasks)[0], TASKS)], lambda: store)
    assert report is not None
    return kept, report


def test_tasks_of_middling_difficulty_are_kept_in_their_order_and_the_others_counted(tmp_path: Path) -> None:
    kept, report = filtered_from(counted(tmp_path / "store"))
    assert kept == [TASKS[1], TASKS[2]]
    assert report.outcomes == {"kept": 2, "too easy": 2, "too hard": 1, "was not sampled": 1}
    assert (report.tasks_before, report.tasks_kept, report.samples) == (6, 2, 8)
    assert report.histogram == [1, 1, 0, 0, 1, 1, 0, 0, 1]
    assert report.tasks_digest_before == tasks_digest(TASKS)


def test_each_source_of_a_mixture_has_its_own_filter_and_one_run_samples_for_all(tmp_path: Path) -> None:
    easy = [task.model_copy(update={"metadata": {SOLVE_RATE: 0.75}}) for task in Arithmetic().tasks(4, 7)]
    mixture = [
        MixtureSource(name="sampled", environment="arithmetic", offline_filter=RULE),
        MixtureSource(
            name="rated", environment="math", offline_filter=OfflineFilter(max_correct=0.8, solve_rate="rate")
        ),
        MixtureSource(name="whole", environment="arithmetic"),
    ]
    config = run_config(tasks=TaskSource(mixture=mixture))
    found = list(zip(RunSource.of_run(config.tasks), (TASKS, easy, TASKS[:2]), strict=True))
    kept, report = filter_sources(config, found, lambda: counted(tmp_path / "store"))
    assert kept == [[TASKS[1], TASKS[2]], easy, TASKS[:2]]
    assert report is not None
    assert (report.tasks_before, report.tasks_kept, report.outcomes["kept"]) == (12, 8, 8)
    assert {name: each.tasks_kept for name, each in report.by_source.items()} == {"sampled": 2, "rated": 4}
    assert report.histogram == [1, 1, 0, 0, 1, 1, 4, 0, 1]
    strict = mixture[1].model_copy(update={"offline_filter": OfflineFilter(solve_rate="rate")})
    config = run_config(tasks=TaskSource(mixture=[strict]))
    with pytest.raises(CannotFilter, match=r"spec\.tasks\.mixture, rated\.offlineFilter keeps none of 4 tasks"):
        filter_sources(config, [(RunSource.of_run(config.tasks)[0], easy)], lambda: counted(tmp_path / "unused"))


def test_counts_of_another_task_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotFilter, match="the data set was changed between the two; start the run again"):
        filtered_from(counted(tmp_path / "store", tasks_digest="9" * 64))


def test_counts_that_are_not_there_are_said_by_the_name_of_their_run(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    empty = open_folder(tmp_path / "store", "shoal/arithmetic-filter", deadline_seconds=2.0)
    with pytest.raises(CannotFilter, match="run arithmetic-filter has not written its counts"):
        filtered_from(empty)


def test_counts_that_were_changed_are_refused(tmp_path: Path) -> None:
    store = counted(tmp_path / "store")
    store.put(keys.dataset_problems(FILTER_DATASET, 0), write_problem_counts([ProblemCount("add-1", 8, 4, 1.0)]))
    with pytest.raises(CannotFilter, match=r"problems-00000.parquet has SHA-256 .*, but card.json says"):
        filtered_from(store)


def test_a_filter_that_keeps_nothing_says_how_hard_the_problems_are(tmp_path: Path) -> None:
    with pytest.raises(CannotFilter, match=r"keeps none of 6 tasks .*'too hard': 5.*Widen minCorrect and maxCorrect"):
        filtered_from(counted(tmp_path / "store", correct=[0, 0, 0, 0, 0]))


def test_the_run_begins_with_the_very_model_that_was_sampled(tmp_path: Path) -> None:
    store = counted(tmp_path / "store")
    for name in ("config.json", "model.safetensors", PROFILE_FILE):
        store.put(keys.BASE_MODEL + name, name.encode())
    prepared = Prepared(
        run="arithmetic-filter", model_id="tiny", environment="arithmetic", environment_digest=DIGEST, tasks_digest=DIGEST, task_count=6,
        base_pass_rate=0.31,
    )  # fmt: skip
    store.put(keys.PREPARED, prepared.to_json())
    assert sampled_model(store, tmp_path / "base") == 0.31
    assert {path.name: path.read_bytes() for path in (tmp_path / "base").iterdir()} == {
        "config.json": b"config.json",
        "model.safetensors": b"model.safetensors",
        PROFILE_FILE: PROFILE_FILE.encode(),
    }
