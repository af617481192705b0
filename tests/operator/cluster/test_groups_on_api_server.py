"""Engines over several pods as groups of a LeaderWorkerSet, with the real API server and controllers, and a stand-in for LeaderWorkerSet's own."""

from collections.abc import Iterator

import hollow_node
import pytest
from cluster_story import Story
from foreign_kinds import is_installed
from kube_audit import AuditLog, named, used
from kube_client import Kube, Object, Refused
from lws_api import Groups, environ, leader_worker_sets
from operator_process import USER
from snapshot_cluster import wait_settled

from shoal.contracts.hosts import EngineHost, engine_host
from shoal_operator.engine.kinds import GROUPS
from shoal_operator.engine.permissions import WATCHED

pytestmark = pytest.mark.usefixtures("operator")

GROUPED = {
    "name": "pool",
    "replicas": 2,
    "engine": {"tensorParallelSize": 2, "hosts": 2},
    "hostsBy": "LeaderWorkerSet",
}


def named_uids(story: Story, kind: str) -> dict[str, str]:
    """Uids of the pool's pods or claims that are not being deleted, by name."""
    found = [each["metadata"] for each in story.kube.list(kind, story.namespace, "shoal.dev/set=sums-pool")]
    return {each["name"]: each["uid"] for each in found if "deletionTimestamp" not in each}


def engines(count: int) -> set[str]:
    return {name for group in range(count) for name in (f"sums-pool-{group}", f"sums-pool-{group}-1")}


def claims(count: int) -> set[str]:
    return {f"{volume}-{pod}" for volume in ("key", "weights") for pod in engines(count)}


def wait_pods(story: Story, count: int) -> dict[str, str]:
    story.wait_for(f"pods of {count} engines", lambda: set(named_uids(story, "Pod")) == engines(count))
    return named_uids(story, "Pod")


def test_a_cluster_that_lacks_groups_or_their_controller_is_said_and_makes_no_stateful_set(
    story: Story, kube: Kube
) -> None:
    if is_installed(kube, "LeaderWorkerSet"):
        pytest.skip("LeaderWorkerSet is there")
    story.create(inferencePools=[GROUPED])
    story.wait_condition("InferencePool", "sums-pool", "Ready", "False", "install LeaderWorkerSet 0.8")
    with leader_worker_sets(kube, controller=False):
        story.wait_there("LeaderWorkerSet", "sums-pool")
        story.wait_condition("InferencePool", "sums-pool", "Ready", "False", "see that LeaderWorkerSet's controller")
        assert kube.get("StatefulSet", "sums-pool", story.namespace) is None
        controller = Groups(kube)
        controller.start()
        try:
            story.wait_condition("TrainingRun", "sums", "Ready", "True")
        finally:
            controller.close()


@pytest.fixture(scope="module")
def groups(kube: Kube) -> Iterator[None]:
    with leader_worker_sets(kube, says_generation=False):
        yield


def pod(story: Story, name: str) -> Object:
    return story.get("Pod", name)


@pytest.mark.usefixtures("groups")
def test_a_pods_end_makes_its_group_anew_with_the_same_volumes_and_touches_no_other(
    story: Story, kube: Kube, audit: AuditLog
) -> None:
    story.running(inferencePools=[GROUPED])
    before, volumes = wait_pods(story, 2), named_uids(story, "PersistentVolumeClaim")
    assert set(volumes) == claims(2)
    ready = story.wait_condition("InferencePool", "sums-pool", "Ready", "True")
    assert ready["message"] == "2 of 2 engines of 2 pods are ready"
    # Each pod finds its engine, by the headless Service that the operator made.
    leader = f"sums-pool-1.sums-pool.{story.namespace}"
    for name, number in (("sums-pool-1", 0), ("sums-pool-1-1", 1)):
        for container in ("agent", "worker"):
            found = engine_host(name, 2, environ(pod(story, name), container))
            assert found == EngineHost(number, 2, leader)
        spec = pod(story, name)["spec"]
        assert (spec["hostname"], spec["subdomain"]) == (name, "sums-pool")
    service = story.get("Service", "sums-pool")
    assert service["metadata"]["ownerReferences"][0]["kind"] == "InferencePool"
    policy = story.get("NetworkPolicy", "sums-pool-hosts")["spec"]["podSelector"]["matchLabels"]
    for selector in (policy, service["spec"]["selector"]):
        assert selector.items() <= pod(story, "sums-pool-1-1")["metadata"]["labels"].items()

    story.play("sums-pool-1-1", hollow_node.not_ready)
    story.wait_condition("InferencePool", "sums-pool", "Ready", "False", "1 of 2 engines of 2 pods are ready")
    kube.delete("Pod", "sums-pool-1-1", story.namespace)
    lost = {"sums-pool-1", "sums-pool-1-1"}
    story.wait_for(
        "the group anew",
        lambda: engines(2) <= set(now := named_uids(story, "Pod")) and all(now[name] != before[name] for name in lost),
    )
    story.play("sums-pool-1-1", hollow_node.ready)
    story.wait_field("InferencePool", "sums-pool", "status.readyReplicas", 2)
    after = named_uids(story, "Pod")
    assert {name for name in before if after[name] != before[name]} == lost
    assert named_uids(story, "PersistentVolumeClaim") == volumes

    wait_settled(story)
    kube.delete("TrainingRun", "sums", story.namespace)
    story.wait_gone("LeaderWorkerSet", "sums-pool")
    story.wait_for("pods to go", lambda: named_uids(story, "Pod") == {})
    story.wait_for("claims to go", lambda: named_uids(story, "PersistentVolumeClaim") == {})
    rows = {(named(row), verb) for row in WATCHED if row.resource == GROUPS.plural for verb in row.verbs}
    unused = sorted(verb for name, verb in rows - used(audit, USER) if verb not in ("list", "watch", "delete"))
    assert unused == []


@pytest.mark.usefixtures("groups")
def test_a_change_of_scale_is_of_whole_groups_and_a_pool_stays_with_its_controller(story: Story, kube: Kube) -> None:
    story.running(inferencePools=[GROUPED])
    before = wait_pods(story, 2)
    story.edit("sums-pool", "InferencePool", replicas=3)
    grown = wait_pods(story, 3)
    assert {name: grown[name] for name in before} == before
    story.wait_field("InferencePool", "sums-pool", "status.readyReplicas", 3)
    story.edit("sums-pool", "InferencePool", replicas=1, claimRetention={"whenScaled": "Delete"})
    small = wait_pods(story, 1)
    assert small == {name: before[name] for name in engines(1)}
    story.wait_field("InferencePool", "sums-pool", "status.replicas", 1)
    story.wait_for("claims to go", lambda: set(named_uids(story, "PersistentVolumeClaim")) == claims(1))
    with pytest.raises(Refused, match=r"hostsBy.*cannot come or go once the pool exists"):
        story.edit("sums-pool", "InferencePool", hostsBy=None)
    with pytest.raises(Refused, match="must keep hostsBy"):
        story.edit(inferencePools=[{key: value for key, value in GROUPED.items() if key != "hostsBy"}])
    # What makes each pod anew goes group by group, and what lies below is the group's controller's alone.
    story.edit("sums-pool", "InferencePool", podTemplate={"annotations": {"example.org/new": "yes"}})
    story.wait_for(
        "the pods anew",
        lambda: all(
            each["metadata"].get("annotations", {}).get("example.org/new") == "yes"
            for name in engines(1)
            if (each := kube.get("Pod", name, story.namespace)) is not None
        ),
    )
    story.wait_field("InferencePool", "sums-pool", "status.readyReplicas", 1)
    wait_settled(story)
