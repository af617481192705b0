"""Somebody's own chat model and data, from `shoal init` to a model that was pushed to a hub, downloaded and scored.

`benchmarks.models.journey` does it. In `make test` with a small model that has Qwen3's tokenizer and tosses a coin; in `make soak` with SmolLM2.
"""

import json
from pathlib import Path

import pytest
from benchmarks.models import journey

from chat_model import LONGEST, QUESTION, coin_model

pytestmark = pytest.mark.timeout(1800)
ROWS, HELD = 64, 16
SMALL = {
    "steps": 2,
    "recipe": {
        "promptsPerStep": 4, "groupSize": 8, "optimizerSteps": 2, "learningRate": 2e-4, "warmupSteps": 0, "klCoefficient": 0.0,
        "maxSequenceLength": LONGEST,
    },
    "sampling": {"maxCompletionTokens": 12, "groupsPerSubmission": 2},
    "inferencePools": [{"name": "pool", "replicas": 1, "weightsSize": "1Gi"}],
}  # fmt: skip


def test_a_model_of_ones_own_is_trained_pushed_downloaded_and_scored(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"{QUESTION} {n}"}], "answer": "1"} for n in range(ROWS + HELD)]
    journey.write_rows(tmp_path / "train.jsonl", rows[HELD:])
    journey.write_rows(tmp_path / "held.jsonl", rows[:HELD])
    coin_model(tmp_path / "model")
    path = journey.manifest(tmp_path / "model", tmp_path, SMALL)
    pushed = journey.travel(tmp_path, path)
    assert (pushed / "chat_template.jinja").exists() or "chat_template" in (
        pushed / "tokenizer_config.json"
    ).read_text()
    report = json.loads((tmp_path / "runs" / journey.RUN / "report.json").read_text())
    assert len(report["step_metrics"]) == SMALL["steps"]
    scores = journey.scored(pushed, "pushed", path, tmp_path)
    assert scores["unanswered"] < 0.5
    assert scores["value"] > 0.2, "a coin is right about every second time"


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
def test_a_real_instruct_model_learns_by_a_fifth(tmp_path: Path) -> None:
    assert journey.measure(tmp_path, journey.STEPS)["reward_rise_chat"] >= 0.2
