"""Benchmarks of a run as prepare pins them: task tables of their own beside the run's, drawn with another seed, within the bound on slices."""

from pathlib import Path
from typing import Any

import pytest
from test_prepare import config

from shoal.contracts import keys
from shoal.contracts.completions import Sampling
from shoal.contracts.evaluation import Benchmark, EvaluationSettings
from shoal.contracts.model_source import ModelSource
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.task_source import TaskSource
from shoal.contracts.task_table import read_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.environments import digest
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.prepare import prepare
from shoal.environments.run_checks import CannotPrepare
from shoal.storage import Store


def scored(base: ModelSource, *benchmarks: dict[str, Any], **changes: Any) -> RunConfig:
    settings = EvaluationSettings(benchmarks=[Benchmark.model_validate(each) for each in benchmarks])
    return config(model=base, evaluation=settings, **changes)


def test_each_benchmark_has_a_table_of_its_own_with_its_digest(store: Store, tmp_path: Path, base: ModelSource) -> None:
    (tmp_path / "own.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "1+2?", "answer": ""}\n')
    columns = {"prompt": "problem", "answer": "answer"}
    mine = {"environment": "math", "dataset": {"path": str(tmp_path / "own.jsonl"), "columns": columns}}
    done = prepare(
        scored(
            base,
            {"name": "sums", "tasks": {"environment": "arithmetic", "count": 12}},
            {"name": "more-sums", "tasks": {"environment": "arithmetic", "count": 12}},
            {"name": "mine", "tasks": mine},
        ),
        store,
        tmp_path / "scratch",
    )
    assert [(each.name, each.environment, each.task_count) for each in done.benchmarks] == [
        ("sums", "arithmetic", 12),
        ("more-sums", "arithmetic", 12),
        ("mine", "math", 1),
    ]
    assert done.benchmarks[0].environment_digest == digest(Arithmetic())
    for each in done.benchmarks:
        tasks = read_tasks(store.get(keys.task_table(each.tasks_digest)))
        assert (tasks_digest(tasks), len(tasks)) == (each.tasks_digest, each.task_count)
    assert [(each.samples, each.sampling.temperature) for each in done.benchmarks] == [(4, 0.6)] * 3
    assert Prepared.from_json(store.get(keys.PREPARED)).benchmarks == done.benchmarks
    assert len({each.tasks_digest for each in done.benchmarks} | {done.tasks_digest}) == 4, "each has a seed of its own"


def test_a_benchmark_that_cannot_be_had_is_said_by_its_name(store: Store, tmp_path: Path, base: ModelSource) -> None:
    gone = {"name": "gone", "tasks": {"environment": "math", "dataset": {"path": "/nowhere/aime"}}}
    with pytest.raises(CannotPrepare, match=r"spec\.evaluation\.benchmarks, gone: tasks\.dataset: path: /nowhere/aime"):
        prepare(scored(base, gone), store, tmp_path / "scratch")
    assert not store.exists(keys.PREPARED)


@pytest.mark.parametrize("which", ["run", "benchmark"])
def test_more_tasks_that_cannot_be_asked_than_allowed_are_refused(
    store: Store, tmp_path: Path, base: ModelSource, which: str
) -> None:
    (tmp_path / "own.jsonl").write_text(
        "".join(f'{{"problem": "{n}+1{" " * 100 * (n % 2)}?", "answer": "{n + 1}"}}\n' for n in range(8))
    )
    columns = {"prompt": "problem", "answer": "answer"}
    mine = {"environment": "math", "dataset": {"path": str(tmp_path / "own.jsonl"), "columns": columns}}
    if which == "run":
        asked = config(model=base, tasks=TaskSource.model_validate(mine), length_reward=None)
    else:
        asked = scored(base, {"name": "mine", "tasks": mine})
    with pytest.raises(
        CannotPrepare, match=r"4 of 8 tasks cannot be asked; at most a share of 0\.2 may be: 4 the prompt le"
    ):
        prepare(asked, store, tmp_path / "scratch")
    mine["dataset"]["maxRefusedShare"] = 0.5
    if which == "run":
        asked = config(model=base, tasks=TaskSource.model_validate(mine), length_reward=None)
    else:
        asked = scored(base, {"name": "mine", "tasks": mine})
    done = prepare(asked, store, tmp_path / "scratch")
    assert (done.task_count if which == "run" else done.benchmarks[0].task_count) == 4


def test_more_files_than_the_numbers_have_room_for_are_refused(store: Store, tmp_path: Path, base: ModelSource) -> None:
    many = {"name": "many", "tasks": {"environment": "arithmetic", "count": 2001}, "samples": 64}
    with pytest.raises(CannotPrepare, match="they are 2001 files for each version; allowed: 2000"):
        prepare(scored(base, many, sampling=Sampling(groups_per_submission=1)), store, tmp_path / "scratch")
