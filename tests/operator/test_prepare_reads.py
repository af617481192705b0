"""What the prepare Job may read: the admin's own volume, and a hub where something of the run lies on one."""

from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import put, status

from shoal.contracts.datasets import filter_run
from shoal_operator.api import TrainingRun
from shoal_operator.local.limits import for_one_machine

HTTPS = {"ports": [{"protocol": "TCP", "port": 443}]}
COMMIT = "740312add88f781978c0658806c59bfc2815b9a4"


def prepare_pod(cluster: MemoryCluster, run: str = "sums") -> dict[str, Any]:
    cluster.settle()
    job = cluster.get("Job", f"{run}-prepare")
    assert job is not None
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def test_a_volume_of_the_admins_is_mounted_into_prepare_to_be_read_and_into_nothing_else(
    cluster: MemoryCluster,
) -> None:
    claim = {"persistentVolumeClaim": {"claimName": "benchmarks", "readOnly": True}}
    put(cluster, dataClaim="benchmarks")
    pod = prepare_pod(cluster)
    assert {"name": "data", **claim} in pod["volumes"]
    assert {"name": "data", "mountPath": "/shoal/data", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    cluster.job_ends("sums-prepare", "Complete")
    cluster.settle()
    others = [
        found
        for kind in ("StatefulSet", "Deployment", "Job")
        for found in cluster.objects.find(kind)
        if found["metadata"]["name"] != "sums-prepare"
    ]
    assert len(others) >= 5
    assert not [found for found in others if "benchmarks" in str(found)]


@pytest.mark.parametrize(
    "source",
    [
        {"image": {"reference": "registry.example.org/models/qwen3:0.6b", "pullPolicy": "IfNotPresent"}},
        {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    ],
    ids=["an OCI image", "a claim"],
)
def test_prepare_reads_a_base_model_from_a_cache_of_its_node(cluster: MemoryCluster, source: dict[str, Any]) -> None:
    """No worker has it: prepare puts the model into the store. The kubelet keeps an image's files for all pods of its node."""
    mount = {"name": "models", "mountPath": "/models", "readOnly": True}
    template = {
        "volumes": [{"name": "models", **source}],
        "containers": [{"name": "prepare", "volumeMounts": [mount]}],
    }
    put(cluster, model={"path": "/models/qwen3"}, prepare={"podTemplate": template})
    pod = prepare_pod(cluster)
    assert {"name": "models", **source} in pod["volumes"]
    assert mount in next(each for each in pod["containers"] if each["name"] == "prepare")["volumeMounts"]
    cluster.job_ends("sums-prepare", "Complete")
    cluster.settle()
    others = [each for kind in ("StatefulSet", "Deployment") for each in cluster.objects.find(kind)]
    assert len(others) >= 4
    assert not [each for each in others if "/models" in str(each)]


def test_the_run_that_filters_tasks_reads_the_same_volume(cluster: MemoryCluster) -> None:
    put(cluster, dataClaim="benchmarks", tasks={"environment": "arithmetic", "offlineFilter": {}})
    cluster.settle()
    assert "benchmarks" in str(prepare_pod(cluster, filter_run("sums"))["volumes"])


def test_one_machine_reads_its_own_paths(cluster: MemoryCluster) -> None:
    put(cluster, dataClaim="benchmarks")
    live = cluster.get("TrainingRun", "sums")
    run = TrainingRun.model_validate({key: value for key, value in (live or {}).items() if key != "status"})
    assert run.spec.data_claim == "benchmarks"
    assert for_one_machine(run).spec.data_claim is None


@pytest.mark.parametrize(
    ("tasks", "hub"),
    [
        ({"environment": "arithmetic"}, False),
        ({"environment": "math", "dataset": {"huggingFace": "owner/tasks", "revision": "main"}}, True),
        ({"environment": "math", "dataset": {"path": "/shoal/data/aime.jsonl"}}, False),
        ({"environment": f"lm-eval:gsm8k_cot@{COMMIT}"}, True),
        ({"environment": "lm-eval:/shoal/data/task.yaml"}, False),
        ({"environment": "lm-eval:/shoal/data/task.yaml,exact_match,strict-match"}, False),
        ({"environment": f"lm-eval:/shoal/data/task.yaml@{COMMIT}"}, True),
    ],
)
def test_prepare_may_reach_a_hub_for_a_benchmark_that_lies_on_one(
    cluster: MemoryCluster, tasks: dict[str, Any], hub: bool
) -> None:
    put(cluster, evaluation={"benchmarks": [{"name": "scored", "tasks": tasks}]})
    cluster.settle()
    policy = cluster.get("NetworkPolicy", "sums-prepare")
    assert policy is not None
    assert (HTTPS in policy["spec"].get("egress", [])) == hub
    assert status(cluster)["phase"] == "Preparing"


@pytest.mark.parametrize(
    ("where", "ports"),
    [
        ({}, [443]),
        ({"url": "http://wheels.example:8443/echoes.whl"}, [443, 8443]),
        ({"path": "/shoal/data/echoes.whl"}, []),
        ({"object": "packages/echoes.whl"}, []),
    ],
)
def test_prepare_may_reach_an_index_for_packages_that_come_from_one(
    cluster: MemoryCluster, where: dict[str, str], ports: list[int]
) -> None:
    package = {"package": "echoes", "version": "1.0", "sha256": "ab" * 32, **where}
    put(cluster, tasks={"environment": "echoes", "packages": [package]})
    cluster.settle()
    policy = cluster.get("NetworkPolicy", "sums-prepare")
    assert policy is not None
    outward = [rule["ports"] for rule in policy["spec"].get("egress", []) if "to" not in rule]
    assert outward == ([[{"protocol": "TCP", "port": port} for port in ports], *outward[1:]] if ports else [])
    assert len(outward) == (2 if ports else 0), "names are asked for where something is"
