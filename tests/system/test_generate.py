"""A run of mode Generate for real: workers sample a task table once, with the collector and the orchestrator killed on the way."""

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from local_system import LocalSystem, write_manifest

from shoal.contracts import keys
from shoal.contracts.dataset_card import DatasetCard
from shoal.contracts.run import Prepared
from shoal.contracts.sft_data import read_problem_counts, read_traces
from shoal.contracts.task_table import read_tasks
from shoal.environments import Score, load

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "generate" / "trainingrun.yaml"
TASKS, GROUPS, SAMPLES = 44, 8, 4
SLICES = 6  # the last one shares four tasks with the one before


def test_every_task_is_sampled_once_whoever_is_killed_and_what_is_kept_is_right_and_unlike(tmp_path: Path) -> None:
    manifest = write_manifest(
        EXAMPLE,
        tmp_path / "traces.yaml",
        model={"generated": {"warmStartPassRate": 0.2}},  # enough for problems with more right answers than are kept
        tasks={"count": TASKS},
        recipe={"groupSize": SAMPLES},
        generate={"rowsPerPart": 4, "tracesPerProblem": 2},
        validator={"validation": {"claimSeconds": 5}},
    )
    system = LocalSystem(manifest, tmp_path / "runs")
    system.start()
    try:
        system.until("the base model is published as version 0", lambda: system.latest_version() >= 0, 600)
        system.until("a slice is sealed", system.sealed_steps, 300)
        system.kill("trainer", "trainer")
        system.kill("orchestrator", "orchestrator")
        system.until("the run is complete", lambda: system.local.finished() == "complete", 600)
        status = system.local.status()
        store = system.store

        prepared = Prepared.from_json(store.get(keys.PREPARED))
        tasks = {task.problem_id: task for task in read_tasks(store.get(keys.task_table(prepared.tasks_digest)))}
        assert sorted(system.sealed_steps()) == list(range(SLICES))
        covered = Counter(
            index for step in range(SLICES) for file in system.batch(step).files for index in file.prompt_indices
        )
        assert sorted(covered) == list(range(TASKS))
        assert {index for index, times in covered.items() if times > 1} == set(
            range(TASKS - GROUPS, SLICES * GROUPS - GROUPS)
        )

        card = DatasetCard.from_json(store.get(keys.dataset_card("additions")))
        [published] = [entry for entry in system.ledger() if entry.kind == "dataset-published"]
        assert published.digest == hashlib.sha256(store.get(keys.dataset_card("additions"))).hexdigest()
        files = {
            part.name: store.get(keys.dataset("additions") + part.name) for part in [*card.parts, *card.problem_files]
        }
        assert {part.name: part.sha256 for part in [*card.parts, *card.problem_files]} == {
            name: hashlib.sha256(data).hexdigest() for name, data in files.items()
        }

        counts = [row for file in card.problem_files for row in read_problem_counts(files[file.name])]
        assert sorted(row.problem_id for row in counts) == sorted(tasks)
        assert all(row.samples == SAMPLES for row in counts)
        rows = [row for part in card.parts for row in read_traces(files[part.name])]
        assert len(rows) == card.rows > 0
        assert card.rows + sum(card.left_out.values()) == TASKS * SAMPLES
        assert card.left_out["is wrong"] == TASKS * SAMPLES - sum(row.correct for row in counts)
        environment = load("arithmetic")
        for row in rows:
            assert environment.score(tasks[row.problem_id], row.completion) == Score(1.0, "the sum is right")
            assert row.prompt == environment.prompt(tasks[row.problem_id], None)
        assert len({(row.prompt, row.completion) for row in rows}) == len(rows)
        assert max(Counter(row.problem_id for row in rows).values()) <= 2
        assert status["dataset"] == {
            "slices": SLICES,
            "slicesCollected": SLICES,
            "rowsSeen": TASKS * SAMPLES,
            "rowsKept": card.rows,
        }
    finally:
        system.stop()
