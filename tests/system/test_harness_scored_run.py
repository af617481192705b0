"""A run whose versions are scored on a task of lm-evaluation-harness with data of the admin's own, beside a benchmark of our environments.

The task's YAML file and its documents are read by prepare alone: both are gone before the first version is scored.
"""

import shutil
from pathlib import Path

import httpx
import pytest
import yaml
from local_system import LocalSystem, write_manifest

from harness_files import write_harness_task
from shoal.cli.reporting import score_lines
from shoal.contracts import keys
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.run import Prepared
from shoal.contracts.work import FIRST_SLICE
from shoal.environments.arithmetic import Arithmetic
from shoal.evaluation.versions import VersionEvaluation
from shoal.report.write import make_report
from shoal.storage.versions import versions_with_shards

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic" / "trainingrun.yaml"
STEPS, EVERY, ASKED = 8, 2, 16
OURS, THEIRS = "sums", "two-digit"


def write_sums(folder: Path) -> str:
    """Sums as a task of the harness; the answer is what stands behind the scratchpad."""
    tasks = Arithmetic().tasks(ASKED, seed=31)
    documents = [{"question": task.prompt, "answer": task.verification_info["answer"]} for task in tasks]
    changes = {
        "task": "two_digit_sums",
        "num_fewshot": 0,
        "doc_to_text": "{{question}}\n",
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "generation_kwargs": {"until": ["\n"]},
        "filter_list": [
            {
                "name": "sum",
                "filter": [
                    {"function": "regex", "regex_pattern": "(?:^|>)([0-9]+)$"},
                    {"function": "take_first"},
                ],
            }
        ],
    }
    return write_harness_task(folder, changes, documents)


def manifest_of(folder: Path, task: str) -> Path:
    path = write_manifest(
        EXAMPLE,
        folder / "run.yaml",
        name="harness-scored",
        steps=STEPS,
        recipe={"promptsPerStep": 8, "groupSize": 4, "optimizerSteps": 1},
        sampling={"groupsPerSubmission": 4},
        relayServer={"keptVersions": 3},
        evaluation={
            "everyVersions": EVERY,
            "share": 0.6,
            "bestBy": THEIRS,
            "benchmarks": [
                {"name": OURS, "tasks": {"environment": "arithmetic", "count": ASKED}, "samples": 4},
                {"name": THEIRS, "tasks": {"environment": task}, "samples": 4, "temperature": 1.0},
            ],
        },
    )
    document = yaml.safe_load(path.read_text())
    del document["spec"]["lengthReward"]  # a model is asked as it is trained: without a length
    path.write_text(yaml.safe_dump(document))
    return path


def test_versions_are_scored_on_a_harness_task_with_data_of_the_admins_own(tmp_path: Path) -> None:
    system = LocalSystem(manifest_of(tmp_path, write_sums(tmp_path / "task")), tmp_path / "runs")
    system.start()
    try:
        system.until("the run is prepared", lambda: system.store.exists(keys.PREPARED), 900)
        shutil.rmtree(tmp_path / "task")
        system.until("the run is complete", lambda: system.local.finished() == "complete", 900)
        store, status = system.store, dict(system.local.status())
        [orchestrator] = system.pods("orchestrator")
        metrics = httpx.get(f"http://{orchestrator.address}:8080/metrics", timeout=30).text
        ledger, kept = system.ledger(), versions_with_shards(store)
    finally:
        system.stop()

    theirs = next(each for each in Prepared.from_json(store.get(keys.PREPARED)).benchmarks if each.name == THEIRS)
    assert theirs.task_count == ASKED, "without a count all documents are asked"
    found = {
        (version, name): VersionEvaluation.from_json(store.get(keys.evaluation(version, name)))
        for version in (0, STEPS)
        for name in (OURS, THEIRS)
    }
    for made in found.values():
        assert made.complete
        assert made.scores is not None
        average = made.scores.avg_at_k
        assert average is not None
        assert made.scores.unscored == 0
        assert average.low <= average.value <= average.high
        assert average.high - average.low < 0.9
        assert len(made.scores.problems) == ASKED
    assert any(made.scores.avg_at_k.value > 0 for made in found.values()), "the tiny model is right now and then"
    assert not [entry for entry in ledger if entry.kind == "rejected"], "validators score as workers do"
    assert [entry for entry in ledger if entry.kind == "accepted" and (entry.step or 0) >= FIRST_SLICE]

    best = BestVersion.from_json(store.get(keys.BEST_VERSION))
    assert best.benchmark == THEIRS
    assert (status["bestVersion"], status["bestScore"]) == (best.version, round(best.value, 6))
    assert best.version in kept, "the best version stays, however old"
    assert len(kept) < STEPS + 1, "others have gone"

    newest = {each["benchmark"]: each for each in status["scores"]}
    for name in (OURS, THEIRS):
        scores = found[STEPS, name].scores
        assert scores is not None
        average = scores.avg_at_k
        assert average is not None
        wanted = (STEPS, round(average.value, 6), round(average.low, 6), round(average.high, 6))
        assert tuple(newest[name][key] for key in ("version", "score", "low", "high")) == wanted
        assert f'shoal_evaluation_score{{benchmark="{name}"}} {average.value}' in metrics
        assert f'shoal_evaluation_score_bound{{benchmark="{name}",bound="low"}} {average.low}' in metrics
    assert f"shoal_evaluation_best_version {float(best.version)}" in metrics

    folder = system.folder
    report = make_report(folder, folder / "metrics.jsonl", folder / "model")
    page = report.html.read_text()
    assert "Scores of versions" in page
    assert all(name in page for name in (OURS, THEIRS))
    lines = score_lines(report.data.evaluations, report.data.best_version)
    assert any(line.startswith(f"on {THEIRS}: version 0: ") and "best: version" in line for line in lines)
