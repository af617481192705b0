"""What the cluster refuses is said in the status, and does not keep the rest of a run from being made."""

from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import at_version, prepared, put, running, said, status

from shoal_operator.children.site import Site, at_site
from shoal_operator.engine.api_server import ApiError
from shoal_operator.engine.cluster import ClusterError, Object
from shoal_operator.reconcile import reconcile

QUOTA = "patch StatefulSet default/sums-redis: 403 Forbidden: exceeded quota: pods"


def ready_of(cluster: MemoryCluster, kind: str, name: str) -> dict[str, Any]:
    found = cluster.get(kind, name)
    assert found is not None
    return next(each for each in found["status"]["conditions"] if each["type"] == "Ready")


def fails(cluster: MemoryCluster, kind: str = "TrainingRun", name: str = "sums") -> str:
    with pytest.raises(ClusterError) as caught:
        reconcile(cluster, kind, name)
    return str(caught.value)


def test_a_refused_child_is_in_the_status_and_the_others_are_made(cluster: MemoryCluster) -> None:
    cluster.settle()
    cluster.job_ends("sums-prepare", "Complete")
    cluster.refuses["StatefulSet/sums-redis"] = ApiError(QUOTA, 403, "Forbidden")
    assert fails(cluster) == QUOTA
    assert said(cluster, "Ready")["reason"] == "ReconcileFailed"
    assert said(cluster, "Ready")["message"] == QUOTA
    assert said(cluster, "Prepared"), "the rest of the status stands"
    assert {"sums-discovery", "sums-orchestrator"} <= set(cluster.names("Deployment"))
    assert "sums-trainer-1" in cluster.names("Job")
    before = cluster.status_writes
    fails(cluster)
    assert cluster.status_writes == before
    cluster.refuses.clear()
    running(cluster)
    assert said(cluster, "Ready")["status"] == "True"


def test_a_pool_reports_refused_children_too(cluster: MemoryCluster) -> None:
    prepared(cluster)
    cluster.objects.remove("StatefulSet", "sums-pool")
    cluster.refuses["StatefulSet/sums-pool"] = ApiError("no GPUs for this team", 403)
    fails(cluster, "InferencePool", "sums-pool")
    assert ready_of(cluster, "InferencePool", "sums-pool")["message"] == "no GPUs for this team"


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_an_api_server_error_changes_no_status_of_a_run(cluster: MemoryCluster, status: int) -> None:
    cluster.settle()
    cluster.job_ends("sums-prepare", "Complete")
    cluster.refuses["StatefulSet/sums-redis"] = ApiError("away", status)
    before = cluster.status_writes
    fails(cluster)
    assert cluster.status_writes == before
    assert cluster.names("Deployment") == [], "and the other children would only wait for it too"


def test_a_terminating_namespace_changes_no_status_either(cluster: MemoryCluster) -> None:
    cluster.settle()
    cluster.objects.remove("ConfigMap", "sums-join")
    text = "403 Forbidden: unable to create new content in namespace a because it is being terminated"
    cluster.refuses["ConfigMap/sums-join"] = ApiError(text, 403)
    before = cluster.status_writes
    fails(cluster)
    assert cluster.status_writes == before


def test_volumes_that_cannot_grow_do_not_stop_the_run(cluster: MemoryCluster) -> None:
    running(cluster)
    refusal = ApiError("403 Forbidden: only dynamically provisioned pvc can be resized", 403)
    cluster.refuses = {f"PersistentVolumeClaim/sums-{claim}": refusal for claim in ("outbox", "www")}
    put(cluster, trainer={"scratchSize": "40Gi"})
    at_version(cluster, 2)
    cluster.writes.clear()
    reconcile(cluster, "TrainingRun", "sums")
    assert status(cluster)["policyVersion"] == 2
    assert said(cluster, "VolumesReady")["reason"] == "ClaimsNotGrown"
    assert said(cluster, "VolumesReady")["message"].startswith(
        "claim sums-outbox cannot grow: 403 Forbidden: only dynamically"
    )


def test_an_object_of_newer_crds_is_told_how_to_fix_it(cluster: MemoryCluster) -> None:
    cluster.settle()
    live = cluster.get("TrainingRun", "sums")
    assert live is not None
    cluster.objects.apply({**live, "spec": {**live["spec"], "warpFactor": 9}})
    assert "TrainingRun sums: spec.warpFactor: Extra inputs are not permitted; this operator cannot read it" in fails(
        cluster
    )
    assert "spec.warpFactor" in said(cluster, "Ready")["message"]


def test_an_error_that_nobody_foresaw_is_told_without_its_text(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(cluster)
    with monkeypatch.context() as patch:

        def odd(child: Object) -> Object:
            raise KeyError("what-was-read")

        patch.setattr(cluster, "at_site", odd)
        with pytest.raises(KeyError):
            reconcile(cluster, "TrainingRun", "sums")
    found = said(cluster, "Ready")
    assert (found["status"], found["reason"]) == ("False", "ReconcileFailed")
    assert found["message"] == "unexpected KeyError: the operator's log says where"
    cluster.settle()
    assert said(cluster, "Ready")["status"] == "True"


def test_a_trainer_that_its_cluster_no_longer_allows_stays_until_it_is_suspended(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = {"podTemplate": {"hostNetwork": True}}
    put(cluster, trainer=trainer)
    running(cluster)
    monkeypatch.setattr(cluster, "at_site", lambda child: at_site(child, Site()))
    assert "podTemplate.hostNetwork is not allowed" in fails(cluster)
    assert (said(cluster, "Ready")["reason"], cluster.objects.deleting()) == ("NotAllowedHere", [])
    put(cluster, trainer=trainer, suspend=True)
    cluster.settle()
    assert [each["metadata"]["name"] for each in cluster.objects.deleting()] == ["sums-trainer-1"]
