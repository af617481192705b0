"""A run's tasks from wherever a manifest may say, as prepare finds them: an environment, a mounted file or folder, the object store, a hub."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from samples import run_config
from shoal.contracts.datasets import DatasetColumns, DatasetSource
from shoal.contracts.run import RunConfig
from shoal.contracts.task_source import TaskSource
from shoal.contracts.tasks import Task
from shoal.environments.code import Code
from shoal.environments.task_source import BadTaskSource, RunSource, find_tasks
from shoal.rewards.sandbox import SandboxFailed
from shoal.rewards.sandbox.pool import ProgramPool

PROBLEMS = [{"question": f"What is {n} + {n}?", "final": str(2 * n), "id": f"double-{n}"} for n in range(6)]
COLUMNS = DatasetColumns(prompt="question", answer="final", problem_id="id")


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config(environment: str = "math", count: int | None = None, **dataset: Any) -> RunConfig:
    source = DatasetSource(**dataset) if dataset else None
    return run_config(tasks=TaskSource(environment=environment, count=count, dataset=source))


def found(config: RunConfig, scratch: Path) -> list[Task]:
    return find_tasks(config, RunSource.of_run(config.tasks)[0], scratch).tasks


def refused(config: RunConfig, scratch: Path) -> str:
    with pytest.raises(BadTaskSource) as caught:
        found(config, scratch)
    return str(caught.value)


def test_without_a_data_set_the_environment_gives_4096_tasks_or_as_many_as_are_asked_for(tmp_path: Path) -> None:
    assert len(found(config("arithmetic"), tmp_path)) == 4096
    assert len(found(config("arithmetic", count=5), tmp_path)) == 5


def test_a_mounted_file_is_read_whole_or_up_to_the_count(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "tasks.parquet", PROBLEMS)
    everything = found(config(path=str(path), columns=COLUMNS), tmp_path)
    assert [(task.problem_id, task.verification_info) for task in everything] == [
        (f"double-{n}", {"answer": str(2 * n)}) for n in range(6)
    ]
    assert found(config(path=str(path), columns=COLUMNS, count=4), tmp_path) == everything[:4]


def test_a_mounted_folder_in_a_hubs_layout_gives_one_split(tmp_path: Path) -> None:
    write_parquet(tmp_path / "hub" / "data" / "train-00000-of-00002.parquet", PROBLEMS[:2])
    write_parquet(tmp_path / "hub" / "data" / "train-00001-of-00002.parquet", PROBLEMS[2:4])
    write_parquet(tmp_path / "hub" / "data" / "test-00000-of-00001.parquet", PROBLEMS[4:])
    folder = str(tmp_path / "hub")
    assert [task.problem_id for task in found(config(path=folder, columns=COLUMNS), tmp_path)] == [
        f"double-{n}" for n in range(4)
    ]
    assert len(found(config(path=folder, split="test", columns=COLUMNS), tmp_path)) == 2
    assert "has no files of split 'dev'; there is test, train" in refused(
        config(path=folder, split="dev", columns=COLUMNS), tmp_path
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    (tmp_path / "store" / "shoal").mkdir(parents=True)
    return tmp_path


def test_an_object_or_all_files_below_a_prefix_come_from_the_store(home: Path) -> None:
    write_parquet(home / "store" / "shoal" / "tasks" / "a.parquet", PROBLEMS[:3])
    write_lines(home / "store" / "shoal" / "tasks" / "b.jsonl", PROBLEMS[3:])
    (home / "store" / "shoal" / "tasks" / "README.md").write_text("# Tasks")
    one = found(config(object="tasks/a.parquet", columns=COLUMNS), home / "scratch")
    assert [task.problem_id for task in one] == [f"double-{n}" for n in range(3)]
    assert len(found(config(object="tasks/", columns=COLUMNS), home / "scratch")) == 6


def test_what_the_store_does_not_have_is_said_by_its_key(home: Path) -> None:
    assert "the store has no object tasks/c.parquet" in refused(config(object="tasks/c.parquet"), home / "scratch")
    assert "there is no Parquet, JSON or CSV file below none/" in refused(config(object="none/"), home / "scratch")


def test_a_hub_that_cannot_be_reached_is_an_error_with_repository_and_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    text = refused(config(hugging_face="someone/tasks", revision="v1"), tmp_path)
    assert text.startswith("spec.tasks.dataset: cannot get the data set someone/tasks at revision v1: ")


def test_a_row_that_its_columns_do_not_allow_is_said_by_file_and_number(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "tasks.jsonl", [*PROBLEMS[:2], {"question": 5, "final": "1", "id": "x"}])
    assert refused(config(path=str(path), columns=COLUMNS), tmp_path) == (
        "spec.tasks.dataset: tasks.jsonl, row 2: column 'question' is neither a text nor a list of chat messages (layout by columns)"
    )


def test_a_column_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "tasks.jsonl", PROBLEMS)
    wrong = DatasetColumns(prompt="problem", answer="final")
    assert "row 0: column 'problem' is missing; columns: final, id, question" in refused(
        config(path=str(path), columns=wrong), tmp_path
    )


def test_columns_of_no_layout_need_their_names(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "tasks.jsonl", PROBLEMS)
    assert "belong to no layout; allowed: intellect-2" in refused(config(path=str(path)), tmp_path)


def test_a_path_that_is_not_mounted_is_said(tmp_path: Path) -> None:
    assert "nowhere is neither file nor folder; mount the data set there" in refused(
        config(path=str(tmp_path / "nowhere")), tmp_path
    )


def test_tasks_that_the_environment_cannot_judge_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [
        {
            "problem_id": "m",
            "task_type": "verifiable_math",
            "prompt": "1 + 1?",
            "verification_info": '{"ground_truth": "2"}',
        },
        {
            "problem_id": "c",
            "task_type": "verifiable_code",
            "prompt": "Add.",
            "verification_info": '{"test_cases": {"inputs": ["1 2"], "outputs": ["3"]}}',
        },
    ]
    path = write_lines(tmp_path / "mixed.jsonl", rows)
    mixed = config(path=str(path), max_refused_share=0.5)
    found = find_tasks(mixed, RunSource.of_run(mixed.tasks)[0], tmp_path)
    assert [task.problem_id for task in found.tasks] == ["m"]
    assert found.left_out == {"cannot be judged by environment 'math'": 1}


def test_solutions_that_cannot_be_run_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> ProgramPool:
        raise SandboxFailed("three sandboxes did not start")

    monkeypatch.setattr("shoal.environments.code.shared_pool", broken)
    [task] = Code().tasks(1, 0)
    row = {
        "problem_id": "a", "task_type": "code", "prompt": "?", "verification_info": json.dumps(task.verification_info),
        "gold_standard_solution": "```python\n```",
    }  # fmt: skip
    path = write_lines(tmp_path / "tasks.jsonl", [row])
    with pytest.raises(BadTaskSource, match=r"dataset: a solution cannot be run here: .* did not start") as caught:
        found(config("code", path=str(path)), tmp_path)
    assert caught.value.passing


def test_a_data_set_of_which_the_environment_can_judge_nothing_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "tasks.jsonl", PROBLEMS)
    text = refused(config("code", path=str(path), columns=COLUMNS), tmp_path)
    assert text.startswith(
        "spec.tasks.dataset: environment 'code' can judge none of 6 tasks; the first: task double-0: "
    )
