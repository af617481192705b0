"""Runners: which runs have them, who may reach them, who is told of them, and that a runner has nothing worth stealing."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from memory_cluster import MemoryCluster
from run_story import MANIFEST, put, running, said

from shoal.contracts.run import NodeConfig, RunConfig
from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import check
from shoal_operator.children.runner import runner_count
from shoal_operator.local.limits import for_one_machine

GOLDEN = Path(__file__).parent.parent / "golden" / "trainingrun" / "runners" / "out.yaml"
CODE = {"tasks": {"environment": "code", "count": 64}, "model": {"path": "/models/base"}}
URL = "http://sums-runner-0.sums-runner.default.svc:9107"


def manifest(**changes: Any) -> dict[str, Any]:
    return {**MANIFEST, "spec": MANIFEST["spec"] | changes}


def run(**changes: Any) -> TrainingRun:
    return TrainingRun.model_validate(manifest(**changes))


def run_json(cluster: MemoryCluster) -> RunConfig:
    found = cluster.get("ConfigMap", "sums-config")
    assert found is not None
    return RunConfig.from_json(found["data"]["run.json"])


def node_json(cluster: MemoryCluster, name: str) -> NodeConfig:
    found = cluster.get("ConfigMap", name)
    assert found is not None
    return NodeConfig.from_json(found["data"]["node.json"])


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        (CODE, 1),
        (CODE | {"runner": {"replicas": 3}}, 3),
        (CODE | {"runner": {"replicas": 0}}, 0),
        ({"runner": {}}, 1),
    ],
    ids=["no programs", "programs", "as many as it says", "none, if it says so", "another's environment"],
)
def test_a_run_whose_environment_judges_programs_has_runners(changes: dict[str, Any], count: int) -> None:
    assert runner_count(run(**changes)) == count


def test_on_one_machine_there_are_runners_only_if_they_are_asked_for() -> None:
    assert runner_count(for_one_machine(run(**CODE))) == 0
    assert runner_count(for_one_machine(run(**CODE, runner={"replicas": 2}))) == 2


def test_validators_and_the_runs_own_pools_get_the_runners_and_strangers_do_not(cluster: MemoryCluster) -> None:
    put(cluster, **CODE)
    running(cluster)
    assert run_json(cluster).addresses.runners == [URL]
    assert node_json(cluster, "sums-pool-node").runners == [URL]
    assert node_json(cluster, "sums-join").runners == []
    ready = said(cluster, "RunnerReady")
    assert ready["status"] == "True"
    assert ready["message"] == "1 of 1 pods are ready; programs run only in them"


def test_a_runtime_class_is_reported(cluster: MemoryCluster) -> None:
    put(cluster, **CODE, runner={"podTemplate": {"runtimeClassName": "kata"}})
    running(cluster)
    assert "programs run in them under runtime class kata" in said(cluster, "RunnerReady")["message"]


def test_a_run_without_runners_has_no_condition_for_them(cluster: MemoryCluster) -> None:
    put(cluster)
    running(cluster)
    assert run_json(cluster).addresses.runners == []
    found = cluster.get("TrainingRun", "sums")
    assert found is not None
    assert "RunnerReady" not in {each["type"] for each in found["status"]["conditions"]}
    assert cluster.get("StatefulSet", "sums-runner") is None


def test_removing_runners_deletes_them_and_nothing_else(cluster: MemoryCluster) -> None:
    put(cluster, **CODE)
    running(cluster)
    put(cluster, **CODE, runner={"replicas": 0})
    running(cluster)
    assert cluster.get("StatefulSet", "sums-runner") is None
    assert cluster.get("PodDisruptionBudget", "sums-runner") is None
    assert cluster.get("Service", "sums-runner") is None
    assert cluster.get("StatefulSet", "sums-redis") is not None
    assert run_json(cluster).addresses.runners == []


def test_a_suspended_run_has_no_runner_at_work(cluster: MemoryCluster) -> None:
    put(cluster, **CODE)
    running(cluster)
    put(cluster, **CODE, suspend=True)
    cluster.settle()
    found = cluster.get("StatefulSet", "sums-runner")
    assert found is not None
    assert found["spec"]["replicas"] == 0
    assert run_json(cluster).addresses.runners == [URL]


def built(kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        each
        for each in yaml.safe_load_all(GOLDEN.read_text())
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def test_a_runner_has_no_secret_and_no_network() -> None:
    pod = built("StatefulSet", "sums-runner")["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {}}]
    assert pod["automountServiceAccountToken"] is False
    assert pod["runtimeClassName"] == "gvisor"
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert "secret" not in json.dumps(pod).lower()
    policy = built("NetworkPolicy", "sums-runner")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy
    callers = [each["podSelector"]["matchLabels"]["shoal.dev/component"] for each in policy["ingress"][0]["from"]]
    assert callers == ["validator", "pool"]


@pytest.mark.parametrize(
    ("runner", "said_of"),
    [
        ({"replicas": -1}, "spec.runner.replicas"),
        ({"replicas": 65}, "spec.runner.replicas"),
        ({"pods": 1}, "spec.runner"),
    ],
)
def test_impossible_runners_are_refused_with_the_fields_path(runner: dict[str, Any], said_of: str) -> None:
    _, mistakes = check(manifest(runner=runner))
    assert any(said_of in str(mistake) for mistake in mistakes), mistakes
