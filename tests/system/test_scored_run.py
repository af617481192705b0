"""A run that scores its versions for real: its own workers answer a benchmark between training, and the run ends when the last version is scored."""

from pathlib import Path

import pytest
from local_system import LocalSystem, write_manifest

from shoal.contracts import keys
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.run import Prepared
from shoal.contracts.task_table import read_tasks
from shoal.contracts.work import FIRST_SLICE
from shoal.evaluation.versions import VersionEvaluation

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic" / "trainingrun.yaml"
STEPS = 2


def test_versions_are_scored_by_the_pool_that_trains_them(tmp_path: Path) -> None:
    manifest = write_manifest(
        EXAMPLE,
        tmp_path / "run.yaml",
        model={"generated": {"warmStartPassRate": 0.3}},
        steps=STEPS,
        evaluation={
            "everyVersions": 1,
            "share": 0.5,
            "benchmarks": [
                {"name": "sums", "tasks": {"environment": "arithmetic", "count": 12}, "samples": 4},
                {
                    "name": "two-at-length",
                    "tasks": {"environment": "arithmetic", "count": 2},
                    "samples": 2,
                    "temperature": 1.0,
                    "targetLength": 32,
                },
            ],
        },
    )
    system = LocalSystem(manifest, tmp_path / "runs")
    system.start()
    try:
        system.until("the base model is published as version 0", lambda: system.latest_version() >= 0, 400)
        system.until("a slice is answered", lambda: _answered(system), 300)
        system.kill("orchestrator", "orchestrator")
        system.until("the run is complete", lambda: system.local.finished() == "complete", 600)
        store, status = system.store, system.local.status()
        [pinned] = [
            each for each in Prepared.from_json(store.get(keys.PREPARED)).benchmarks if each.name == "two-at-length"
        ]
        tasks = read_tasks(store.get(keys.task_table(pinned.tasks_digest)))
        found = {
            (version, name): VersionEvaluation.from_json(store.get(keys.evaluation(version, name)))
            for version in (0, STEPS)
            for name in ("sums", "two-at-length")
        }
        assert all(each.complete for each in found.values())
        last = found[STEPS, "two-at-length"].scores
        assert last is not None
        assert {each.problem_id for each in last.problems} == {task.problem_id for task in tasks}
        assert last.lengths.most > 0
        best = BestVersion.from_json(store.get(keys.BEST_VERSION))
        assert best.benchmark == "sums"
        assert (status["bestVersion"], status["bestScore"]) == (best.version, round(best.value, 6))
        rejected = [entry for entry in system.ledger() if entry.kind == "rejected"]
        assert not rejected, "honest answers at another temperature and with another prompt pass every check"
        scored = [e for e in system.ledger() if e.kind == "accepted" and e.step is not None and e.step >= FIRST_SLICE]
        assert len({entry.step for entry in scored}) == len(scored) >= sum(each.slices_done for each in found.values())
    finally:
        system.stop()


def _answered(system: LocalSystem) -> bool:
    return any(e.kind == "accepted" and e.step is not None and e.step >= FIRST_SLICE for e in system.ledger())
