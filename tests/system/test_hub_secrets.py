"""A run whose model and tasks lie on a private hub: prepare gets its token by a Secret, and nothing that is written down has it.

Prepare runs for real, as a pod of this machine, against the stand-in hub (`tests/hub.py`). Every file of the run is searched for the token, as it is
and in base64. The one place for secrets is `objects.json`, which stands for the API server's storage and which its owner alone may read.
"""

import base64
import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import Qwen3Config, Qwen3ForCausalLM

from hub import Hub
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal_operator.engine.conditions import is_true
from shoal_operator.local.run import LocalRun

TOKEN = "hf_planted-token-of-nobody"
PASSWORD = "planted-password"
PREPARE_SECONDS = 200.0
ROWS = [{"question": f"What is {n} + {n}?", "final": str(2 * n), "id": f"double-{n}"} for n in range(16)]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    checkpoint = tmp_path / "checkpoint"
    tokenizer = train_tokenizer(["12+34=", "What is 1 + 1?"])
    shape = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    settings = Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=32, **shape)
    settings.eos_token_id = 1
    Qwen3ForCausalLM(settings).save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    with Hub(tmp_path / "hub", token=TOKEN) as running:
        running.add("me/model", {path.name: path for path in checkpoint.iterdir()}, private=True)
        lines = "".join(json.dumps(row) + "\n" for row in ROWS)
        running.add("me/sums", {"data/train-00000-of-00001.jsonl": lines.encode()}, kind="datasets", private=True)
        yield running


def manifest(folder: Path, hub: Hub, *, endpoint: str | None = None, **model: Any) -> Path:
    """A run of the private model and data set. `endpoint`: what prepare is told in place of the hub's own address."""
    plain = {key: value for key, value in hub.environment().items() if key != "HF_ENDPOINT"}
    spec = {
        "model": {"huggingFace": "me/model", "revision": "main"} | model,
        "tasks": {
            "environment": "math",
            "dataset": {
                "huggingFace": "me/sums",
                "revision": "main",
                "columns": {"prompt": "question", "answer": "final", "problemId": "id"},
            },
        },
        "steps": 1,
        "recipe": {"promptsPerStep": 4, "groupSize": 4, "optimizerSteps": 1, "maxSequenceLength": 96},
        "sampling": {"maxCompletionTokens": 32, "groupsPerSubmission": 2},
        "prepare": {
            "podTemplate": {
                "env": [
                    {"name": "HF_ENDPOINT", "value": endpoint or hub.url},
                    *({"name": name, "value": value} for name, value in plain.items()),
                    {"name": "SECOND_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}},
                ],
                "envFrom": [{"secretRef": {"name": "hub"}}],
            }
        },
    }
    path = folder / "run.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "shoal.dev/v1alpha1",
                "kind": "TrainingRun",
                "metadata": {"name": "private"},
                "spec": spec,
            }
        )
    )
    return path


def prepared(path: Path, runs: Path) -> tuple[Path, bool]:
    """Run until prepare has ended or failed for the first time; the run's folder, and whether it has done its work."""
    run = LocalRun(path, runs, ["hub=HF_TOKEN"])
    run.start()
    try:
        end = time.monotonic() + PREPARE_SECONDS
        while time.monotonic() < end:
            run.tick()
            if is_true(run.cluster.get("Job", "private-prepare"), "Complete"):
                return run.run_dir, True
            if is_true(run.cluster.get("Job", "private-prepare"), "Failed") or any(pod.restarts for pod in run.pods()):
                return run.run_dir, False
            time.sleep(0.1)
        pytest.fail(f"prepare neither ended nor failed: {run.pods()}")
    finally:
        run.kill()
        run.stop()


def written(folder: Path) -> dict[Path, bytes]:
    """Every file that the run has left, links not followed."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def holders(folder: Path, secret: str) -> set[str]:
    """Files that hold a secret, as it is or in base64, whole or behind anything."""
    raw = secret.encode()
    forms = [raw, *(base64.b64encode(b"x" * shift + raw)[4:-4] for shift in range(3))]
    return {
        str(path.relative_to(folder)) for path, data in written(folder).items() if any(form in data for form in forms)
    }


def test_prepare_reads_private_model_and_data_and_the_token_is_in_no_file(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder, done = prepared(manifest(tmp_path, hub), tmp_path / "runs")
    log = (folder / "logs" / "private-prepare-0" / "prepare.log").read_text()
    assert done, log
    assert {asked.token for asked in hub.requests} == {TOKEN}
    names = {path.name for path in written(folder)}
    assert {"prepared.json", "run.json", "objects.json", "prepare.log", "model.safetensors"} <= names
    assert holders(folder, TOKEN) == {"objects.json"}
    assert stat.S_IMODE((folder / "objects.json").stat().st_mode) == 0o600


def test_a_prepare_that_fails_says_why_without_token_or_password(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst case: the address itself has a login, the hub refuses it, and the library quotes the address."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    endpoint = hub.url.replace("://", f"://me:{PASSWORD}@")
    folder, done = prepared(manifest(tmp_path, hub, endpoint=endpoint), tmp_path / "runs")
    log = (folder / "logs" / "private-prepare-0" / "prepare.log").read_text()
    assert not done
    assert "spec.model: there is no model me/model on the hub" in log
    assert PASSWORD not in log
    assert holders(folder / "logs", PASSWORD) == set()
    assert holders(folder, TOKEN) == {"objects.json"}
