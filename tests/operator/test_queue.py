"""A run in a Kueue queue: its one Workload, the pods that wait for it, and what becomes of both."""

import base64
import json
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest
from kueue_stand_in import World, next_statuses, not_ready_in_time
from memory_cluster import MemoryCluster
from run_story import at_version, holds, put, replicas, said, status

from shoal.contracts.run import RunConfig
from shoal_operator.children import names
from shoal_operator.children.queue import PodSet, QueueGrant, placed
from shoal_operator.engine.api_server import ApiError
from shoal_operator.engine.cluster import ClusterError, Object
from shoal_operator.engine.conditions import is_true
from shoal_operator.reconcile import reconcile
from shoal_operator.reconcile.queue import Rest, turn

WORKLOAD = "sums-workload"
GPU_RUN: dict[str, Any] = {
    "queueName": "research",
    "trainer": {"gpu": {"count": 2}},
    "inferencePools": [{"name": "pool", "replicas": 3, "gpu": {"count": 1}}],
}
GPU = "nvidia.com/gpu"


class Kueue:
    """The stand-in over a cluster in memory."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.checks: dict[str, Object] = {}

    def quota(self, gpus: int, **spec: Any) -> None:
        """Queue `research` with so many GPUs of one flavour, and CPUs for everything."""
        self._put(
            "ResourceFlavor",
            "h100",
            {"nodeLabels": {"pool": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        )
        resources: list[Object] = [
            {"name": GPU, "nominalQuota": gpus},
            {"name": "cpu", "nominalQuota": 100},
            {"name": "memory", "nominalQuota": "1Ti"},
        ]
        covered = [each["name"] for each in resources]
        groups = [{"coveredResources": covered, "flavors": [{"name": "h100", "resources": resources}]}]
        self._put("ClusterQueue", "gpus", {"resourceGroups": groups, **spec})
        self._put("LocalQueue", "research", {"clusterQueue": "gpus"}, namespace=self.cluster.namespace)

    def _put(self, kind: str, name: str, spec: Object, **metadata: str) -> None:
        self.cluster.objects.apply(
            {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}
        )

    def looks(self) -> None:
        find = self.cluster.objects.find
        world = World(find("LocalQueue"), find("ClusterQueue"), find("ResourceFlavor"), find("Workload"), self.checks)
        for found, new in next_statuses(world, self.cluster.now()):
            self.cluster.objects.set_status("Workload", found["metadata"]["name"], new)

    def settle(self) -> None:
        """Kueue and the operator until neither has anything to do. Pods stay as they are."""
        for _ in range(8):
            self.cluster.settle()
            before = self.workload
            self.looks()
            if self.workload == before:
                return
        raise AssertionError("the queue does not settle")

    @property
    def workload(self) -> Object | None:
        found: Object | None = self.cluster.get("Workload", WORKLOAD)
        return found

    @property
    def live(self) -> Object:
        assert self.workload is not None
        return self.workload

    def assigned(self) -> dict[str, int]:
        return {each["name"]: each["count"] for each in self.live["status"]["admission"]["podSetAssignments"]}


@pytest.fixture
def kueue(cluster: MemoryCluster) -> Kueue:
    return Kueue(cluster)


def prepared(kueue: Kueue) -> None:
    """Taken to the point where prepare has succeeded, and the whole run asks."""
    kueue.settle()
    kueue.cluster.job_ends("sums-prepare", "Complete")
    stops(kueue)


def stops(kueue: Kueue) -> None:
    """Pods that shall end do, whatever is deleted is gone, until nothing changes any more."""
    for _ in range(6):
        kueue.settle()
        before = kueue.cluster.objects.all()
        kueue.cluster.pods_start()
        if kueue.cluster.objects.all() == before:
            return
    raise AssertionError("the run does not settle")


def works(kueue: Kueue) -> None:
    prepared(kueue)
    at_version(kueue.cluster, 0)
    stops(kueue)


def pods(cluster: MemoryCluster) -> dict[str, int]:
    """Pods that the workloads ask for, of all that ask for some."""
    jobs = {
        each["metadata"]["name"]: 1
        for each in cluster.objects.find("Job")
        if not each.get("status", {}).get("conditions")
    }
    return {name: count for name, count in (replicas(cluster) | jobs).items() if count}


def sets(live: Object) -> dict[str, int]:
    return {each["name"]: each["count"] for each in live["spec"]["podSets"]}


def test_a_run_waits_for_its_queue_without_pods_and_then_asks_for_the_whole_of_it(
    cluster: MemoryCluster, kueue: Kueue
) -> None:
    kueue.quota(0)
    put(cluster, **GPU_RUN)
    kueue.settle()
    assert sets(kueue.live) == {"prepare": 1}, "while it prepares no GPU of the others is held"
    assert pods(cluster) == {"sums-prepare": 1}, "prepare needs no GPU here"
    cluster.job_ends("sums-prepare", "Complete")
    stops(kueue)
    assert sets(kueue.live) == {"control-plane": 1, "trainer": 1, "relay": 2, "validator": 1, "pool-pool": 3}
    assert pods(cluster) == {}
    found = said(cluster, "Queued")
    assert (found["status"], found["reason"]) == ("True", "Pending")
    assert "insufficient unused quota for nvidia.com/gpu in flavor h100" in found["message"]
    assert said(cluster, "Ready")["message"] == found["message"]
    assert status(cluster)["phase"] == "Queued"
    assert "startTime" not in status(cluster)


def test_the_workload_is_the_runs_own_with_the_templates_of_its_pods(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(5)
    put(cluster, queuePriority=7, **GPU_RUN)
    works(kueue)
    live = kueue.live
    assert [owner["kind"] for owner in live["metadata"]["ownerReferences"] if owner["controller"]] == ["TrainingRun"]
    assert (live["spec"]["queueName"], live["spec"]["priority"]) == ("research", 7)
    templates = {each["name"]: each["template"] for each in live["spec"]["podSets"]}
    trainer = cluster.get("Job", "sums-trainer-1")
    assert trainer is not None
    made = trainer["spec"]["template"]["spec"]
    assert templates["trainer"]["spec"]["containers"] == made["containers"]
    assert [each["name"] for each in templates["control-plane"]["spec"]["containers"]] == [
        "redis",
        "discovery",
        "orchestrator",
    ]
    assert not any("kueue" in key for each in cluster.objects.find("StatefulSet") for key in each["metadata"]["labels"])


def test_a_priority_that_comes_too_late_is_said(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(5)
    put(cluster, queuePriority=7, **GPU_RUN)
    works(kueue)
    assert "priority" not in said(cluster, "Queued")["message"]
    put(cluster, queuePriority=9, **GPU_RUN)
    kueue.settle()
    assert "priority 7 was admitted and stays; spec.queuePriority 9 counts when" in said(cluster, "Queued")["message"]
    assert kueue.live["spec"]["priority"] == 7


def test_an_admitted_run_has_its_pods_where_the_queue_says(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)
    assert pods(cluster) == {
        "sums-redis": 1, "sums-discovery": 1, "sums-orchestrator": 1, "sums-trainer-1": 1, "sums-relay": 2, "sums-validator": 1, "sums-pool": 3,
    }  # fmt: skip
    found = said(cluster, "Queued")
    assert (found["status"], found["reason"], found["message"]) == (
        "False",
        "Admitted",
        "ClusterQueue gpus admits the run",
    )
    for kind, name in (("Job", "sums-trainer-1"), ("StatefulSet", "sums-pool")):
        found = cluster.get(kind, name)
        assert found is not None
        pod = found["spec"]["template"]["spec"]
        assert pod["nodeSelector"]["pool"] == "h100", name
        assert {"key": "gpu", "operator": "Exists"}.items() <= pod["tolerations"][-1].items(), name
    assert is_true(kueue.live, "PodsReady")
    assert "Ready" in holds(cluster)


def test_a_preempted_run_stops_in_order_and_gives_its_quota_back_when_its_pods_are_gone(
    cluster: MemoryCluster, kueue: Kueue
) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "Preempted",
        "message": "Preempted to accommodate a workload",
    }
    live = kueue.live
    kept = [each for each in live["status"]["conditions"] if each["type"] != "Evicted"]
    cluster.objects.set_status("Workload", WORKLOAD, {**live["status"], "conditions": [*kept, evicted]})
    kueue.quota(0)
    kueue.settle()
    assert pods(cluster)["sums-orchestrator"] == 1, "the control plane takes what the workers still send"
    assert pods(cluster).keys() == {"sums-redis", "sums-discovery", "sums-orchestrator", "sums-trainer-1"}
    assert cluster.get("Job", "sums-trainer-1")["metadata"]["deletionTimestamp"]
    assert kueue.live["status"]["admission"], "its pods still end"
    assert said(cluster, "Queued")["reason"] == "Preempted"
    stops(kueue)
    assert pods(cluster) == {}
    assert "admission" not in kueue.live["status"]
    assert not is_true(kueue.live, "QuotaReserved")
    assert is_true(kueue.live, "Requeued"), "Kueue queues it again"
    ready = next(each for each in kueue.live["status"]["conditions"] if each["type"] == "PodsReady")
    assert (ready["status"], ready["reason"]) == ("False", "WaitForStart"), "or its next start has no deadline"
    kueue.quota(5)
    stops(kueue)
    assert pods(cluster)["sums-trainer-2"] == 1, "it goes on"
    assert status(cluster)["trainer"]["failures"] == 0


def test_quota_stays_while_a_pod_of_the_run_ends_and_anothers_pod_does_not_count(
    cluster: MemoryCluster, kueue: Kueue
) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)
    owner = {"kind": "StatefulSet", "name": "sums-pool", "controller": True, "uid": "u"}
    labels = names.labels("sums", "pool")
    cluster.pods["sums-pool-2"] = {
        "metadata": {"name": "sums-pool-2", "labels": labels, "ownerReferences": [owner]},
        "status": {"phase": "Running"},
    }
    live = kueue.live
    live["spec"]["active"] = False
    cluster.objects.apply(live)
    stops(kueue)
    assert is_true(kueue.live, "QuotaReserved")
    cluster.pods.clear()
    stops(kueue)
    assert not is_true(kueue.live, "QuotaReserved")
    found = said(cluster, "Queued")
    assert (found["reason"], found["message"]) == (
        "Deactivated", f"Workload {WORKLOAD} has spec.active false: set it to true to queue the run again",
    )  # fmt: skip
    live = kueue.live
    live["spec"]["active"] = True
    cluster.objects.apply(live)
    stops(kueue)
    assert "Ready" in holds(cluster)


def test_a_run_whose_pods_were_not_ready_in_time_is_queued_again_when_kueue_says(
    cluster: MemoryCluster, kueue: Kueue
) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    prepared(kueue)
    cluster.objects.set_status("Workload", WORKLOAD, not_ready_in_time(kueue.live, cluster.now()))
    for _ in range(3):  # Kueue does not look yet
        cluster.settle()
        cluster.pods_start()
    cluster.settle()
    assert not is_true(kueue.live, "QuotaReserved")
    assert not is_true(kueue.live, "Requeued"), "Kueue alone queues it again"
    found = said(cluster, "Queued")
    assert (found["reason"], found["message"]) in (
        (
            "BackOff",
            f"Exceeded the PodsReady timeout; Kueue queues the run again at {kueue.live['status']['requeueState']['requeueAt']}",
        ),
        ("Pending", "Exceeded the PodsReady timeout"),  # that time is over
    )
    stops(kueue)
    assert is_true(kueue.live, "Admitted")


def test_other_counts_are_asked_for_anew_when_the_pods_are_gone(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(6)
    put(cluster, **GPU_RUN)
    works(kueue)
    first = kueue.live["metadata"]["uid"]
    put(cluster, **GPU_RUN | {"inferencePools": [{"name": "pool", "replicas": 4, "gpu": {"count": 1}}]})
    kueue.settle()
    assert said(cluster, "Queued")["reason"] == "Requeues"
    stops(kueue)
    stops(kueue)
    assert kueue.live["metadata"]["uid"] != first
    assert kueue.assigned()["pool-pool"] == 4
    assert pods(cluster)["sums-pool"] == 4


def test_what_needs_no_other_quota_needs_no_other_admission(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)
    first = kueue.live["metadata"]["uid"]
    put(
        cluster,
        **GPU_RUN | {"recipe": {"promptsPerStep": 8, "groupSize": 4, "optimizerSteps": 2, "learningRate": 1e-5}},
    )
    stops(kueue)
    assert kueue.live["metadata"]["uid"] == first
    assert pods(cluster)["sums-trainer-2"] == 1


def test_a_pool_that_scales_by_itself_has_its_most_workers_reserved_and_no_more(
    cluster: MemoryCluster, kueue: Kueue
) -> None:
    kueue.quota(8)
    put(
        cluster,
        **GPU_RUN | {"inferencePools": [{"name": "pool", "replicas": 1, "maxReplicas": 4, "gpu": {"count": 1}}]},
    )
    works(kueue)
    assert kueue.assigned()["pool-pool"] == 4
    for asked, there in ((3, 3), (4, 4), (9, 4), (2, 2)):
        pool = cluster.get("InferencePool", "sums-pool")
        assert pool is not None
        cluster.objects.apply({**pool, "spec": {**pool["spec"], "replicas": asked}})
        stops(kueue)
        assert replicas(cluster)["sums-pool"] == there
        assert "Ready" in holds(cluster)


def asks_for(cluster: MemoryCluster, count: int, kind: str = "InferencePool", name: str = "sums-pool") -> None:
    """Somebody scales the pool."""
    found = cluster.get(kind, name)
    assert found is not None
    cluster.objects.apply({**found, "spec": {**found["spec"], "replicas": count}})


def test_nodes_are_told_of_no_relay_that_the_queue_does_not_admit(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)

    def told() -> int:
        found = cluster.get("ConfigMap", names.config("sums"))
        assert found is not None
        return len(RunConfig.from_json(found["data"]["run.json"]).addresses.relays)

    assert told() == 2
    asks_for(cluster, 5, "RelayServer", "sums-relay")
    stops(kueue)
    assert (told(), replicas(cluster)["sums-relay"]) == (2, 2)


def test_who_scales_a_pool_that_asked_for_no_pod_gets_none(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(8)
    put(cluster, **GPU_RUN | {"inferencePools": [{"name": "pool", "replicas": 0, "gpu": {"count": 1}}]})
    works(kueue)
    assert "pool-pool" not in kueue.assigned()
    asks_for(cluster, 3)
    stops(kueue)
    assert replicas(cluster)["sums-pool"] == 0
    pool = cluster.get("InferencePool", "sums-pool")
    assert pool is not None
    assert pool["status"]["conditions"][0]["message"].endswith("; of 3 replicas the run's queue admits 0")


def test_who_scales_a_pool_while_its_run_is_queued_gets_no_pod(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(0)
    put(cluster, **GPU_RUN)
    prepared(kueue)
    assert said(cluster, "Queued")["status"] == "True"
    asks_for(cluster, 3)
    reconcile(cluster, "InferencePool", "sums-pool")  # before the run takes it back
    assert replicas(cluster)["sums-pool"] == 0
    kueue.quota(5)
    stops(kueue)
    assert replicas(cluster)["sums-pool"] == 3


def test_a_pool_shrinks_to_what_the_queue_has_and_the_trainer_never_does(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(4)
    pool = {"name": "pool", "replicas": 5, "minReplicas": 2, "gpu": {"count": 1}}
    put(cluster, **GPU_RUN | {"inferencePools": [pool]})
    works(kueue)
    assert kueue.assigned() | {"relay": 1, "validator": 1} == {
        "control-plane": 1,
        "trainer": 1,
        "relay": 1,
        "validator": 1,
        "pool-pool": 2,
    }
    assert pods(cluster)["sums-pool"] == 2
    assert said(cluster, "Queued")["message"] == "ClusterQueue gpus admits the run; 2 of 5 pool-pool"
    assert "Ready" in holds(cluster), "what was admitted is there"
    assert [each.get("minCount") for each in kueue.live["spec"]["podSets"] if each["name"] != "pool-pool"] == [None] * 4


def test_updates_of_admission_checks_reach_the_pods(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(5, admissionChecksStrategy={"admissionChecks": [{"name": "provision"}]})
    kueue.checks["provision"] = {"state": "Ready"}
    put(cluster, **GPU_RUN)
    kueue.settle()
    cluster.job_ends("sums-prepare", "Complete")
    kueue.checks["provision"] = {"state": "Pending", "message": "waits for nodes"}
    stops(kueue)
    assert pods(cluster) == {}
    assert said(cluster, "Queued")["message"] == "quota is reserved; waits for provision is Pending waits for nodes"
    update = {
        "name": "pool-pool",
        "nodeSelector": {"rack": "7"},
        "annotations": {"provisioned": "yes"},
        "labels": {"by": "autoscaler"},
    }
    kueue.checks["provision"] = {"state": "Ready", "podSetUpdates": [update]}
    at_version(cluster, 0)
    stops(kueue)
    found = cluster.get("StatefulSet", "sums-pool")
    assert found is not None
    template = found["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"pool": "h100", "rack": "7"}
    assert template["metadata"]["annotations"]["provisioned"] == "yes"
    assert template["metadata"]["labels"]["by"] == "autoscaler"
    trainer = cluster.get("Job", "sums-trainer-1")
    assert trainer is not None
    assert trainer["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "h100"}


@pytest.mark.parametrize(("condition", "reason"), [("Complete", "Succeeded"), ("Failed", "Failed")])
def test_the_end_of_a_run_ends_all_its_pods_and_gives_its_quota_back(
    cluster: MemoryCluster, kueue: Kueue, condition: str, reason: str
) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)
    if condition == "Complete":
        at_version(cluster, 4)
        cluster.settle()
        assert not is_true(kueue.live, "Finished"), "its pods are still there"
        cluster.job_ends("sums-trainer-1", "Complete")
    else:
        cluster.job_ends("sums-trainer-1", "Failed", "out of memory")
    stops(kueue)
    assert condition in holds(cluster)
    assert pods(cluster) == {}
    ended = next(each for each in kueue.live["status"]["conditions"] if each["type"] == "Finished")
    assert (ended["status"], ended["reason"]) == ("True", reason)
    if condition == "Failed":
        assert "out of memory" in ended["message"]
        cluster.objects.remove("Job", "sums-trainer-1")  # somebody says "try again"
        stops(kueue)
        stops(kueue)
        assert "Ready" in holds(cluster)
        assert is_true(kueue.live, "Admitted")


def test_a_suspended_run_is_out_of_the_queue(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)
    put(cluster, suspend=True, **GPU_RUN)
    stops(kueue)
    assert kueue.workload is None
    assert "Suspended" in holds(cluster)
    put(cluster, **GPU_RUN)
    stops(kueue)
    assert "Ready" in holds(cluster)


@pytest.mark.parametrize("installed", [True, False])
def test_a_queue_that_is_not_there_is_said_with_the_remedy(
    cluster: MemoryCluster, kueue: Kueue, installed: bool
) -> None:
    if not installed:
        cluster.lacks.add("Workload")
    put(cluster, **GPU_RUN | {"queueName": "nowhere"})
    kueue.settle()
    found = said(cluster, "Queued")
    if installed:
        assert found["reason"] == "QueueUnusable"
        assert found["message"].startswith(
            "LocalQueue nowhere doesn't exist; make LocalQueue nowhere in this namespace"
        )
    else:
        assert found["reason"] == "KueueMissing"
        assert "install Kueue 0.15 or later, or take spec.queueName out" in found["message"]
    assert pods(cluster) == {}
    assert (status(cluster)["phase"], "Stalled" in holds(cluster)) == ("Queued", False)


def test_a_flavor_that_may_not_be_read_is_said_with_the_remedy(
    cluster: MemoryCluster, kueue: Kueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    kueue.quota(0)
    put(cluster, **GPU_RUN)
    prepared(kueue)
    kueue.quota(5)
    kueue.looks()
    kueue.looks()  # reserved, then admitted

    def refused(kind: str, name: str) -> Object | None:
        raise ApiError(f"get {kind} {name}: 403 Forbidden", 403)

    monkeypatch.setattr(cluster, "read_foreign", refused)
    with pytest.raises(ClusterError, match=r"may get resourceflavors\.kueue\.x-k8s\.io"):
        reconcile(cluster, "TrainingRun", "sums")
    assert said(cluster, "Ready")["reason"] == "FlavorUnreadable"
    assert pods(cluster) == {}
    put(cluster, suspend=True, **GPU_RUN)
    stops(kueue)
    assert kueue.workload is None, "its quota is free again"


def test_a_queued_run_of_a_later_release_keeps_its_quota_when_the_operator_goes_back(
    cluster: MemoryCluster, kueue: Kueue
) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)
    first, record = kueue.live["metadata"]["uid"], cluster.get("Secret", names.release_record("sums"))
    assert record is not None
    document = json.loads(zlib.decompress(base64.b64decode(record["data"][names.SOFTWARE_VERSION])))
    [pool] = [each for each in document["children"] if each["kind"] == "InferencePool"]
    pool["spec"]["ofALaterRelease"] = 1
    data = {"9.9.9": base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()}
    annotations = {**record["metadata"]["annotations"], names.RELEASE_ANNOTATION: "9.9.9"}
    cluster.objects.apply({**record, "data": data, "metadata": {**record["metadata"], "annotations": annotations}})
    for _ in range(2):
        reconcile(cluster, "TrainingRun", "sums")
    assert said(cluster, "UpToDate")["reason"] == "OtherRelease"
    assert kueue.live["metadata"]["uid"] == first
    assert pods(cluster)["sums-trainer-1"] == 1
    assert is_true(kueue.live, "Admitted")


def test_a_run_at_work_goes_on_while_kueue_cannot_be_seen(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)
    before, seen = pods(cluster), kueue.live
    cluster.lacks.add("Workload")  # an upgrade replaces the operator's rights
    cluster.objects.remove("Workload", WORKLOAD)
    with pytest.raises(ClusterError, match="pods of the run go on as they are: install Kueue"):
        reconcile(cluster, "TrainingRun", "sums")
    assert said(cluster, "Ready")["reason"] == "KueueMissing"
    assert (pods(cluster), cluster.objects.deleting()) == (before, [])
    cluster.lacks.clear()
    cluster.objects.apply(seen)
    cluster.objects.set_status("Workload", WORKLOAD, seen["status"])
    stops(kueue)
    assert (pods(cluster), "Ready" in holds(cluster)) == (before, True)


def test_an_eviction_is_obeyed_although_the_flavor_is_gone(
    cluster: MemoryCluster, kueue: Kueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)
    monkeypatch.setattr(cluster, "read_foreign", lambda kind, name: None)
    with pytest.raises(ClusterError, match="ResourceFlavor h100, which the queue gave, does not exist"):
        reconcile(cluster, "TrainingRun", "sums")
    assert pods(cluster)["sums-trainer-1"] == 1, "what works goes on"
    assert cluster.objects.deleting() == []
    live = kueue.live
    live["spec"]["active"] = False
    cluster.objects.apply(live)
    kueue.looks()
    stops(kueue)
    assert pods(cluster) == {}
    assert not is_true(kueue.live, "QuotaReserved")


def test_a_run_whose_workload_is_deleted_while_it_waits_for_something_keeps_no_pods() -> None:
    asked = [PodSet("trainer", 1, {"spec": {}})]
    now = datetime(2026, 11, 26, tzinfo=UTC)
    begins = turn("research", asked, None, Rest(), served=True, waits=True, now=now)
    works = turn("research", asked, None, Rest(work=False, all=False), served=True, waits=True, now=now)
    assert (begins.holds, works.holds) == (False, True)


def test_a_job_that_kueue_queues_by_itself_is_said_with_the_remedy(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    kueue.settle()
    made = cluster.get("Job", "sums-prepare")
    assert made is not None
    labels = {**made["metadata"]["labels"], "kueue.x-k8s.io/queue-name": "default"}
    cluster.objects.apply(
        {**made, "metadata": {**made["metadata"], "labels": labels}, "spec": {**made["spec"], "suspend": True}}
    )
    cluster.writes.clear()
    stops(kueue)
    assert cluster.writes == [], "the operator and the webhook do not fight"
    found = said(cluster, "Ready")
    assert found["reason"] == "JobSuspended"
    assert "where a LocalQueue is named default" in found["message"]


def test_a_run_that_is_managed_elsewhere_is_left_alone(cluster: MemoryCluster) -> None:
    put(cluster, managedBy="kueue.x-k8s.io/multikueue", **GPU_RUN)
    cluster.settle()
    assert cluster.writes == []
    assert cluster.status_writes == 0


def test_a_run_leaves_its_queue_when_the_name_goes(cluster: MemoryCluster, kueue: Kueue) -> None:
    kueue.quota(5)
    put(cluster, **GPU_RUN)
    works(kueue)
    put(cluster, **GPU_RUN | {"queueName": None})
    stops(kueue)
    assert kueue.workload is None
    assert "Ready" in holds(cluster)
    assert all(each["type"] != "Queued" for each in status(cluster)["conditions"])


def test_what_is_placed_keeps_what_it_has(cluster: MemoryCluster) -> None:
    child: Object = {
        "kind": "Job",
        "metadata": {"labels": names.labels("sums", "trainer")},
        "spec": {"template": {"metadata": {"labels": {"a": "1"}}, "spec": {}}},
    }
    given = {"trainer": QueueGrant(1, {"zone": "a"}, ({"operator": "Exists"},), {"a": "2", "b": "3"})}
    template = placed(child, given)["spec"]["template"]
    assert template == {
        "metadata": {"labels": {"a": "1", "b": "3"}},
        "spec": {"nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}]},
    }
    assert child["spec"]["template"]["spec"] == {}
