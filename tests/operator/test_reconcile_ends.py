"""How a TrainingRun ends, is suspended and goes on; what it waits for; pools that an admin adds."""

from pathlib import Path
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import MANIFEST, at_version, holds, put, replicas, running, said, status

import samples
from shoal.contracts.run import NodeConfig
from shoal_operator.reconcile import reconcile
from shoal_operator.reconcile.training_run import PRUNED

# The end.


def test_a_run_whose_last_version_is_announced_is_complete_and_frees_its_workers(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    assert "Complete" in holds(cluster)
    assert not {"Ready", "Failed", "Progressing"} & holds(cluster)
    assert {name for name, count in replicas(cluster).items() if count} == {
        "sums-redis", "sums-discovery", "sums-orchestrator",
    }  # fmt: skip
    assert "sums-trainer-1" in cluster.names("Job"), "the last attempt ends by itself"


def test_a_complete_run_stays_complete_when_the_orchestrator_goes(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    cluster.progress = None
    cluster.settle()
    assert "Complete" in holds(cluster)


def test_more_steps_continue_a_complete_run(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    cluster.job_ends("sums-trainer-1", "Complete")
    put(cluster, steps=9)
    cluster.settle()
    cluster.pods_start()
    cluster.settle()
    assert "Complete" not in holds(cluster)
    assert "sums-trainer-2" in cluster.names("Job")
    assert replicas(cluster)["sums-pool"] == 2


# The trainer's attempts.


def test_a_changed_recipe_starts_a_new_attempt_once_the_old_one_is_gone(cluster: MemoryCluster) -> None:
    running(cluster, version=1)
    put(cluster, recipe={**MANIFEST["spec"]["recipe"], "learningRate": 1e-6})
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare", "sums-trainer-1"], "two trainers at once would both write"
    cluster.pods_end()
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare", "sums-trainer-2"]
    assert status(cluster)["trainer"] == {"attempt": 2, "startedAtVersion": 1, "failures": 0, "lastFailed": 0}


def test_an_attempt_that_made_progress_and_died_is_followed_by_another(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 2)
    cluster.settle()
    cluster.job_ends("sums-trainer-1", "Failed", "out of memory")
    cluster.settle()
    cluster.pods_end()
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare", "sums-trainer-2"]
    assert "Failed" not in holds(cluster)


def test_an_attempt_without_progress_fails_the_run_and_says_why(cluster: MemoryCluster) -> None:
    running(cluster)
    cluster.job_ends("sums-trainer-1", "Failed", "loss is not finite")
    cluster.settle()
    assert "Failed" in holds(cluster)
    assert "Job sums-trainer-1: loss is not finite" in said(cluster, "Failed")["message"]
    assert replicas(cluster)["sums-pool"] == 0


def test_deleting_the_failed_job_retries_it(cluster: MemoryCluster) -> None:
    running(cluster)
    cluster.job_ends("sums-trainer-1", "Failed")
    cluster.settle()
    cluster.delete("Job", "sums-trainer-1")
    cluster.pods_end()
    cluster.settle()
    assert "sums-trainer-2" in cluster.names("Job")
    assert "Failed" not in holds(cluster)


# Suspension.


def test_a_suspended_run_has_no_pods_and_keeps_its_volumes_and_keys(cluster: MemoryCluster) -> None:
    running(cluster, version=2)
    volumes, keys = cluster.names("PersistentVolumeClaim"), cluster.names("Secret")
    put(cluster, suspend=True)
    cluster.settle()
    cluster.pods_start()
    cluster.settle()
    assert set(replicas(cluster).values()) == {0}
    assert cluster.names("Job") == ["sums-prepare"]
    assert (cluster.names("PersistentVolumeClaim"), cluster.names("Secret")) == (volumes, keys)
    assert {"Suspended", "Prepared"} <= holds(cluster)
    assert "Ready" not in holds(cluster)


def test_resuming_starts_a_new_attempt_and_does_not_prepare_again(cluster: MemoryCluster) -> None:
    running(cluster, version=2)
    put(cluster, suspend=True)
    cluster.settle()
    cluster.pods_start()
    cluster.writes.clear()
    put(cluster)
    cluster.settle()
    cluster.pods_start()
    cluster.settle()
    assert "sums-trainer-2" in cluster.names("Job")
    assert "Job/sums-prepare" not in cluster.writes
    assert "Ready" in holds(cluster)


def test_suspending_before_prepare_has_ended_stops_it(cluster: MemoryCluster) -> None:
    cluster.settle()
    put(cluster, suspend=True)
    cluster.settle()
    cluster.pods_end()
    cluster.settle()
    assert cluster.names("Job") == []
    assert status(cluster)["phase"] == "Suspended"


@pytest.mark.parametrize("suspend", [True, False])
def test_what_an_operator_made_that_stopped_before_it_wrote_prepared_goes_when_prepare_is_gone(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, suspend: bool
) -> None:
    """Seen under chaos: prepare succeeded in the moment in which a suspension deleted its Job, and the operator was killed on the way."""
    cluster.settle()
    before = {kind: cluster.names(kind) for kind in PRUNED}
    cluster.job_ends("sums-prepare", "Complete")
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "apply_status", lambda *_: stop())
        with pytest.raises(Killed):
            reconcile(cluster, "TrainingRun", "sums")
    assert cluster.names("Service")
    cluster.objects.remove("Job", "sums-prepare")
    put(cluster, suspend=suspend)
    cluster.settle()
    cluster.pods_end()
    cluster.settle()
    assert {kind: cluster.names(kind) for kind in PRUNED} == before
    assert "Prepared" not in holds(cluster)


class Killed(BaseException):
    """An operator that is no more: nothing catches it."""


def stop() -> None:
    raise Killed


# What else a run depends on.


def test_a_run_waits_for_its_store_credentials_and_says_so(cluster: MemoryCluster) -> None:
    s3 = {"endpoint": "http://minio:9000", "bucket": "rollouts", "credentialsSecret": "minio"}
    cluster.objects.remove("TrainingRun", "sums")
    put(cluster, storage={"s3": s3})
    cluster.settle()
    assert cluster.names("Job") == []
    assert said(cluster, "Progressing")["message"] == (
        "waits for Secret minio with accessKey and secretKey (spec.storage.s3.credentialsSecret)"
    )
    given = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "minio"}, "data": {"accessKey": "YQ=="}}
    cluster.objects.apply(given)
    cluster.settle()
    assert said(cluster, "Progressing")["message"].startswith("waits for secretKey in Secret minio")
    cluster.objects.apply(given | {"data": {"accessKey": "YQ==", "secretKey": "Yg=="}})
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare"]


def test_a_deleted_or_terminating_run_is_left_alone(cluster: MemoryCluster) -> None:
    cluster.objects.mark_deleted("TrainingRun", "sums", "now")
    assert reconcile(cluster, "TrainingRun", "sums") is None
    assert reconcile(cluster, "TrainingRun", "never-was") is None
    assert cluster.writes == []


# Pools that an admin adds.


def pool(cluster: MemoryCluster, **spec: Any) -> None:
    made = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "sums-fast"},
        "spec": {"run": "sums", "pool": "fast", **spec},
    }
    cluster.objects.apply(made)


def pool_ready(cluster: MemoryCluster) -> dict[str, Any]:
    found = cluster.get("InferencePool", "sums-fast")
    assert found is not None
    return next(each for each in found["status"]["conditions"] if each["type"] == "Ready")


def test_a_pool_beside_the_runs_own_joins_under_its_own_name(cluster: MemoryCluster) -> None:
    pool(cluster, replicas=5)
    running(cluster)
    found = cluster.get("ConfigMap", "sums-fast-node")
    assert found is not None
    node = NodeConfig.from_json(found["data"]["node.json"])
    assert (node.run, node.pool) == ("sums", "fast")
    assert replicas(cluster)["sums-fast"] == 5
    live = cluster.get("InferencePool", "sums-fast")
    assert live is not None
    assert (live["status"]["replicas"], live["status"]["readyReplicas"]) == (5, 5)
    assert live["status"]["selector"] == "shoal.dev/component=pool,shoal.dev/run=sums,shoal.dev/set=sums-fast"


def test_a_pool_waits_for_the_config_map_that_says_how_to_join(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    pool(cluster)
    cluster.settle()
    assert pool_ready(cluster)["message"] == (
        "ConfigMap sums-join: does not exist; the TrainingRun sums makes it, or copy it from the run's cluster"
    )
    assert replicas(cluster) == {}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "has no entry node.json"),
        ({"node.json": "{}"}, "node.json is wrong"),
        ({"node.json": "forged"}, "does not fit the document"),
        ({"node.json": "other"}, "is for run arithmetic, but the pool's spec.run is sums"),
    ],
)
def test_a_wrong_join_document_is_refused_in_words(tmp_path: Path, data: dict[str, str], problem: str) -> None:
    cluster = MemoryCluster(tmp_path)
    other = NodeConfig(
        run="arithmetic",
        pool="pool",
        discovery="http://127.0.0.1:8081",
        roster=samples.ROSTER,
        run_key=samples.RUN_KEY.public,
    )
    forged = other.model_copy(update={"roster": samples.ROSTER.model_copy(update={"signature": "0" * 128})})
    texts = {"other": other.to_json().decode(), "forged": forged.to_json().decode()}
    data = {key: texts.get(value, value) for key, value in data.items()}
    cluster.objects.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sums-join"}, "data": data})
    pool(cluster)
    cluster.settle()
    assert problem in pool_ready(cluster)["message"]
    assert replicas(cluster) == {}
