"""The report of what became of tasks: the offline filter's histogram, and the data set of a run of mode Generate with its export."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from samples import DIGEST, run_config
from shoal.cli.generate import generate, last_lines
from shoal.cli.local_run import read_manifest
from shoal.contracts import keys
from shoal.contracts.dataset_card import DatasetCard, DatasetFile
from shoal.contracts.datasets import GenerateSettings
from shoal.contracts.filtering import FilterReport, ProblemCount
from shoal.contracts.sft_data import Trace, write_problem_counts, write_traces
from shoal.contracts.tasks import RefusedTasks, TaskReport
from shoal.errors import InputWrong
from shoal.report.access import RunAccess
from shoal.report.collect import ReportData
from shoal.report.datasets import DamagedDataset, export_dataset, read_card, read_filter, read_task_report
from shoal.report.html import page
from shoal.report.plots import all_plots
from shoal.storage.store import Store, open_folder

FOUND = FilterReport(
    run="sums", model_id="tiny", weights_digest=DIGEST, samples=4, min_correct=0.25, max_correct=0.5, tasks_digest_before=DIGEST,
    tasks_before=20, tasks_kept=7, outcomes={"kept": 7, "too easy": 8, "too hard": 5}, histogram=[5, 4, 3, 2, 6],
)  # fmt: skip
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return open_folder(tmp_path / "store", "shoal/traces", deadline_seconds=2.0)


def data(**changes: Any) -> ReportData:
    return ReportData(**({"run": "sums", "steps_total": 4, "store": "folder", "steps": []} | changes))


def write_dataset(store: Store) -> DatasetCard:
    """A data set of one part in the store."""
    part = write_traces([Trace("a", "math", "1 + 1?", "2", 1.0, 2)])
    counts = write_problem_counts([ProblemCount("a", 2, 1, 2.0), ProblemCount("b", 2, 0, 2.0)])
    described = [
        DatasetFile(name=name, sha256=hashlib.sha256(content).hexdigest(), size=len(content), rows=1)
        for name, content in (("part-00000.parquet", part), ("problems-00000.parquet", counts))
    ]
    card = DatasetCard(
        name="traces", run="traces", licence="CC0-1.0", model_id="tiny", weights_digest=DIGEST, environment="math",
        environment_digest=DIGEST, tasks_digest=DIGEST, task_count=2, samples_per_problem=2, temperature=1.0, filters=GenerateSettings(),
        rows=1, completion_tokens=2, left_out={"is wrong": 3}, problems=2, problems_solved=1, correct_histogram=[1, 1, 0],
        parts=described[:1], problem_files=described[1:],
    )  # fmt: skip
    store.put(keys.dataset_part("traces", 0), part)
    store.put(keys.dataset_problems("traces", 0), counts)
    store.put(keys.dataset("traces") + "README.md", b"# traces")
    store.put(keys.dataset_card("traces"), card.to_json())
    return card


def access(store: Store, mode: str = "Generate") -> RunAccess:
    config = run_config(mode=mode)
    return RunAccess(config, store, config.trust)


def test_the_filters_histogram_is_a_plot_and_its_outcomes_a_table() -> None:
    found = data(filtered=FOUND)
    [plot] = all_plots(found)
    assert (plot.name, "7 of 20 tasks were kept" in plot.caption) == ("filter", True)
    text = page(found, [plot], [])
    assert "<h2>Offline filter</h2>" in text
    assert "<td>too hard</td><td class=n>5</td><td class=n>25.0 %</td>" in text
    assert found.to_json()["offline_filter"]["histogram"] == [5, 4, 3, 2, 6]


def test_a_run_without_a_filter_has_neither(store: Store) -> None:
    notes: list[str] = []
    assert read_filter(store, notes) is None
    assert notes == []
    assert all_plots(data()) == []
    assert "Offline filter" not in page(data(), [], [])


def test_what_became_of_a_data_sets_rows_is_a_table_with_the_first_names(store: Store) -> None:
    refused = RefusedTasks(reason="the gold answer is no expression", count=2, first=["p1", "<p7>"])
    report = TaskReport(rows=9, tasks=4, skipped={"has no answer": 3}, refused=[refused], proven=4)
    store.put(keys.TASK_REPORT, report.to_json())
    found = data(tasks=read_task_report(store, []))
    text = page(found, [], [])
    assert "<td>refused: the gold answer is no expression</td><td class=n>2</td><td class=n>p1, &lt;p7&gt;</td>" in text
    assert "<td>left out: has no answer</td><td class=n>3</td>" in text
    assert found.to_json()["tasks"] == report.model_dump(mode="json")


def test_a_filter_report_that_is_not_readable_is_a_note(store: Store) -> None:
    notes: list[str] = []
    store.put(keys.FILTER_REPORT, b"{}")
    assert read_filter(store, notes) is None
    assert notes[0].startswith("filter.json cannot be read and was left out")


def test_a_data_set_is_shown_and_copied_with_its_files(store: Store, tmp_path: Path) -> None:
    card = write_dataset(store)
    assert "<h2>Data set traces</h2>" in page(data(dataset=card), all_plots(data(dataset=card)), [])
    assert export_dataset(access(store), tmp_path / "out") == card
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"README.md", "card.json", "part-00000.parquet", "problems-00000.parquet"}
    assert last_lines(card, tmp_path / "out")[:2] == [
        "1 of 4 completions kept; 1 of 2 problems solved (50.0 %)",
        "left out, is wrong: 3",
    ]


def test_a_damaged_file_is_not_copied_and_what_was_copied_before_stays(store: Store, tmp_path: Path) -> None:
    write_dataset(store)
    export_dataset(access(store), tmp_path / "out")
    store.put(keys.dataset_part("traces", 0), b"other")
    with pytest.raises(DamagedDataset, match=r"part-00000.parquet has SHA-256 .*, but card.json says"):
        export_dataset(access(store), tmp_path / "out")
    assert (tmp_path / "out" / "card.json").is_file()


def test_other_modes_have_no_data_set(store: Store, tmp_path: Path) -> None:
    write_dataset(store)
    assert read_card(access(store, "Train")) is None
    assert export_dataset(access(store, "Train"), tmp_path / "out") is None


def test_generate_refuses_a_run_of_another_mode(tmp_path: Path) -> None:
    manifest = read_manifest(EXAMPLES / "arithmetic" / "trainingrun.yaml")
    with pytest.raises(InputWrong, match="mode is Train; `shoal generate` runs mode Generate, `shoal up` any mode"):
        generate(manifest, tmp_path, None, live=False, fresh=False)
