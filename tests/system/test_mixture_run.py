"""Journey: one run learns arithmetic and programs together, both rewards rise, and the shares are those of the weights. `make soak` runs it.

The model is a tiny one that has both skills, with slips. Figures go into `benchmarks/results/models.json`.
"""

import json
import time
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml
from local_system import EXAMPLE, LocalSystem
from two_skills import LONGEST, make_two_skills

from shoal.contracts import keys
from shoal.contracts.run import Prepared
from shoal.contracts.steps import StepBatch, StepMetrics
from shoal.evaluation.versions import VersionEvaluation

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "models.json"
STEPS = 40
WEIGHTS = {"sums": 2, "programs": 1}
RISE = 0.1
"""What the mean reward of each source must rise by at least, on tasks that are not trained on."""


def manifest(folder: Path, model: Path) -> Path:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"]["name"] = "mixture"
    environments = {"sums": "arithmetic", "programs": "code"}
    document["spec"] |= {
        "model": {"path": str(model)},
        "tasks": {
            "mixture": [
                {"name": name, "environment": environments[name], "count": 1024, "weight": weight}
                for name, weight in WEIGHTS.items()
            ]
        },
        "steps": STEPS,
        "evaluation": {
            "everyVersions": STEPS,
            "share": 0.5,
            "benchmarks": [
                {"name": name, "tasks": {"source": name, "count": 64}, "samples": 2, "temperature": 1.0}
                for name in WEIGHTS
            ],
        },
        "recipe": document["spec"]["recipe"] | {"promptsPerStep": 24, "maxSequenceLength": LONGEST},
        "sampling": {"temperature": 1.0, "maxCompletionTokens": 64, "groupsPerSubmission": 6},
        "inferencePools": [{"name": "pool", "replicas": 1, "weightsSize": "1Gi"}],
        "relayServer": {"replicas": 1, "cacheSize": "1Gi"},
    }
    del document["spec"]["lengthReward"]
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_one_run_learns_two_kinds_of_tasks_and_keeps_their_shares(tmp_path: Path) -> None:
    began = time.monotonic()
    right_before = make_two_skills(tmp_path / "model")
    system = LocalSystem(manifest(tmp_path, tmp_path / "model"), tmp_path / "runs")
    system.start()
    try:
        system.until("the run is complete", lambda: system.local.finished() == "complete", 5400)
        store = system.store
        prepared = Prepared.from_json(store.get(keys.PREPARED))
        steps = [metrics for _, metrics in sorted(system.metrics().items())]
        batches = [StepBatch.from_json(store.get(keys.step_batch(step))) for step in range(STEPS)]
        progress = system.progress()
        scored = {
            name: [
                VersionEvaluation.from_json(store.get(keys.evaluation(version, name))).short.avg_at_k
                for version in (0, STEPS)
            ]
            for name in WEIGHTS
        }
    finally:
        system.stop()
    assert {each.name: each.weight for each in prepared.mixture} == WEIGHTS
    assert progress is None or progress.files_rejected == 0, "honest workers were rejected"
    for batch in batches:  # of what was sampled the shares are exact in every step
        sums, programs = batch.by_source["sums"].sampled, batch.by_source["programs"].sampled
        assert sums == WEIGHTS["sums"] * programs
    figures = {name: _source_figures(steps, batches, name) for name in WEIGHTS}
    rises = {name: round((last or 0.0) - (first or 0.0), 3) for name, (first, last) in scored.items()}
    figures_of_run: dict[str, Any] = {
        "reward_rise_mixed": rises,
        "mixed": {
            "steps": STEPS,
            "weights": WEIGHTS,
            "right_before": right_before,
            "held_out_scores": scored,
            "sources": figures,
            "minutes": round((time.monotonic() - began) / 60, 1),
        },
    }
    print(json.dumps(figures_of_run, indent=2))
    for name, each in figures.items():
        assert rises[name] >= RISE, f"the reward of {name} rose by {rises[name]}"
        assert abs(each["sampled_share"] / (WEIGHTS[name] / sum(WEIGHTS.values())) - 1) <= 0.05
    RESULTS.write_text(json.dumps(json.loads(RESULTS.read_text()) | figures_of_run, indent=2) + "\n")


def _source_figures(steps: list[StepMetrics], batches: list[StepBatch], name: str) -> dict[str, float]:
    """Shares over the run, and the mean reward of the first and last steps' groups, which carry signal."""
    rewards = [metrics.by_task_type[name].task_reward for metrics in steps if name in metrics.by_task_type]
    sampled = sum(batch.by_source[name].sampled for batch in batches)
    trained = sum(metrics.by_task_type[name].groups for metrics in steps if name in metrics.by_task_type)
    return {
        "trained_reward_begin": round(mean(rewards[:6]), 3),
        "trained_reward_end": round(mean(rewards[-6:]), 3),
        "sampled_share": round(
            sampled / sum(each.sampled for batch in batches for each in batch.by_source.values()), 4
        ),
        "trained_share": round(trained / sum(batch.groups for batch in batches), 4),
        "signal_share": round(sum(batch.by_source[name].with_signal for batch in batches) / sampled, 4),
    }
