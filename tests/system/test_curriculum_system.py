"""A run with a curriculum for real: workers are told prompts of the pools, validators accept only those, and whoever has the store finds the same.

The pools follow from measured solve rates, prompts from the beacon. `shoal ledger audit` draws them again afterwards, as a stranger does.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from local_system import EXAMPLE, SMALL, LocalSystem, write_manifest

from shoal.contracts.curriculum import pools_of_steps
from shoal.contracts.task_source import Curriculum

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

STEPS, PROBLEMS, ASYNC_LEVEL = 10, 32, 1
POOLS: dict[str, Any] = {"weights": {"unseen": 1, "hard": 1, "middle": 16, "easy": 1}}
"""Problems that are solved now and then are wanted most."""


def test_problems_that_are_solved_now_and_then_are_drawn_more_often_and_every_draw_is_checked(tmp_path: Path) -> None:
    manifest = write_manifest(
        EXAMPLE,
        tmp_path / "run.yaml",
        name="pools",
        **{**SMALL, "steps": STEPS, "asyncLevel": ASYNC_LEVEL, "tasks": {"count": PROBLEMS, "curriculum": POOLS}},
    )
    system = LocalSystem(manifest, tmp_path / "runs")
    system.start()
    try:
        system.until("the run is complete", lambda: system.local.finished() == "complete", 1500)
        entries = system.ledger()
        batches = [system.batch(step) for step in range(STEPS)]
        run_key = str(system.config().run_key)
    finally:
        system.stop()
    assert not [entry for entry in entries if entry.kind == "rejected"], "honest draws pass every validator"

    curriculum = Curriculum.model_validate(POOLS)
    by_step = pools_of_steps(curriculum, PROBLEMS, ASYNC_LEVEL, lambda step: batches[step])
    assert by_step is not None
    pools = [by_step.of(step) for step in range(STEPS)]
    assert len({each.digest for each in pools}) >= 3, "the pools move with the solve rates"
    drawn = [[each.pool_of(prompt) for prompt, _ in batch.solved] for each, batch in zip(pools, batches, strict=True)]
    assert set(drawn[0]) == {"unseen"}
    late = range(STEPS // 2, STEPS)
    asked_for = sum(drawn[step].count("middle") for step in late) / sum(len(drawn[step]) for step in late)
    there = sum(len(pools[step].rows[2]) for step in late) / (PROBLEMS * len(late))
    assert asked_for > there + 0.1, (
        f"{asked_for:.2f} of the prompts are of the {there:.2f} of the problems in the middle"
    )

    source = str(system.store_folder / "shoal" / "pools")
    line = [sys.executable, "-m", "shoal.cli.main", "ledger", "audit", source, "--run-key", run_key, "--json"]
    asked = ["--only", "batches,draws", "--work", str(tmp_path / "audit")]
    audit = subprocess.run([*line, *asked], capture_output=True, text=True, timeout=600, check=False)
    assert audit.returncode == 0, audit.stdout[-2000:] + audit.stderr[-2000:]
    assert json.loads(audit.stdout)["findings"] == []
