"""Pools whose engines span several pods: what is made, what is counted, what a queue is asked for."""

from pathlib import Path
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import MANIFEST, put, replicas, running
from test_queue import Kueue, pods, sets, stops, works

from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.children.workloads import stamped, with_template
from shoal_operator.engine.cluster import Object
from shoal_operator.local.limits import beyond_one_machine
from shoal_operator.plan_facts import run_facts
from shoal_operator.reconcile.releases import settled

WIDE: dict[str, Any] = {"name": "pool", "replicas": 2, "engine": {"tensorParallelSize": 2, "hosts": 2}}
GROUPED: dict[str, Any] = {**WIDE, "hostsBy": "LeaderWorkerSet"}
POLICY = "sums-pool-hosts"


@pytest.fixture
def kueue(cluster: MemoryCluster) -> Kueue:
    return Kueue(cluster)


def pool(cluster: MemoryCluster) -> Object:
    found: Object | None = cluster.get("InferencePool", "sums-pool")
    assert found is not None
    return found


def ready(cluster: MemoryCluster) -> str:
    return str(next(each["message"] for each in pool(cluster)["status"]["conditions"] if each["type"] == "Ready"))


def pod(number: int, *, is_ready: bool) -> Object:
    conditions = [{"type": "Ready", "status": str(is_ready)}]
    labels = names.labels("sums", "pool") | {names.SET_LABEL: "sums-pool"}
    return {
        "kind": "Pod",
        "metadata": {"name": f"sums-pool-{number}", "labels": labels},
        "status": {"phase": "Running", "conditions": conditions},
    }


def test_a_replica_is_an_engine_in_spec_and_status_and_pods_in_the_stateful_set(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=[WIDE])
    running(cluster)
    assert replicas(cluster)["sums-pool"] == 4
    status = pool(cluster)["status"]
    assert (pool(cluster)["spec"]["replicas"], status["replicas"], status["readyReplicas"]) == (2, 2, 2)
    assert ready(cluster) == "2 of 2 engines of 2 pods are ready"


@pytest.mark.parametrize(("broken", "whole"), [({1}, 1), ({1, 2}, 0), ({2, 3}, 1)])
def test_an_engine_is_ready_when_all_of_its_pods_are(cluster: MemoryCluster, broken: set[int], whole: int) -> None:
    put(cluster, inferencePools=[WIDE])
    running(cluster)
    for number in range(4):
        made = pod(number, is_ready=number not in broken)
        cluster.pods[made["metadata"]["name"]] = made
    live = cluster.get("StatefulSet", "sums-pool")
    assert live is not None
    cluster.objects.set_status("StatefulSet", "sums-pool", {**live["status"], "readyReplicas": 4 - len(broken)})
    cluster.settle()
    assert pool(cluster)["status"]["readyReplicas"] == whole
    assert ready(cluster).startswith(f"{whole} of 2 engines of 2 pods are ready")


def test_the_policy_between_hosts_goes_when_an_engine_is_one_pod_again(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=[WIDE])
    running(cluster)
    found = cluster.get("NetworkPolicy", POLICY)
    assert found is not None
    [peer] = found["spec"]["ingress"][0]["from"]
    assert peer["podSelector"]["matchLabels"][names.SET_LABEL] == "sums-pool", "no other pool's pods"
    put(cluster, inferencePools=[{"name": "pool", "replicas": 2}])
    cluster.settle()
    cluster.pods_end()
    assert cluster.get("NetworkPolicy", POLICY) is None
    assert replicas(cluster)["sums-pool"] == 2


@pytest.mark.parametrize("beside_run", [True, False])
@pytest.mark.parametrize("config_map", [None, "copied"])
def test_a_pool_has_a_way_out_to_its_hosts_where_the_runs_policies_close_all_others(
    cluster: MemoryCluster, tmp_path: Path, beside_run: bool, config_map: str | None
) -> None:
    put(cluster)
    running(cluster)
    join = cluster.get("ConfigMap", names.join("sums"))
    assert join is not None
    elsewhere = cluster if beside_run else MemoryCluster(tmp_path)
    name = config_map or names.join("sums")
    if config_map is not None or not beside_run:
        elsewhere.objects.apply({**join, "metadata": {"name": name}})
    given = {"run": "sums", "pool": "wide", "engine": WIDE["engine"]}
    given |= {"joinConfigMap": config_map} if config_map is not None else {}
    kind = {"apiVersion": "shoal.dev/v1alpha1", "kind": "InferencePool"}
    elsewhere.objects.apply({**kind, "metadata": {"name": "sums-wide"}, "spec": given})
    elsewhere.settle()
    found = elsewhere.get("NetworkPolicy", "sums-wide-hosts")
    assert found is not None
    assert found["spec"]["policyTypes"] == (["Ingress", "Egress"] if beside_run else ["Ingress"])
    assert ("egress" in found["spec"]) == beside_run


@pytest.mark.parametrize(("quota", "admitted", "at_work"), [(10, 4, 4), (9, 3, 2), (6, 2, 2)])
def test_a_queue_is_asked_for_every_pod_and_what_it_admits_are_whole_engines(
    cluster: MemoryCluster, kueue: Kueue, quota: int, admitted: int, at_work: int
) -> None:
    kueue.quota(quota)
    wide = {**WIDE, "engine": {"tensorParallelSize": 4, "hosts": 2}, "gpu": {"count": 2}, "minReplicas": 1}
    put(cluster, queueName="research", trainer={"gpu": {"count": 2}}, inferencePools=[wide])
    works(kueue)
    stops(kueue)
    assert sets(kueue.live)["pool-pool"] == 4
    found = next(each for each in kueue.live["spec"]["podSets"] if each["name"] == "pool-pool")
    assert found["minCount"] == 2
    assert kueue.assigned()["pool-pool"] == admitted
    assert pods(cluster)["sums-pool"] == at_work


def claim_names(cluster: MemoryCluster) -> list[str]:
    labels = {names.SET_LABEL: "sums-pool"}
    return [each["metadata"]["name"] for each in cluster.list("PersistentVolumeClaim", labels)]


def test_a_pool_by_groups_has_one_leader_worker_set_and_claims_that_outlive_its_groups(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=[GROUPED])
    running(cluster)
    assert cluster.get("StatefulSet", "sums-pool") is None
    made = cluster.get("LeaderWorkerSet", "sums-pool")
    assert made is not None
    group = made["spec"]["leaderWorkerTemplate"]
    assert (made["spec"]["replicas"], group["size"]) == (2, 2)
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert "persistentVolumeClaimRetentionPolicy" not in group, "a group that is made anew would lose its volumes"
    pods_named = ["sums-pool-0", "sums-pool-0-1", "sums-pool-1", "sums-pool-1-1"]
    assert claim_names(cluster) == [f"{volume}-{pod}" for volume in ("key", "weights") for pod in pods_named]
    status = pool(cluster)["status"]
    assert (pool(cluster)["spec"]["replicas"], status["replicas"], status["readyReplicas"]) == (2, 2, 2)
    assert status["selector"] == "shoal.dev/component=pool,shoal.dev/run=sums,shoal.dev/set=sums-pool"
    assert ready(cluster) == "2 of 2 engines of 2 pods are ready"


@pytest.mark.parametrize(
    ("retention", "replicas", "left"),
    [
        ({}, 1, 8),
        ({"whenScaled": "Delete"}, 1, 4),
        ({"whenScaled": "Delete"}, 0, 0),
        ({"whenScaled": "Delete", "whenDeleted": "Retain"}, 1, 4),
    ],
)
def test_claims_of_groups_that_are_scaled_in_go_where_they_are_to(
    cluster: MemoryCluster, retention: dict[str, str], replicas: int, left: int
) -> None:
    put(cluster, inferencePools=[GROUPED | {"claimRetention": retention}])
    running(cluster)
    live = pool(cluster)
    cluster.objects.apply({**live, "spec": {**live["spec"], "replicas": replicas}})
    cluster.settle()
    cluster.pods_end()
    assert len(claim_names(cluster)) == left


def test_only_claims_that_are_the_pools_own_go_when_it_is_scaled_in(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=[GROUPED | {"claimRetention": {"whenScaled": "Delete"}}])
    running(cluster)
    made = cluster.get("PersistentVolumeClaim", "weights-sums-pool-1")
    assert made is not None
    metadata = made["metadata"]
    bare = {key: each for key, each in metadata["annotations"].items() if "hash" not in key}
    others: dict[str, Object] = {
        "weights-sums-pool-backup": {},
        "weights-sums-pool-7": {"annotations": bare},
        "weights-sums-pool-8": {"ownerReferences": []},
        "weights-sums-pool-9-1": {"ownerReferences": [metadata["ownerReferences"][0] | {"uid": "another"}]},
    }
    for name, more in others.items():
        cluster.objects.apply({**made, "metadata": {**metadata, "name": name, **more}})
    live = pool(cluster)
    cluster.objects.apply({**live, "spec": {**live["spec"], "replicas": 0}})
    cluster.settle()
    cluster.pods_end()
    assert claim_names(cluster) == sorted(others)


@pytest.mark.parametrize(("when_deleted", "owners"), [("Delete", ["InferencePool"]), ("Retain", [])])
def test_claims_of_groups_go_with_the_pool_unless_they_are_retained(
    cluster: MemoryCluster, when_deleted: str, owners: list[str]
) -> None:
    put(cluster, inferencePools=[GROUPED | {"claimRetention": {"whenDeleted": when_deleted}}])
    running(cluster)
    found = cluster.get("PersistentVolumeClaim", "weights-sums-pool-1-1")
    assert found is not None
    assert [each["kind"] for each in found["metadata"].get("ownerReferences", ())] == owners


def test_larger_volumes_are_larger_claims_of_the_same_groups(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=[GROUPED])
    running(cluster)
    before = cluster.get("LeaderWorkerSet", "sums-pool")
    put(cluster, inferencePools=[GROUPED | {"weightsSize": "90Gi"}])
    cluster.settle()
    found = cluster.get("PersistentVolumeClaim", "weights-sums-pool-0")
    assert found is not None
    assert found["spec"]["resources"]["requests"]["storage"] == "90Gi"
    now = cluster.get("LeaderWorkerSet", "sums-pool")
    assert before is not None
    assert now is not None
    assert now["spec"] == before["spec"], "LeaderWorkerSet's StatefulSets cannot change their claims"
    assert now["metadata"]["uid"] == before["metadata"]["uid"]


def test_a_pool_by_groups_waits_for_the_kind_and_becomes_no_stateful_set(cluster: MemoryCluster) -> None:
    cluster.lacks.add("LeaderWorkerSet")
    put(cluster, inferencePools=[GROUPED])
    running(cluster)
    assert "install LeaderWorkerSet 0.8 or later" in ready(cluster)
    assert cluster.get("StatefulSet", "sums-pool") is None
    cluster.lacks.clear()
    running(cluster)
    assert ready(cluster) == "2 of 2 engines of 2 pods are ready"
    cluster.lacks.add("LeaderWorkerSet")  # the operator's permission goes, say
    cluster.settle()
    assert "install LeaderWorkerSet 0.8 or later" in ready(cluster)
    assert cluster.get("StatefulSet", "sums-pool") is None


def test_groups_that_no_controller_looks_at_and_pods_that_are_refused_are_said(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=[GROUPED])
    running(cluster)
    cluster.objects.set_status("LeaderWorkerSet", "sums-pool", {})
    cluster.settle()
    assert "see that LeaderWorkerSet's controller runs" in ready(cluster)
    for gone, made in (("sums-pool-1-1", "sums-pool-1"), ("sums-pool-0", "sums-pool")):
        del cluster.pods[gone]
        cluster.warnings = {made: ("FailedCreate", f"exceeded quota: {gone}")}
        cluster.settle()
        assert f"StatefulSet {made} of LeaderWorkerSet sums-pool: exceeded quota: {gone}" in ready(cluster)
    assert "sums-pool-1" in cluster.asked_about


@pytest.mark.parametrize("deleted", [False, True])
def test_the_last_words_of_a_group_stay_until_it_is_ready_again(cluster: MemoryCluster, *, deleted: bool) -> None:
    put(cluster, inferencePools=[GROUPED])
    running(cluster)
    crashed = cluster.pods["sums-pool-1-1"]
    last = {"terminated": {"exitCode": 1, "reason": "Error", "message": "plain: no such model"}}
    state = {"name": "worker", "ready": False, "restartCount": 1, "state": {"running": {}}, "lastState": last}
    crashed["status"] = {"phase": "Running", "containerStatuses": [state]}
    if deleted:
        crashed["metadata"]["deletionTimestamp"] = cluster.now().isoformat()
    cluster.settle()
    words = "pod sums-pool-1-1: container worker: ended once, last: exit code 1: plain: no such model"
    assert ready(cluster).endswith(words)
    del cluster.pods["sums-pool-1-1"]
    cluster.settle()
    assert ready(cluster).endswith(words), "the group is made anew, and its pods are not ready yet"
    cluster.pods_start()
    cluster.settle()
    assert ready(cluster) == "2 of 2 engines of 2 pods are ready"


def test_ready_of_groups_is_what_their_pods_are_whatever_a_stale_status_says(cluster: MemoryCluster) -> None:
    cluster.groups_say_generation = False
    put(cluster, inferencePools=[GROUPED])
    running(cluster)
    assert ready(cluster) == "2 of 2 engines of 2 pods are ready"
    put(cluster, inferencePools=[GROUPED | {"podTemplate": {"annotations": {"example.org/new": "yes"}}}])
    cluster.settle()
    progressing = next(each for each in pool(cluster)["status"]["conditions"] if each["type"] == "Progressing")
    assert progressing["status"] == "True", "the status is that of the earlier template, and so are the pods"
    cluster.pods_start()
    cluster.pods["sums-pool-1-1"]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    cluster.settle()
    assert pool(cluster)["status"]["readyReplicas"] == 1
    assert ready(cluster).startswith("1 of 2 engines of 2 pods are ready")
    cluster.pods_start()
    cluster.settle()
    assert ready(cluster) == "2 of 2 engines of 2 pods are ready"


def test_a_roll_goes_on_when_a_groups_pods_are_new_and_not_by_a_stale_status(cluster: MemoryCluster) -> None:
    cluster.groups_say_generation = False
    put(cluster, inferencePools=[GROUPED])
    running(cluster)
    before = cluster.get("LeaderWorkerSet", "sums-pool")
    assert before is not None
    assert settled(cluster, before)
    template = before["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    [agent, *others] = template["spec"]["containers"]
    newer = {**template, "spec": {**template["spec"], "containers": [{**agent, "image": "newer"}, *others]}}
    cluster.objects.apply(stamped(with_template(before, newer)))
    live = cluster.get("LeaderWorkerSet", "sums-pool")
    assert not settled(cluster, live)
    cluster.pods_start()
    assert settled(cluster, live)


def test_a_leader_worker_set_without_claim_templates_is_said_and_written_no_more(cluster: MemoryCluster) -> None:
    cluster.prunes_claim_templates = True
    put(cluster, inferencePools=[GROUPED])
    running(cluster)
    assert "older than what keeps claims" in ready(cluster)
    made = cluster.get("LeaderWorkerSet", "sums-pool")
    assert made is not None
    assert "volumeClaimTemplates" not in made["spec"]["leaderWorkerTemplate"]
    written = len(cluster.writes)
    cluster.reconcile_all()
    assert len(cluster.writes) == written


@pytest.mark.parametrize("first", ["sums-pool", "sums-pool-0"])
def test_a_pool_named_like_a_group_of_another_waits_and_is_said(cluster: MemoryCluster, first: str) -> None:
    put(cluster)
    running(cluster)
    engines = {"sums-wide": WIDE["engine"], "sums-wide-0": {}}
    first, second = first.replace("pool", "wide"), "sums-wide-0" if first == "sums-pool" else "sums-wide"
    for name in (first, second):
        given = {"run": "sums", "pool": "wide", "engine": engines[name]}
        given |= {"hostsBy": "LeaderWorkerSet"} if name == "sums-wide" else {}
        kind = {"apiVersion": "shoal.dev/v1alpha1", "kind": "InferencePool"}
        cluster.objects.apply({**kind, "metadata": {"name": name}, "spec": given})
        cluster.settle()
    found = cluster.get("InferencePool", second)
    assert found is not None
    said = next(each["message"] for each in found["status"]["conditions"] if each["type"] == "Ready")
    assert said.startswith(f"InferencePool {first} is there")
    workloads = {"sums-wide": "LeaderWorkerSet", "sums-wide-0": "StatefulSet"}
    assert cluster.get(workloads[first], first) is not None
    assert cluster.get(workloads[second], second) is None


@pytest.mark.parametrize(("quota", "at_work"), [(10, 2), (9, 1)])
def test_a_queue_is_asked_for_every_pod_of_every_group(
    cluster: MemoryCluster, kueue: Kueue, quota: int, at_work: int
) -> None:
    kueue.quota(quota)
    engine = {"tensorParallelSize": 4, "hosts": 2}
    grouped = {**GROUPED, "engine": engine, "gpu": {"count": 2}, "minReplicas": 1}
    put(cluster, queueName="research", trainer={"gpu": {"count": 2}}, inferencePools=[grouped])
    works(kueue)
    stops(kueue)
    assert sets(kueue.live)["pool-pool"] == 4
    made = cluster.get("LeaderWorkerSet", "sums-pool")
    assert made is not None
    assert made["spec"]["replicas"] == at_work


def test_the_planner_and_one_machine_know_of_hosts() -> None:
    wide = {
        **WIDE,
        "engine": {"tensorParallelSize": 8, "pipelineParallelSize": 2, "hosts": 2},
        "gpu": {"count": 8, "type": "NVIDIA-H100-80GB-HBM3"},
    }
    run = TrainingRun.model_validate({**MANIFEST, "spec": MANIFEST["spec"] | {"inferencePools": [wide]}})
    facts = run_facts(run)
    assert facts is not None
    assert (facts.pools[0].gpus, facts.pools[0].stages) == (16, 2)
    said = [each.problem for each in beyond_one_machine(run, "run.yaml") if each.path.endswith("engine.hosts")]
    assert said == [
        "given 2; one machine is one host: leave it out, and spread the engine over the GPUs of this machine"
    ]
