"""Whose a child is: an object that something else controls is never taken over, whatever it is called."""

from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import put, running, said, status

from shoal_operator.engine.cluster import ClusterError
from shoal_operator.reconcile import reconcile


def made_again(cluster: MemoryCluster, **changes: Any) -> None:
    """The run is deleted and made again under its name at once; its children are not collected yet."""
    cluster.objects.remove("TrainingRun", "sums")
    put(cluster, **changes)
    cluster.progress = None


def collected(cluster: MemoryCluster, *kinds: str) -> None:
    """The garbage collector has removed children of these kinds whose owner is gone, and what those own."""
    for kind in kinds:
        for found in cluster.objects.find(kind):
            owner = found["metadata"]["ownerReferences"][0]
            live = cluster.get(owner["kind"], owner["name"])
            if live is None or live["metadata"]["uid"] != owner["uid"]:
                cluster.objects.remove(kind, found["metadata"]["name"])


EVERY_KIND = (
    "InferencePool", "RelayServer", "Validator", "Secret", "ConfigMap", "PersistentVolumeClaim", "Service", "StatefulSet",
    "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget",
)  # fmt: skip


def test_a_run_made_again_under_its_name_waits_until_the_keys_of_the_first_are_collected(
    cluster: MemoryCluster,
) -> None:
    running(cluster, version=2)
    first = status(cluster)["runPublicKey"]
    made_again(cluster)
    cluster.writes.clear()
    with pytest.raises(
        ClusterError,
        match="Secret sums-roster belongs to an earlier TrainingRun sums; waits until Kubernetes deletes it",
    ):
        reconcile(cluster, "TrainingRun", "sums")
    assert cluster.writes == []
    collected(cluster, *EVERY_KIND)
    cluster.settle()
    assert status(cluster)["runPublicKey"] != first
    assert status(cluster)["phase"] == "Preparing"


def test_nothing_that_the_first_run_prepared_or_trained_counts_for_the_second(cluster: MemoryCluster) -> None:
    running(cluster, version=2)
    made_again(cluster, seed=7)
    collected(cluster, "Secret", "PersistentVolumeClaim", "InferencePool", "RelayServer", "Validator")
    with pytest.raises(ClusterError, match="belongs to an earlier TrainingRun sums"):
        reconcile(cluster, "TrainingRun", "sums")
    collected(cluster, *EVERY_KIND)
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare"]
    assert said(cluster, "Prepared")["status"] == "False"
    assert status(cluster)["trainer"]["attempt"] == 0


def test_two_owners_whose_children_have_one_name_do_not_take_it_from_each_other(cluster: MemoryCluster) -> None:
    running(cluster)
    other = {"metadata": {"name": "sums-relay", "namespace": "default"}, "spec": {"run": "sums", "pool": "fast"}}
    cluster.objects.apply({"apiVersion": "shoal.dev/v1alpha1", "kind": "InferencePool", **other})
    cluster.writes.clear()
    with pytest.raises(
        ClusterError, match="Service sums-relay belongs to RelayServer sums-relay; rename one of the two"
    ):
        reconcile(cluster, "InferencePool", "sums-relay")
    assert not {"StatefulSet/sums-relay", "Service/sums-relay"} & set(cluster.writes)


def test_a_job_that_someone_made_with_the_labels_of_the_trainer_is_no_attempt(cluster: MemoryCluster) -> None:
    running(cluster)
    job = cluster.get("Job", "sums-trainer-1")
    assert job is not None
    labels = {**job["metadata"]["labels"], "shoal.dev/attempt": "debug"}
    cluster.objects.apply({**job, "metadata": {"name": "look", "labels": labels}})
    cluster.settle()
    assert cluster.names("Job") == ["look", "sums-prepare", "sums-trainer-1"]
