"""Runs of mode SFT, and runs that build on others: what is made, what is waited for, and what is said meanwhile."""

from pathlib import Path
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import holds, neighbour, prepared, put, replicas, running, said, status

from samples import METRICS
from shoal.contracts.protocol import RunProgress
from shoal.contracts.run import RunConfig
from shoal_operator.api.rules import AZURE_EXAMPLE, GCS_EXAMPLE
from shoal_operator.local.neighbours import Neighbours
from shoal_operator.local.objects import Objects
from shoal_operator.reconcile import reconcile

SFT = {"dataset": {"path": "/data/traces"}, "epochs": 3}


def sft(cluster: MemoryCluster, **changes: Any) -> None:
    put(cluster, **({"mode": "SFT", "sft": SFT} | changes))


def look(cluster: MemoryCluster) -> None:
    """Reconcile the run `sums` alone: the others are as the test says."""
    reconcile(cluster, "TrainingRun", "sums")


def test_a_run_of_mode_sft_has_a_trainer_and_a_control_plane_and_nothing_else(cluster: MemoryCluster) -> None:
    sft(cluster)
    prepared(cluster)
    assert replicas(cluster) == {"sums-redis": 1, "sums-discovery": 1, "sums-orchestrator": 1}
    assert cluster.names("Job") == ["sums-prepare", "sums-trainer-1"]
    for kind in ("RelayServer", "Validator", "InferencePool"):
        assert cluster.names(kind) == []


def test_its_configuration_says_what_is_learnt_and_invites_nobody(cluster: MemoryCluster) -> None:
    sft(cluster)
    prepared(cluster)
    found = cluster.get("ConfigMap", "sums-config")
    assert found is not None
    config = RunConfig.from_json(found["data"]["run.json"])
    assert (config.mode, config.pools) == ("SFT", [])
    assert config.sft is not None
    assert (config.sft.epochs, config.sft.dataset.path) == (3, "/data/traces")


def test_it_is_ready_with_the_parts_that_it_has_and_complete_with_its_last_version(cluster: MemoryCluster) -> None:
    sft(cluster)
    running(cluster)
    assert {"Ready", "TrainerReady", "RelayServerReady"} <= holds(cluster)
    assert said(cluster, "RelayServerReady")["reason"] == "NoParts"
    said_by_orchestrator = "version 3 to be made by the trainer: mode SFT samples nothing"
    cluster.progress = RunProgress(
        run="sums", steps_total=4, open_step=None, latest_version=2, waiting_for=said_by_orchestrator
    )
    cluster.settle()
    assert said(cluster, "Progressing")["message"] == said_by_orchestrator
    figures = {"epoch": 1.5, "loss": 0.5, "held_out_loss": 0.75, "gradient_norm": 2.0}
    step = METRICS.model_copy(update={"step": 1, "policy_version": 2, **figures})
    cluster.progress = cluster.progress.model_copy(update={"last_step": step})
    cluster.settle()
    assert {name: status(cluster)[name] for name in ("epoch", "loss", "heldOutLoss", "gradientNorm")} == {
        "epoch": 1.5, "loss": 0.5, "heldOutLoss": 0.75, "gradientNorm": 2.0,
    }  # fmt: skip
    assert not {"reward", "clipRatio", "policyLag"} & set(status(cluster))
    cluster.progress = RunProgress(run="sums", steps_total=4, open_step=None, latest_version=4, complete=True)
    cluster.settle()
    assert status(cluster)["phase"] == "Complete"


# Runs that build on others.


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (None, "which does not exist: create it, or correct the name"),
        ({}, "which is not complete yet"),
        ({"conditions": ["Failed"]}, "which has failed: its conditions say why"),
        ({"suspend": True}, "which is suspended: set its spec.suspend to false"),
        ({"conditions": ["Complete"], "steps": 8}, "which is not complete yet"),
        ({"conditions": ["Complete"], "storage": {"prefix": "else"}}, "whose spec.storage differs"),
        ({"conditions": ["Complete"], "storage": {"azure": AZURE_EXAMPLE}}, "the same prefix and s3, azure or gcs"),
        ({"conditions": ["Complete"], "storage": {"gcs": GCS_EXAMPLE}}, "the same prefix and s3, azure or gcs"),
        (
            {"conditions": ["Complete"], "mode": "Generate", "steps": None},
            "whose mode is Generate, which trains no model; allowed: Train, SFT",
        ),
    ],
    ids=["absent", "running", "failed", "suspended", "more steps", "other storage", "Azure", "Google", "other mode"],
)
def test_a_run_waits_for_the_run_whose_model_it_begins_with(
    cluster: MemoryCluster, other: dict[str, Any] | None, text: str
) -> None:
    if other is not None:
        neighbour(cluster, "start", *other.pop("conditions", []), **other)
    put(cluster, model={"run": "start"})
    look(cluster)
    assert cluster.names("Job") == []
    message = said(cluster, "Ready")["message"]
    assert message.startswith("waits for TrainingRun start (spec.model.run), which") or "whose" in message
    assert text in message
    assert said(cluster, "Progressing")["reason"] == "Waiting"


def test_it_continues_when_that_run_is_complete_and_reads_its_store(cluster: MemoryCluster) -> None:
    neighbour(cluster, "start")
    put(cluster, model={"run": "start"})
    look(cluster)
    neighbour(cluster, "start", "Complete")
    look(cluster)
    job = cluster.get("Job", "sums-prepare")
    assert job is not None
    pod = job["spec"]["template"]["spec"]
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert mounts["/shoal/others/start"]["readOnly"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    claim = volumes[mounts["/shoal/others/start"]["name"]]["persistentVolumeClaim"]
    assert claim == {"claimName": "start-store", "readOnly": True}


def test_a_data_set_is_waited_for_too_and_must_be_of_a_run_that_writes_one(cluster: MemoryCluster) -> None:
    sft(cluster, sft={"dataset": {"run": "traces"}})
    look(cluster)
    assert said(cluster, "Ready")["message"] == (
        "waits for TrainingRun traces (spec.sft.dataset.run), which does not exist: create it, or correct the name"
    )
    neighbour(cluster, "traces", "Complete")
    look(cluster)
    assert "whose mode is Train, which writes no data set; allowed: Generate" in said(cluster, "Ready")["message"]
    neighbour(cluster, "traces", "Complete", mode="Generate", steps=None)
    look(cluster)
    assert cluster.names("Job") == ["sums-prepare"]


def test_a_run_that_names_itself_is_reported(cluster: MemoryCluster) -> None:
    put(cluster, model={"run": "sums"})
    look(cluster)
    assert "which is this run itself: name another one" in said(cluster, "Ready")["message"]


def test_runs_that_wait_for_each_other_are_reported(cluster: MemoryCluster) -> None:
    """Also over another run between them, and not where the circle is among others."""
    neighbour(cluster, "start", model={"run": "middle"})
    neighbour(cluster, "middle", model={"run": "sums"})
    put(cluster, model={"run": "start"})
    look(cluster)
    assert said(cluster, "Ready")["message"] == (
        "waits for TrainingRun start (spec.model.run), which itself waits for this run to be complete: neither can begin,"
        " start one of them from another model or data set"
    )
    neighbour(cluster, "middle", model={"run": "start"})
    look(cluster)
    assert "which is not complete yet" in said(cluster, "Ready")["message"]


@pytest.mark.parametrize("mode", ["Train", "SFT"])
def test_prepare_may_reach_a_hub_for_the_tasks_alone(cluster: MemoryCluster, mode: str) -> None:
    """The model comes from elsewhere; without a hub there is no such way out."""
    https = {"ports": [{"protocol": "TCP", "port": 443}]}

    def ways_out() -> list[Any]:
        look(cluster)
        policy = cluster.get("NetworkPolicy", "sums-prepare")
        assert policy is not None
        return policy["spec"].get("egress", [])

    source = {"huggingFace": "owner/tasks", "revision": "main"}
    more = {"sft": SFT} if mode == "SFT" else {}
    put(cluster, mode=mode, **more)
    assert https not in ways_out()
    put(cluster, mode=mode, **more, tasks={"environment": "arithmetic", "dataset": source})
    assert https in ways_out()


def test_runs_in_one_bucket_mount_nothing(cluster: MemoryCluster) -> None:
    s3 = {"endpoint": "http://minio:9000", "bucket": "runs", "credentialsSecret": "keys"}
    cluster.objects.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": {"accessKey": "", "secretKey": ""}}
    )
    neighbour(cluster, "start", "Complete", storage={"s3": s3 | {"region": "eu"}})
    put(cluster, model={"run": "start"}, storage={"s3": s3})
    look(cluster)
    job = cluster.get("Job", "sums-prepare")
    assert job is not None
    assert not any(
        "others/" in str(mount) for mount in job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    )


def test_on_one_machine_the_run_in_the_next_folder_is_found_and_its_store_linked(tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    objects = Objects(tmp_path / "start" / "objects.json")
    objects.apply({"kind": "TrainingRun", "metadata": {"name": "start"}, "spec": {}})
    objects.apply({"kind": "PersistentVolumeClaim", "metadata": {"name": "start-store"}, "spec": {}})
    objects.apply({"kind": "Secret", "metadata": {"name": "start-run-key"}})
    (tmp_path / "start" / "volumes" / "start-store").mkdir(parents=True)
    (tmp_path / "sums").mkdir()
    found = Neighbours(tmp_path / "sums")
    assert (found.get("TrainingRun", "start") or {})["metadata"]["name"] == "start"
    assert found.get("PersistentVolumeClaim", "start-store") is not None
    assert (tmp_path / "sums" / "volumes" / "start-store").resolve() == tmp_path / "start" / "volumes" / "start-store"
    assert found.get("Secret", "start-run-key") is None
    assert found.get("TrainingRun", "nobody") is None
    assert found.get("PersistentVolumeClaim", "start-outbox") is None
    assert found.get("PersistentVolumeClaim", "nobody-store") is None
