"""The same run started again in its folder: what may change, and what is kept."""

from pathlib import Path

import pytest
import yaml

from shoal_operator.api.manifest import ManifestError
from shoal_operator.local.run import LocalRun

MANIFEST = {
    "apiVersion": "shoal.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "sums"},
    "spec": {"model": {"generated": {}}, "tasks": {"environment": "arithmetic"}, "steps": 4},
}


@pytest.fixture
def started_once(tmp_path: Path) -> Path:
    """A folder in which the run was started and stopped before any of its pods."""
    run = LocalRun(write(tmp_path), tmp_path / "runs")
    run.start()
    run.stop()
    return tmp_path


def write(folder: Path, **spec: object) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(MANIFEST | {"spec": MANIFEST["spec"] | spec}))
    return path


def test_more_steps_are_accepted(started_once: Path) -> None:
    run = LocalRun(write(started_once, steps=9), started_once / "runs")
    run.start()
    live = run.cluster.get("TrainingRun", "sums")
    run.stop()
    assert live is not None
    assert (live["spec"]["steps"], live["metadata"]["generation"]) == (9, 2)


def test_other_tasks_are_refused_before_anything_starts(started_once: Path) -> None:
    path = write(started_once, tasks={"environment": "chess"})
    with pytest.raises(ManifestError) as caught:
        LocalRun(path, started_once / "runs")
    assert str(caught.value) == (
        f"{path}: spec.tasks: cannot change once the run exists; start a new run instead "
        f"(this one is in {started_once / 'runs' / 'sums'})"
    )


def test_another_name_is_another_run(started_once: Path) -> None:
    path = started_once / "other.yaml"
    path.write_text(yaml.safe_dump(MANIFEST | {"metadata": {"name": "other"}}))
    assert LocalRun(path, started_once / "runs").run_dir == started_once / "runs" / "other"
