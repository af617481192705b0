"""Data of the admin's own on a volume: prepare mounts the claim that `spec.dataClaim` names, and reads from it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.release import Release
from e2e.space import Object, Space
from e2e.story import PREPARE_SECONDS, Story

CLAIM, FILE = "sums-of-ours", "sums.jsonl"
FOLDER = "/shoal/data"
"""Where prepare finds the claim."""
WRITE = "import pathlib, sys; print(pathlib.Path(sys.argv[1]).write_text(sys.stdin.read()))"


def put_on_a_volume(space: Space) -> None:
    """A claim with a data set, written by a pod that is gone before the run begins."""
    space.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
        },
        space.probe_pod(
            "writer",
            volumes=[{"name": "ours", "persistentVolumeClaim": {"claimName": CLAIM}}],
            mounts=[{"name": "ours", "mountPath": "/ours"}],
        ),
    )
    space.wait_ready("writer")
    rows = [{"problem_id": f"{a}+{a}", "prompt": f"{a}+{a}=", "completion": str(a + a)} for a in range(10, 90)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    written = space.kubectl("exec", "-i", "writer", "--", "python", "-c", WRITE, f"/ours/{FILE}", text=text)
    assert int(written) == len(text)
    space.kubectl("delete", "pod", "writer")


def run(space: Space, name: str, path: str) -> Object:
    """A run of mode SFT on a file of the claim."""
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": name},
        "spec": {
            "mode": "SFT",
            "model": {"generated": {"name": "arithmetic", "warmStartPassRate": 0.05}},
            "tasks": {"environment": "arithmetic", "count": 64},
            "dataClaim": CLAIM,
            "steps": 1,
            "images": {role: space.image(role) for role in ("protocol", "redis", "relay", "trainer")},
            "sft": {"dataset": {"path": path}, "epochs": 1, "batchRows": 16, "maxSequenceLength": 32, "packLength": 256},
            "trainer": {"resources": {"requests": {"cpu": "100m", "memory": "512Mi"}}},
        },
    }  # fmt: skip


def test_prepare_reads_a_data_set_from_the_claim_and_names_a_file_that_is_not_there(
    space: Space, tmp_path: Path, need_images: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    need_images("operator", "protocol", "redis", "relay", "trainer")
    release = Release(space, tmp_path)
    ours, gone = (Story(space, release, run=name) for name in ("ours", "gone"))
    release.install("--set", "operator.replicas=1")
    put_on_a_volume(space)
    space.apply(run(space, ours.run, f"{FOLDER}/{FILE}"), run(space, gone.run, f"{FOLDER}/gone.jsonl"))
    ours.wait("the file to be read", lambda: ours.holds("Prepared"), PREPARE_SECONDS)
    problem = gone.wait("the other file to be missed", lambda: missed(gone), PREPARE_SECONDS)
    assert f"{FOLDER}/gone.jsonl" in problem
    prepare = space.kube.get("Job", f"{ours.run}-prepare", space.name) or {}
    (container,) = prepare["spec"]["template"]["spec"]["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == FOLDER]
    assert mount["readOnly"] is True
    if not request.config.getoption("--keep-cluster"):
        release.uninstall()


def missed(story: Story) -> str | None:
    """What is said of a prepare that cannot; None while there is nothing of the kind."""
    found = story.condition("Prepared")
    return str(found["message"]) if found["reason"] in ("CrashLoop", "JobFailed") else None
