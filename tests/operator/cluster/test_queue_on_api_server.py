"""Runs in a Kueue queue on a real API server with the real controllers of pods. Kueue is the stand-in, or what the cluster has."""

from collections.abc import Iterator
from typing import Any

import hollow_node
import pytest
from cluster_story import Story
from control_plane import ControlPlane
from foreign_kinds import is_installed
from kube_audit import AuditLog, named, used
from kube_client import Kube, Object
from kueue_api import GROUP, KueueApi
from kueue_stand_in import requests
from operator_process import USER
from snapshot_cluster import wait_settled

from shoal_operator.engine.conditions import is_true
from shoal_operator.engine.permissions import CLUSTER_WIDE, WATCHED

pytestmark = pytest.mark.usefixtures("operator")

WORKLOAD = "sums-workload"
GPUS: dict[str, Any] = {
    "queueName": "research",
    "trainer": {"gpu": {"count": 2}},
    "inferencePools": [{"name": "pool", "replicas": 2, "gpu": {"count": 1}}],
}
"""A run of four GPUs."""


def pods(story: Story) -> list[Object]:
    """Pods that hold what they ask for."""
    return [
        each
        for each in story.kube.list("Pod", story.namespace)
        if each["status"].get("phase") not in ("Succeeded", "Failed")
    ]


def workload(story: Story, name: str = WORKLOAD) -> Object:
    return story.get("Workload", name)


def test_a_cluster_without_kueue_is_said_and_one_that_gets_it_admits_the_run(story: Story, kube: Kube) -> None:
    api = KueueApi(kube)
    if api.program is not None or is_installed(kube, "Workload"):
        pytest.skip("Kueue is there")
    story.create(**GPUS)
    story.wait_condition("TrainingRun", "sums", "Queued", "True", "install Kueue 0.15 or later")
    assert story.get("TrainingRun", "sums")["status"]["phase"] == "Queued"
    api.start()
    try:
        api.queue(story.namespace, 4)
        story.wait_condition("TrainingRun", "sums", "Queued", "False", "admits the run")
    finally:
        api.close()


@pytest.fixture(scope="module")
def since(whole_control_plane: ControlPlane) -> AuditLog:
    """What was asked since before Kueue was there: a watch of Workloads begins with it, and lasts."""
    log = AuditLog(whole_control_plane.audit_log)
    log.mark()
    return log


@pytest.fixture(scope="module")
def kueue(kube: Kube, since: AuditLog) -> Iterator[KueueApi]:
    made = KueueApi(kube)
    made.start()
    yield made
    made.close()


def test_the_whole_run_waits_and_is_admitted_onto_the_flavors_nodes(
    story: Story, kueue: KueueApi, since: AuditLog
) -> None:
    kueue.queue(story.namespace, 3, labels={"gpus": "h100"})
    story.create(**GPUS)
    story.wait_condition("TrainingRun", "sums", "Queued", "True", "insufficient unused quota")
    story.wait_for("the pod of prepare to have ended", lambda: not pods(story))
    assert story.kube.get("Job", "sums-trainer-1", story.namespace) is None
    assert story.get("InferencePool", "sums-pool")["spec"]["replicas"] == 0
    kueue.queue(story.namespace, 4, labels={"gpus": "h100"})
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    there = pods(story)
    assert len(there) == 9
    on_gpus = [each for each in there if requests(each["spec"]).get("nvidia.com/gpu")]
    assert len(on_gpus) == 3
    assert {each["spec"]["nodeSelector"]["gpus"] for each in on_gpus} == {"h100"}
    assert all(any(one["key"] == "gpu" for one in each["spec"]["tolerations"]) for each in on_gpus)
    assert not [key for each in there for key in each["metadata"]["labels"] if "kueue" in key]
    story.wait_for("PodsReady", lambda: is_true(workload(story), "PodsReady"))
    wait_settled(story)
    rows = {(named(row), verb) for row in (*WATCHED, *CLUSTER_WIDE) if row.group == GROUP for verb in row.verbs}
    asked = {(name, verb) for name, verb in rows if verb not in ("delete", "list")}
    story.wait_for("each permission on a Workload to be used", lambda: asked <= used(since, USER))


@pytest.mark.soak
def test_a_run_that_is_preempted_gives_way_and_goes_on_later(story: Story, kueue: KueueApi) -> None:
    kueue.queue(story.namespace, 4, preemption={"withinClusterQueue": "LowerPriority"})
    story.running(**GPUS)
    held = Reserved(story)
    story.play("urgent-prepare-*", hollow_node.succeeded)
    story.create("urgent", queuePriority=5, **GPUS)
    story.wait_condition("TrainingRun", "urgent", "Ready", "True")
    story.wait_condition("TrainingRun", "sums", "Queued", "True")
    held.look()
    story.progress("urgent", open_step=None, latest_version=4, complete=True)
    story.play("urgent-trainer-*", hollow_node.succeeded)
    story.wait_for("the urgent run to have ended", lambda: is_true(workload(story, "urgent-workload"), "Finished"))
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert story.get("TrainingRun", "sums")["status"]["trainer"]["failures"] == 0
    held.look()
    assert held.outside == []
    assert not [each for each in pods(story) if each["metadata"]["name"].startswith("urgent-")]


@pytest.mark.soak
def test_a_workload_that_was_orphaned_is_the_next_run_s(story: Story, kueue: KueueApi) -> None:
    kueue.queue(story.namespace, 4)
    story.running(**GPUS)
    first = workload(story)["metadata"]["uid"]
    story.kube.delete("TrainingRun", "sums", story.namespace, propagation="Orphan")
    story.wait_gone("TrainingRun", "sums")
    story.create(**GPUS)
    uid = story.get("TrainingRun", "sums")["metadata"]["uid"]
    story.wait_for(
        "the Workload to be the new run's",
        lambda: [each["uid"] for each in workload(story)["metadata"].get("ownerReferences", [])] == [uid],
    )
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert workload(story)["metadata"]["uid"] == first
    assert [each["metadata"]["name"] for each in story.kube.list("Workload", story.namespace)] == [WORKLOAD]


class Reserved:
    """Looks whether pods are there that no Workload has quota for."""

    def __init__(self, story: Story) -> None:
        self.story, self.outside = story, list[str]()

    def look(self) -> None:
        there = pods(self.story)
        for found in self.story.kube.list("Workload", self.story.namespace):
            run = found["metadata"]["name"].removesuffix("-workload")
            if not is_true(found, "QuotaReserved"):
                self.outside += [
                    each["metadata"]["name"] for each in there if each["metadata"]["labels"].get("shoal.dev/run") == run
                ]


@pytest.mark.soak
def test_a_pool_shrinks_and_grows_within_what_was_admitted(story: Story, kueue: KueueApi) -> None:
    kueue.queue(story.namespace, 5)
    pool = {"name": "pool", "replicas": 6, "minReplicas": 1, "gpu": {"count": 1}}
    story.running(**GPUS | {"inferencePools": [pool]})
    story.wait_field("StatefulSet", "sums-pool", "status.readyReplicas", 3)
    assert "3 of 6 pool-pool" in story.condition("TrainingRun", "sums", "Queued")["message"]
    story.kube.merge(
        "InferencePool", "sums-pool", story.namespace, {"spec": {"replicas": 2}}, sub="scale", manager="kubectl"
    )
    story.wait_field("StatefulSet", "sums-pool", "spec.replicas", 2)
    story.kube.merge(
        "InferencePool", "sums-pool", story.namespace, {"spec": {"replicas": 9}}, sub="scale", manager="kubectl"
    )
    story.wait_field("StatefulSet", "sums-pool", "spec.replicas", 3)
    wait_settled(story)


@pytest.mark.soak
def test_other_counts_a_deactivation_and_the_end(story: Story, kueue: KueueApi) -> None:
    kueue.queue(story.namespace, 8)
    story.running(**GPUS)
    first = workload(story)["metadata"]["uid"]
    story.edit(inferencePools=[{"name": "pool", "replicas": 4, "gpu": {"count": 1}}])
    story.wait_for(
        "another Workload",
        lambda: (
            (story.kube.get("Workload", WORKLOAD, story.namespace) or {}).get("metadata", {}).get("uid")
            not in (None, first)
        ),
    )
    story.wait_field("StatefulSet", "sums-pool", "status.readyReplicas", 4)
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    story.kube.merge("Workload", WORKLOAD, story.namespace, {"spec": {"active": False}})
    story.wait_condition("TrainingRun", "sums", "Queued", "True", "set it to true")
    story.wait_for(
        "its pods to be gone and its quota back",
        lambda: not pods(story) and not is_true(workload(story), "QuotaReserved"),
    )
    story.kube.merge("Workload", WORKLOAD, story.namespace, {"spec": {"active": True}})
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    story.edit(suspend=True)
    story.wait_gone("Workload", WORKLOAD)
    story.edit(suspend=False)
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    story.progress(open_step=None, latest_version=4, complete=True)
    story.play("sums-trainer-*", hollow_node.succeeded)
    story.wait_for("the Workload to be finished", lambda: is_true(workload(story), "Finished"))
    assert pods(story) == []


@pytest.mark.soak
def test_a_queue_that_does_not_exist_is_said_with_the_remedy(story: Story, kueue: KueueApi) -> None:
    story.create(**GPUS | {"queueName": "nowhere"})
    found = story.wait_condition("TrainingRun", "sums", "Queued", "True", "doesn't exist")
    assert "name another in spec.queueName" in found["message"]
    assert pods(story) == []
