"""Wrong data sets: one line each that says what, where and what to do, with exit code 2, and nothing that is half prepared."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import serving

from samples import PREPARED_CHAT, run_config
from servers import STARTED_WITH
from shoal.contracts import keys
from shoal.contracts.datasets import AnswerExtraction, DatasetColumns, DatasetSource, RowFilter
from shoal.contracts.recipe import Recipe
from shoal.contracts.run import RunConfig
from shoal.contracts.task_source import OfflineFilter, TaskSource
from shoal.contracts.tasks import Task, TaskReport
from shoal.environments.prepare import _tasks, prepare
from shoal.environments.run_checks import CannotPrepare
from shoal.environments.task_source import RunSource
from shoal.storage import Store
from shoal.storage.store import open_folder

ROWS = [{"q": f"What is {n} + 1?", "a": str(n + 1), "id": f"p{n}", "level": n % 2} for n in range(20)]
COLUMNS = DatasetColumns(prompt="q", answer="a", problem_id="id")
Made = tuple[Path, dict[str, Any]]


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def text(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def changed(number: int, **values: Any) -> list[dict[str, Any]]:
    return [row | values if at == number else row for at, row in enumerate(ROWS)]


def halved(folder: Path) -> Path:
    path = folder / "t.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    path.write_bytes(path.read_bytes()[:-400])
    return path


def folder_with(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        lines(folder / name, ROWS)
    return folder


WRONG: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str]] = {
    "no such column": (
        lambda d: lines(d / "t.jsonl", ROWS),
        {"columns": DatasetColumns(prompt="question")},
        "t.jsonl, row 0: column 'question' is missing; columns: a, id, level, q (layout by columns)",
    ),
    "a column that later rows lack": (
        lambda d: lines(d / "t.jsonl", [*ROWS[:7], {"q": "?"}]), {"columns": COLUMNS}, "t.jsonl, row 7: column 'a' is missing; columns: q",
    ),
    "no such subset": (
        lambda d: folder_with(d, "main/train.jsonl"), {"columns": COLUMNS, "subset": "other"}, "has no subset 'other'; there is main",
    ),
    "subsets and none named": (
        lambda d: folder_with(d, "main/train.jsonl", "other/train.jsonl"), {"columns": COLUMNS}, "(main, other); name one as subset",
    ),
    "no such split": (
        lambda d: folder_with(d, "train.jsonl"), {"columns": COLUMNS, "split": "test"}, "has no files of split 'test'; there is train",
    ),
    "no data at all": (lambda d: d, {"columns": COLUMNS}, "has no files of split 'train'; there is no Parquet, JSON or CSV file"),
    "a path that is not mounted": (lambda d: d / "nowhere", {}, "nowhere is neither file nor folder; mount the data set there"),
    "golds that nobody can read": (
        lambda d: lines(d / "t.jsonl", [row | {"a": "???"} for row in ROWS]), {"columns": COLUMNS},
        "environment 'math' can judge none of 20 tasks; the first: task p0: the gold answer is not an expression",
    ),
    "more unreadable golds than allowed": (
        lambda d: lines(d / "t.jsonl", [row | ({"a": "???"} if row["level"] else {}) for row in ROWS]), {"columns": COLUMNS},
        "10 of 20 tasks cannot be used; at most a share of 0.2 may be: 10 the gold answer is not an expression (p1, p3, p5, p7, p9, ...). Correct",
    ),
    "no final answer where it is looked for": (
        lambda d: lines(d / "t.jsonl", ROWS), {"columns": COLUMNS.model_copy(update={"extract": AnswerExtraction(after="####")})},
        "no row is a task: 20 has no final answer where columns.extract looks in 'a' (t.jsonl, row 0, t.jsonl, row 1,",
    ),
    "empty answers": (
        lambda d: lines(d / "t.jsonl", [row | {"a": " "} for row in ROWS]), {"columns": COLUMNS}, "no row is a task: 20 has no answer",
    ),
    "an empty prompt": (
        lambda d: lines(d / "t.jsonl", changed(3, q="")), {"columns": COLUMNS}, "row 3: column 'q' is neither a text nor a list of chat messages",
    ),
    "an empty file": (lambda d: text(d / "t.jsonl", ""), {"columns": COLUMNS}, "t.jsonl: no row is a task: they hold no rows"),
    "prompts of a megabyte": (
        lambda d: lines(d / "t.jsonl", [row | {"q": "?" * (1 << 20)} for row in ROWS[:3]]), {"columns": COLUMNS},
        "none of 3 tasks; the first: 3 with a prompt of more than 2048 characters (p0, p1, p2)",
    ),
    "mixed types": (
        lambda d: lines(d / "t.jsonl", changed(5, q=17)), {"columns": COLUMNS}, "row 5: column 'q' is neither a text nor a list of chat messages",
    ),
    "an answer that is an object": (
        lambda d: lines(d / "t.jsonl", changed(2, a={"x": 1})), {"columns": COLUMNS}, "row 2: column 'a' is neither a text nor a number, but dict",
    ),
    "one id for many problems": (
        lambda d: lines(d / "t.jsonl", [row | {"id": "same"} for row in ROWS]), {"columns": COLUMNS},
        "19 of 20 tasks cannot be used; at most a share of 0.2 may be: 19 has the id of another problem (t.jsonl, row 1,",
    ),
    "broken Parquet": (halved, {"columns": COLUMNS}, "t.parquet cannot be read as Parquet: "),
    "broken JSON": (lambda d: text(d / "t.jsonl", '{"q": "?"\n'), {"columns": COLUMNS}, "t.jsonl cannot be read as JSON lines: "),
    "JSON that is no object": (lambda d: text(d / "t.json", "[1, 2]"), {"columns": COLUMNS}, "t.json, element 1: is not a JSON object"),
    "no text encoding": (lambda d: text(d / "t.jsonl", b"\xff\xfe{}"), {"columns": COLUMNS}, "t.jsonl cannot be read as JSON lines: 'utf-8' codec"),
    "a CSV whose rows are too short": (
        lambda d: text(d / "t.csv", "q,a\n1?,1\n2?\n"), {"columns": DatasetColumns(prompt="q")},
        "t.csv, row 1: has fewer or more values than the header has names",
    ),
    "columns of no layout": (lambda d: lines(d / "t.jsonl", ROWS), {}, "columns ['a', 'id', 'level', 'q'] belong to no layout; allowed: intellect-2"),
    "the layout of another set": (lambda d: lines(d / "t.jsonl", ROWS), {"layout": "gsm8k"}, "row 0: column 'question' is missing; columns: "),
    "a filter that leaves nothing": (
        lambda d: lines(d / "t.jsonl", ROWS), {"columns": COLUMNS, "where": [RowFilter(column="level", one_of=["9"])]},
        "t.jsonl: no row is a task: 20 is left out by where (level)",
    ),
    "a filter on a column that is not there": (
        lambda d: lines(d / "t.jsonl", ROWS), {"columns": COLUMNS, "where": [RowFilter(column="levl", one_of=["9"])]},
        "row 0: column 'levl' is missing; columns: a, id, level, q",
    ),
    "a pattern that is none": (
        lambda d: lines(d / "t.jsonl", ROWS), {"columns": COLUMNS, "where": [RowFilter(column="q", matches="(")]},
        "where[0].matches: '(' is no regular expression of RE2",
    ),
    "messages out of order": (
        lambda d: lines(d / "t.jsonl", changed(1, q=[{"role": "boss", "content": "?"}])), {"columns": COLUMNS},
        "row 1: prompt.0.role is 'boss': String should match pattern",
    ),
    "a file of another kind": (lambda d: text(d / "t.arrow", "x"), {"columns": COLUMNS}, "t.arrow is none of .parquet, .jsonl, .json, .csv"),
}  # fmt: skip


def config(**dataset: Any) -> RunConfig:
    tasks = TaskSource(environment="math", dataset=DatasetSource(**dataset))
    return run_config(tasks=tasks, recipe=Recipe(max_sequence_length=256))


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_in_one_line_and_nothing_is_half_prepared(name: str, tmp_path: Path, store: Store) -> None:
    make, dataset, wanted = WRONG[name]
    (tmp_path / "data").mkdir()
    with pytest.raises(CannotPrepare) as caught:
        prepare(config(path=str(make(tmp_path / "data")), **dataset), store, tmp_path / "scratch")
    said = str(caught.value)
    assert said.startswith("spec.tasks.dataset: ")
    assert wanted in said
    assert "\n" not in said
    assert len(said) < 1000
    assert not caught.value.passing
    assert {path.parent.name for path in (tmp_path / "store").rglob("*") if path.is_file()} <= {"judged"}


def tasks_of(config: RunConfig, store: Store, folder: Path) -> list[Task]:
    [found] = _tasks(config, RunSource.of_run(config.tasks), store, folder / "scratch")
    return found


def test_some_faults_within_the_bound_are_left_out_and_reported(tmp_path: Path, store: Store) -> None:
    path = lines(tmp_path / "t.jsonl", [*changed(4, a="???"), ROWS[0]])
    tasks = tasks_of(config(path=str(path), columns=COLUMNS), store, tmp_path)
    assert len(tasks) == 19
    report = TaskReport.from_json(store.get(keys.TASK_REPORT))
    assert (report.rows, report.tasks, report.proven) == (21, 19, 19)
    assert report.skipped == {"is a duplicate (the same problem)": 1}
    assert [(each.reason, each.count, each.first) for each in report.refused] == [
        ("the gold answer is not an expression", 1, ["p4"])
    ]


def test_a_row_group_of_many_rows_is_read_in_pieces(tmp_path: Path, store: Store) -> None:
    rows = [{"q": f"{n} + 1?" + " " * 500, "a": str(n + 1), "id": str(n)} for n in range(30_000)]
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1 << 20)
    found = config(path=str(path), columns=COLUMNS, row_limit=2500)
    assert len(tasks_of(found, store, tmp_path)) == 2500


def test_solve_rates_of_the_data_set_filter_without_a_sample(tmp_path: Path, store: Store) -> None:
    rates = [0.0, 0.125, 0.25, 0.5, 0.51, 1.0, None]
    rows = [row | {"solve_rate_7b": rate} for row, rate in zip(ROWS, rates, strict=False)]
    path = lines(tmp_path / "t.jsonl", rows)
    tasks = TaskSource(
        environment="math",
        dataset=DatasetSource(path=str(path), columns=COLUMNS),
        offline_filter=OfflineFilter(solve_rate="solve_rate_7b"),
    )
    kept = tasks_of(run_config(tasks=tasks, mode="SFT"), store, tmp_path)
    assert [(task.problem_id, task.metadata["solve_rate"]) for task in kept] == [
        ("p1", 0.125),
        ("p2", 0.25),
        ("p3", 0.5),
    ]
    assert json.loads(store.get(keys.FILTER_REPORT)) | {"tasks_digest_before": ""} == {
        "run": "arithmetic", "model_id": "column solve_rate_7b", "weights_digest": None, "samples": 8, "min_correct": 0.125, "max_correct": 0.5,
        "tasks_digest_before": "", "tasks_before": 7, "tasks_kept": 3,
        "outcomes": {"kept": 3, "too easy": 2, "too hard": 1, "was not sampled": 1}, "histogram": [1, 1, 1, 0, 2, 0, 0, 0, 1],
    }  # fmt: skip


def ended(home: Path, found: RunConfig, **environment: str) -> tuple[int, dict[str, Any]]:
    """Exit code and last line of the program that the Job runs."""
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "store").mkdir(exist_ok=True)
    (home / "config" / "run.json").write_bytes(found.to_json())
    done = subprocess.run(
        [sys.executable, "-m", "shoal.environments.prepare"],
        env=STARTED_WITH | {"SHOAL_HOME": str(home), "SHOAL_POD": "p", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_a_run_that_is_prepared_needs_no_gpu(tmp_path: Path) -> None:
    found = config(hugging_face="nobody/nothing", revision="main")
    code, last = ended(tmp_path, found, SHOAL_GPUS="1", SHOAL_VARIANT="cpu")
    assert (code, last["event"]) == (2, "the GPUs that this part was promised cannot be used")
    store = open_folder(tmp_path / "store", f"{found.storage.prefix}/{found.run}")
    store.put(keys.PREPARED, PREPARED_CHAT.model_copy(update={"model_id": found.model_id}).to_json())
    code, last = ended(tmp_path, found, SHOAL_GPUS="1", SHOAL_VARIANT="cpu")
    assert (code, last["event"]) == (0, "already prepared; nothing to do")


def test_a_mistake_that_stays_ends_the_job_and_a_hub_that_is_away_does_not(tmp_path: Path) -> None:
    with serving() as hub:
        missing = config(hugging_face="nobody/nothing", revision="main")
        code, last = ended(tmp_path / "a", missing, HF_ENDPOINT=hub.url, HF_TOKEN="hf_secret", NO_PROXY="127.0.0.1")
        assert "Bearer hf_secret" in hub.tokens
    assert (code, last["level"]) == (2, "error")
    assert last["event"] == (
        "spec.tasks.dataset: there is no data set nobody/nothing on the hub, or prepare's token (HF_TOKEN) may not read it: check huggingFace"
    )
    assert "hf_secret" not in json.dumps(last)
    code, last = ended(tmp_path / "b", missing, HF_ENDPOINT="http://127.0.0.1:9", NO_PROXY="127.0.0.1")
    assert code == 1
    assert "cannot get the data set nobody/nothing at revision main" in last["error"]
