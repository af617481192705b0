"""A run whose first part cannot work, with the operator's own supervision: how it ends, and that it can be tried again."""

import os
import subprocess
import sys
from pathlib import Path

MANIFEST = """
apiVersion: shoal.dev/v1alpha1
kind: TrainingRun
metadata: {name: demo}
spec:
  model: {generated: {name: arithmetic}}
  tasks: {environment: arithmetic, count: 9000}
  steps: 3
"""


def up(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-m", "shoal.cli.main", "up", "-f", "run.yaml"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def test_a_run_that_cannot_be_prepared_fails_with_the_cause_and_the_same_command_retries_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "run.yaml").write_text(MANIFEST)
    first = up(tmp_path)
    assert first.returncode == 1, first.stderr
    lines = first.stdout.splitlines()
    assert any(line.startswith("the run failed: Job demo-prepare: pod demo-prepare-0: PodFailed") for line in lines)
    assert sum(line.endswith("demo-prepare-0/prepare: failed: exit code 2") for line in lines) == 1, "one try is enough"
    (cause,) = [line for line in lines if line.startswith("last line of demo-prepare-0/prepare: ")]
    assert "9000 tasks requested; allowed: 1 to 8100" in cause
    assert lines.index(cause) < next(number for number, line in enumerate(lines) if line.startswith("the run failed"))
    assert not any("delete the Job" in line for line in lines if line.startswith("the run failed"))
    assert any(line.endswith("; the same command tries again") for line in lines)
    assert list((tmp_path / "runs/demo/processes").glob("*.json")) == []
    second = up(tmp_path)
    assert second.returncode == 1
    assert "demo-prepare-0/prepare: failed: exit code 2" in second.stdout
