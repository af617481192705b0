"""A TrainingRun of tests, taken to the points of its life: prepared, running, at a version."""

from typing import Any

from memory_cluster import MemoryCluster

from shoal.contracts.protocol import RunProgress
from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.reconcile.common import owned

MANIFEST: dict[str, Any] = {
    "apiVersion": "shoal.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "sums"},
    "spec": {
        "model": {"generated": {}},
        "tasks": {"environment": "arithmetic"},
        "steps": 4,
        "recipe": {"promptsPerStep": 8, "groupSize": 4, "optimizerSteps": 2},
    },
}


def put(cluster: MemoryCluster, **changes: Any) -> None:
    """Apply the manifest with parts of its spec changed."""
    run = TrainingRun.model_validate({**MANIFEST, "spec": MANIFEST["spec"] | changes})
    cluster.objects.apply(run.model_dump(mode="json", by_alias=True, exclude_none=True))


def prepared(cluster: MemoryCluster) -> None:
    cluster.settle()
    cluster.job_ends("sums-prepare", "Complete")
    cluster.settle()


def running(cluster: MemoryCluster, version: int = 0) -> None:
    prepared(cluster)
    at_version(cluster, version)
    cluster.pods_start()
    cluster.settle()


def at_version(cluster: MemoryCluster, version: int, **more: Any) -> None:
    cluster.progress = RunProgress(run="sums", steps_total=4, open_step=version, latest_version=version, **more)


def record_complete(cluster: MemoryCluster, name: str, version: int = 4) -> None:
    """As the reconcile of a run records what its orchestrator said."""
    live = cluster.get("TrainingRun", name)
    assert live is not None
    metadata = {"name": names.config(name), "annotations": {names.COMPLETE_ANNOTATION: str(version)}}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    cluster.objects.apply(owned(config, live, cluster.namespace))


def neighbour(cluster: MemoryCluster, name: str, *conditions: str, **changes: Any) -> None:
    """Another run of the namespace, in which these conditions are True."""
    spec = MANIFEST["spec"] | changes
    run = TrainingRun.model_validate({**MANIFEST, "metadata": {"name": name}, "spec": spec})
    cluster.objects.apply(run.model_dump(mode="json", by_alias=True, exclude_none=True))
    said = [{"type": each, "status": "True", "reason": "R", "message": ""} for each in conditions]
    cluster.objects.set_status("TrainingRun", name, {"conditions": said})
    if "Complete" in conditions:
        record_complete(cluster, name)


def status(cluster: MemoryCluster) -> dict[str, Any]:
    found = cluster.get("TrainingRun", "sums")
    assert found is not None
    return found["status"]


def holds(cluster: MemoryCluster) -> set[str]:
    """Types of the conditions that are True."""
    return {each["type"] for each in status(cluster)["conditions"] if each["status"] == "True"}


def said(cluster: MemoryCluster, condition: str) -> dict[str, Any]:
    return next(each for each in status(cluster)["conditions"] if each["type"] == condition)


def replicas(cluster: MemoryCluster) -> dict[str, int]:
    kinds = ("StatefulSet", "Deployment")
    return {
        found["metadata"]["name"]: found["spec"]["replicas"] for kind in kinds for found in cluster.objects.find(kind)
    }
