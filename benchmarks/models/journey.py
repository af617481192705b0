"""Somebody's own model and data, from the first command to a model on a hub: `python -m benchmarks.models.journey [--steps N] [FOLDER]`.

The model is SmolLM2-135M-Instruct (`tools/fetch_smollm2.py`), the data a file of chats: which of three numbers is the last. The base model answers
nearly always in a box, as its example does, and is right about every second time at temperature 1. Runs `shoal init`, sets what is particular,
`shoal up`, `shoal push` to a stand-in for a hub, downloads what lies there, and scores base and pushed model on held-out rows. Writes
`reward_rise_chat` and what belongs to it into `benchmarks/results/models.json`, and the curves into `journey_chat.json` beside it.
A step trains on some 6,100 tokens and takes two minutes of a quiet core. FOLDER keeps the run, so that the same command resumes it.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import snapshot_download

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]  # the stand-in for a hub, and what makes the model

from fetch_smollm2 import fetched

from hub import Hub
from shoal.environments.math import INSTRUCTION

RESULTS = ROOT / "benchmarks" / "results"
TRAIN_ROWS, HELD_ROWS = 1000, 256
STEPS = 5
EVALUATED = 5
SAMPLES = 2
RUN = "last"
REPOSITORY = "me/last"
EXAMPLE = (12, 57, 33)
TOKEN = "hf_of-the-stand-in"  # noqa: S105  the stand-in knows no other
HOURS = 6.0
CURVES = (
    "task_reward",
    "entropy",
    "mismatch_kl",
    "completion_length_mean",
    "gradient_norm",
    "clip_high",
    "started_unix",
    "finished_unix",
)
SETTINGS: dict[str, Any] = {
    "recipe": {
        "promptsPerStep": 8, "groupSize": 8, "optimizerSteps": 2, "learningRate": 3e-5, "warmupSteps": 2, "klCoefficient": 0.0,
        "maxSequenceLength": 104, "packLength": 2048,
    },
    "sampling": {"maxCompletionTokens": 12, "groupsPerSubmission": 4},
    "inferencePools": [{"name": "pool", "replicas": 1, "weightsSize": "4Gi"}],
}  # fmt: skip
"""What is set beside the manifest of `shoal init`: a step of 64 answers of some 8 tokens, to prompts of 87."""


def question(numbers: Sequence[int]) -> str:
    return f"Last: {', '.join(map(str, numbers))}?"


def rows(count: int, chance: random.Random, seen: set[tuple[int, ...]]) -> list[dict[str, Any]]:
    """Chats with one example; no two rows of the whole data set ask the same."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        numbers = chance.sample(range(10, 100), 3)
        if tuple(numbers) in seen:
            continue
        seen.add(tuple(numbers))
        prompt = [
            {"role": "system", "content": "Answer in a box."},
            # The environment ends the last message with its instruction; the example is asked in the same words.
            {"role": "user", "content": f"{question(EXAMPLE)}\n{INSTRUCTION}"},
            {"role": "assistant", "content": f"\\boxed{{{EXAMPLE[-1]}}}"},
            {"role": "user", "content": question(numbers)},
        ]
        found.append({"prompt": prompt, "answer": str(numbers[-1])})
    return found


def write_rows(path: Path, found: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


def shoal(*arguments: object, folder: Path, **variables: str) -> None:
    """Run a verb, and show what it says. Raises CalledProcessError."""
    command = [sys.executable, "-m", "shoal.cli.main", *map(str, arguments)]
    print("$ shoal", *arguments, flush=True)
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | variables
    subprocess.run(command, check=True, cwd=folder, env=environment, timeout=HOURS * 3600)


def manifest(model: Path, folder: Path, settings: Mapping[str, Any]) -> Path:
    """That of `shoal init` for the rows in `folder`, with `settings` and a benchmark of the held-out rows."""
    path = folder / "run.yaml"
    path.unlink(missing_ok=True)  # of an earlier start: `shoal init` writes over nothing
    shoal("init", "--model", model, "--dataset", folder / "train.jsonl", "--name", RUN, "-o", path, folder=folder)
    made = yaml.safe_load(path.read_text())
    spec = made["spec"]
    for name, value in settings.items():
        spec[name] = spec.get(name, {}) | value if isinstance(value, dict) else value
    held = {"environment": "math", "dataset": {"path": str(folder / "held.jsonl")}}
    spec["evaluation"] = {
        "everyVersions": EVALUATED,
        "benchmarks": [{"name": "held-out", "tasks": held, "samples": SAMPLES, "temperature": 1.0}],
    }
    path.write_text(yaml.safe_dump(made, sort_keys=False))
    return path


def scored(model: Path, name: str, path: Path, folder: Path) -> dict[str, Any]:
    """The scores of a checkpoint on the manifest's benchmark."""
    output = folder / f"{name}.json"
    shoal("eval", model, "-f", path, "--json", output, folder=folder)
    found: dict[str, Any] = json.loads(output.read_text())["evaluations"][0]["scores"]
    unanswered = found["unanswered_share"]
    return {
        **found["avg_at_k"],
        "right_of_answered": round(found["avg_at_k"]["value"] / (1 - unanswered), 4) if unanswered < 1 else 0.0,
        "unanswered": unanswered,
        "cut": found["lengths"]["cut_share"],
    }


def travel(folder: Path, path: Path) -> Path:
    """Train by the manifest, push to the stand-in, and download what lies there: the folder of the trained model."""
    shoal("env", "preview", "-f", path, folder=folder)
    shoal("up", "-f", path, "--no-tty", folder=folder)
    with Hub(folder / "hub", token=TOKEN) as hub:
        variables = hub.environment(TOKEN)
        shoal("push", RUN, "--to", REPOSITORY, "--licence", "apache-2.0", folder=folder, **variables)
        return Path(snapshot_download(REPOSITORY, endpoint=hub.url, token=TOKEN, local_dir=folder / "pushed"))


def measure(folder: Path, steps: int) -> dict[str, Any]:
    """The whole journey with the real model; the figures."""
    began = time.monotonic()
    chance = random.Random(5)
    seen: set[tuple[int, ...]] = {EXAMPLE}
    write_rows(folder / "train.jsonl", rows(TRAIN_ROWS, chance, seen))
    write_rows(folder / "held.jsonl", rows(HELD_ROWS, chance, seen))
    model = fetched()
    path = manifest(model, folder, SETTINGS | {"steps": steps})
    pushed = travel(folder, path)
    before, after = scored(model, "base", path, folder), scored(pushed, "pushed", path, folder)
    report = json.loads((folder / "runs" / RUN / "report.json").read_text())
    curves = {name: [step.get(name) for step in report["step_metrics"]] for name in CURVES}
    write_json(RESULTS / "journey_chat.json", {"rows": HELD_ROWS, "before": before, "after": after, "steps": curves})
    return {
        "reward_rise_chat": round(after["value"] - before["value"], 4),
        "reward_chat": {"before": before, "after": after, "rows": HELD_ROWS, "samples": SAMPLES, "steps": steps},
        "journey_chat_minutes": round((time.monotonic() - began) / 60, 1),
    }


def write_json(path: Path, value: object) -> None:
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="keeps the run; absent: a temporary folder")
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-journey-") as scratch:
        folder = (given.folder or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        figures = measure(folder, given.steps)
    path = RESULTS / "models.json"
    write_json(path, json.loads(path.read_text()) | figures)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
