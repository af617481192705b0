"""A run with an offline filter for real: its filter samples every task, prepare keeps the middling ones, and the run learns those only."""

from pathlib import Path

import pytest
from local_system import LocalSystem, write_manifest

from shoal.contracts import keys
from shoal.contracts.dataset_card import DatasetCard
from shoal.contracts.datasets import FILTER_DATASET
from shoal.contracts.filtering import KEPT, FilterReport
from shoal.contracts.run import Prepared
from shoal.contracts.sft_data import read_problem_counts
from shoal.contracts.task_source import OfflineFilter
from shoal.contracts.task_table import read_tasks
from shoal.storage.store import open_folder

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "generate" / "filtered.yaml"


def test_the_filter_samples_every_task_and_the_run_learns_what_it_keeps(tmp_path: Path) -> None:
    system = LocalSystem(
        write_manifest(EXAMPLE, tmp_path / "run.yaml", tasks={"count": 48}, steps=1), tmp_path / "runs"
    )
    system.start()
    try:
        system.until("the filter's orchestrator runs", lambda: system.pods("orchestrator"), 900)
        system.until("the filter writes its first slices", lambda: _slices(system) > 1, 900)
        system.kill("trainer", "trainer")
        system.until("the run trains a version on what is kept", lambda: _is_complete(system), 900)

        counted = open_folder(system.folder / "volumes" / f"{system.run}-filter-store", f"shoal/{system.run}-filter")
        card = DatasetCard.from_json(counted.get(keys.dataset_card(FILTER_DATASET)))
        shares = {
            count.problem_id: count.correct / count.samples
            for file in card.problem_files
            for count in read_problem_counts(counted.get(keys.dataset(FILTER_DATASET) + file.name))
        }
        assert len(shares) == 48
        prepared = Prepared.from_json(system.store.get(keys.PREPARED))
        learnt = {task.problem_id for task in read_tasks(system.store.get(keys.task_table(prepared.tasks_digest)))}
        rule = OfflineFilter()
        assert learnt == {name for name, share in shares.items() if rule.min_correct <= share <= rule.max_correct}
        report = FilterReport.from_json(system.store.get(keys.FILTER_REPORT))
        assert report.outcomes[KEPT] == len(learnt) == prepared.task_count
        assert sum(report.histogram) == report.tasks_before == 48
        child = system.local.cluster.get("TrainingRun", f"{system.run}-filter")
        assert child is not None
        assert child["spec"]["suspend"] is True
    finally:
        system.stop()


def _slices(system: LocalSystem) -> int:
    child = system.local.cluster.get("TrainingRun", f"{system.run}-filter") or {}
    return int(child.get("status", {}).get("dataset", {}).get("slicesCollected", 0))


def _is_complete(system: LocalSystem) -> bool:
    ended = system.local.finished()
    assert ended is None or ended == "complete", ended
    return ended == "complete"
