"""A run of two islands as `shoal up` starts it: processes that meet at a lighthouse; each is killed in turn, and the run ends with its result.

`make soak` runs this.
"""

import json
import random
from pathlib import Path

import pytest
import yaml
from local_system import LocalSystem

from shoal.contracts import keys
from shoal.contracts.final_model import FinalModel
from shoal.contracts.steps import StepMetrics
from shoal.storage import NotFound

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

STEPS, RUN_SECONDS = 6, 900.0


def manifest(folder: Path) -> Path:
    """Sums to learn, as a file, and a run that learns them on two islands."""
    chance = random.Random(5)
    pairs = [(chance.randrange(10, 100), chance.randrange(10, 100)) for _ in range(1200)]
    rows = [{"problem_id": f"{a}+{b}", "prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in pairs]
    data = folder / "data"
    data.mkdir(parents=True)
    (data / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "mode": "SFT",
        "model": {"generated": {"name": "arithmetic", "warmStartPassRate": 0.05}},
        "tasks": {"environment": "arithmetic", "count": 64},
        "steps": STEPS,
        "seed": 7,
        "sft": {
            "dataset": {"path": str(data)},
            "epochs": 12, "batchRows": 16, "learningRate": 1e-3, "warmupSteps": 8, "maxSequenceLength": 32, "packLength": 256,
        },
        "storage": {"folderSize": "1Gi"},
        "trainer": {
            "scratchSize": "1Gi",
            "islands": {"count": 2, "innerSteps": 20, "exchange": "int8", "waitSeconds": 20},
        },
    }  # fmt: skip
    made = {"apiVersion": "shoal.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": "isles"}, "spec": spec}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(made))
    return path


def test_two_islands_are_each_killed_and_the_run_ends_with_one_result(tmp_path: Path) -> None:
    system = LocalSystem(manifest(tmp_path / "run"), tmp_path / "runs")
    system.start()
    try:
        system.until("version 1 is announced", lambda: system.latest_version() >= 1, RUN_SECONDS)
        system.kill("island", "trainer")
        system.until("the other goes on", lambda: system.latest_version() >= 2, RUN_SECONDS)
        own = keys.island("island-1") + "/"
        system.until("it is back", lambda: system.pid("island", "trainer") is not None, RUN_SECONDS)
        system.until("version 3 is announced", lambda: system.latest_version() >= 3, RUN_SECONDS)
        system.kill("trainer", "trainer")
        system.until("the run is complete", lambda: system.local.finished() == "complete", RUN_SECONDS)
        store = system.store
    finally:
        system.stop()
    assert FinalModel.from_json(store.get(keys.FINAL_SEAL)).version == STEPS

    def losses(prefix: str) -> dict[int, float]:
        found = {}
        for step in range(STEPS):
            try:
                report = StepMetrics.from_json(store.get(prefix + keys.step_metrics(step)))
            except NotFound:
                continue  # made by the others while this island was away
            found[step] = report.held_out_loss or 0.0
        return found

    first, second = losses(""), losses(own)
    assert STEPS - 1 in first
    assert first[STEPS - 1] < first[0]
    assert second, "the second island has trained nothing"
    states = {info.key.split("/")[4] for info in store.list(own + keys.TRAINER_STATE)}
    assert states, "the second island keeps no states of its own"
