"""A run whose second source is an environment that nobody has installed: two wheels, from files to the scores of workers and validators."""

from pathlib import Path

import pytest
from local_system import EXAMPLE, SMALL, LocalSystem, write_manifest

from shoal.contracts import keys
from shoal.contracts.model_source import GeneratedModel
from shoal.contracts.run import Prepared
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.base import installed
from shoal.environments.generated_model import make_model
from wheels_made import entry, wheel

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

STEPS = 2
SUMS = '''"""Sums that bring their own judge."""

from sums_judge import judged

from shoal.environments.arithmetic import Arithmetic


class PackagedSums(Arithmetic):
    name = "packaged-sums"

    def score(self, task, completion):
        return judged(super().score(task, completion))
'''
JUDGE = "def judged(score):\n    return score\n"
POINTS = "[shoal.environments]\npackaged-sums = packaged_sums:PackagedSums\n"


def test_a_run_trains_on_an_environment_that_it_brings(tmp_path: Path) -> None:
    wheels = {
        "packaged-sums": wheel("packaged-sums", {"packaged_sums.py": SUMS}, requires=["sums-judge"], points=POINTS),
        "sums-judge": wheel("sums-judge", {"sums_judge.py": JUDGE}),
    }
    brought = []
    for name, data in wheels.items():
        (tmp_path / f"{name}.whl").write_bytes(data)
        line = entry(name, data, path=str(tmp_path / f"{name}.whl"))
        brought.append(line.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert "packaged-sums" not in installed()
    tasks = {
        "environment": None,
        "count": None,
        "packages": brought,
        "mixture": [
            {"name": "sums", "environment": "arithmetic", "count": 512},
            {"name": "theirs", "environment": "packaged-sums", "count": 512},
        ],
    }
    model = tmp_path / "model"  # a run makes its own for tasks of arithmetic alone
    made_for = GeneratedModel(warm_start_pass_rate=0.3)
    make_model(model, Arithmetic(), [20, 24, 28], made_for, 64, 7, lambda *_: None)
    changes = SMALL | {"steps": STEPS, "model": {"generated": None, "path": str(model)}}
    manifest = write_manifest(EXAMPLE, tmp_path / "run.yaml", name="brings", tasks=tasks, **changes)
    system = LocalSystem(manifest, tmp_path / "runs")
    system.start()
    try:
        system.until("prepare is done", lambda: system.store.exists(keys.PREPARED), 600)
        for name in wheels:
            (tmp_path / f"{name}.whl").unlink()  # the run has them
        system.until("the run is complete", lambda: system.local.finished() == "complete", 1200)
        prepared = Prepared.from_json(system.store.get(keys.PREPARED))
        assert [each.package for each in prepared.packages] == list(wheels)
        for each in prepared.packages:
            assert system.store.get(keys.package(each.sha256)) == wheels[each.package]
        assert len(list(system.folder.rglob("packaged_sums.py"))) >= 3, "prepare, a worker and a validator each have it"
        assert not list(system.folder.rglob("packaged_sums*.pyc")), "nothing of it was imported outside of the sandbox"
        by_source = [system.batch(step).by_source for step in range(STEPS)]
        assert {name for each in by_source for name, groups in each.items() if groups.sampled} == {"sums", "theirs"}
        assert not [entry_ for entry_ in system.ledger() if entry_.kind == "rejected"]
    finally:
        system.stop()
