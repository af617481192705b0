"""A run made unable to learn, for real: answers are cut at two tokens, and `shoal up` and the status say so within minutes of the first rollouts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from local_system import EXAMPLE, write_manifest

pytestmark = [pytest.mark.system, pytest.mark.soak, pytest.mark.timeout(900)]

TOLD_SECONDS = 180.0
"""From the moment in which the worker is ready; 5 s were seen on two busy cores."""


def status_of(run_dir: Path) -> dict[str, Any]:
    objects = json.loads((run_dir / "objects.json").read_text())["objects"]
    status: dict[str, Any] = next(each["status"] for each in objects if each["kind"] == "TrainingRun")
    return status


def test_answers_cut_at_two_tokens_are_named_as_the_cause(tmp_path: Path) -> None:
    manifest = write_manifest(
        EXAMPLE,
        tmp_path / "run.yaml",
        name="cut",
        model={"generated": {"warmStartPassRate": 0.05, "layers": 1}},
        tasks={"count": 256},
        steps=3,
        recipe={"promptsPerStep": 8, "groupSize": 4, "optimizerSteps": 1, "samplingCap": 8},
        sampling={"maxCompletionTokens": 2, "groupsPerSubmission": 8},
        lengthReward={"targets": [2]},
        inferencePools=[{"name": "pool", "replicas": 1, "weightsSize": "1Gi"}],
    )
    command = [sys.executable, "-m", "shoal.cli.main", "up", "-f", str(manifest), "--no-tty"]
    up = subprocess.Popen(
        [*command, "--runs-dir", str(tmp_path / "runs")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    said: list[str] = []
    ready = 0.0
    try:
        assert up.stdout is not None
        for line in up.stdout:
            said.append(line.rstrip())
            if "/worker: ready" in line:
                ready = time.monotonic()
            if "the run cannot learn" in line:
                break
        assert ready, said[-20:]
        assert time.monotonic() - ready < TOLD_SECONDS
        assert "the run cannot learn (AnswersCutOff): of the last" in said[-1]
        assert "raise sampling.maxCompletionTokens" in said[-1]
        assert ": 2 tokens, cut off, task reward 0.000" in next(up.stdout)
        run_dir, until = tmp_path / "runs" / "cut", time.monotonic() + 30
        while not status_of(run_dir).get("answers") and time.monotonic() < until:
            time.sleep(0.5)
        status = status_of(run_dir)
        [condition] = [each for each in status["conditions"] if each["type"] == "Learning"]
        assert (condition["status"], condition["reason"]) == ("False", "AnswersCutOff")
        assert status["answers"]["cut"] == 1.0
        assert len(status["answers"]["samples"]) == 3
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            up.kill()
