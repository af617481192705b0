"""Engines over several pods, with the real controllers: what a pod's end and a change of scale do to other engines."""

import hollow_node
import pytest
from cluster_story import Story

pytestmark = pytest.mark.usefixtures("operator")

WIDE = {"name": "pool", "replicas": 2, "engine": {"tensorParallelSize": 2, "hosts": 2}}


def uids(story: Story) -> dict[str, str]:
    """Uids of the pool's pods that are not being deleted, by name."""
    found = [pod["metadata"] for pod in story.kube.list("Pod", story.namespace, "shoal.dev/set=sums-pool")]
    return {each["name"]: each["uid"] for each in found if "deletionTimestamp" not in each}


def wait_pods(story: Story, count: int) -> dict[str, str]:
    expected = {f"sums-pool-{number}" for number in range(count)}
    story.wait_for(f"{count} pods", lambda: set(uids(story)) == expected)
    return uids(story)


def test_a_pods_end_costs_its_own_engine_and_no_other(story: Story) -> None:
    story.running(inferencePools=[WIDE])
    before = wait_pods(story, 4)
    story.play("sums-pool-1", hollow_node.not_ready)
    story.wait_field("InferencePool", "sums-pool", "status.readyReplicas", 1)
    story.wait_condition("InferencePool", "sums-pool", "Ready", "False", "1 of 2 engines of 2 pods are ready")
    story.kube.delete("Pod", "sums-pool-1", story.namespace)
    story.wait_for("the pod anew", lambda: uids(story).get("sums-pool-1") not in (None, before["sums-pool-1"]))
    story.play("sums-pool-1", hollow_node.ready)
    story.wait_field("InferencePool", "sums-pool", "status.readyReplicas", 2)
    after = uids(story)
    assert {name for name in before if after[name] != before[name]} == {"sums-pool-1"}


def test_a_change_of_scale_takes_or_adds_whole_engines(story: Story) -> None:
    story.running(inferencePools=[WIDE])
    before = wait_pods(story, 4)
    story.edit("sums-pool", "InferencePool", replicas=3)
    story.wait_field("InferencePool", "sums-pool", "status.readyReplicas", 3)
    grown = wait_pods(story, 6)
    assert {name: grown[name] for name in before} == before
    story.edit("sums-pool", "InferencePool", replicas=1)
    small = wait_pods(story, 2)
    assert small == {name: before[name] for name in ("sums-pool-0", "sums-pool-1")}
    story.wait_field("InferencePool", "sums-pool", "status.replicas", 1)
    story.wait_field("TrainingRun", "sums", "status.phase", "Running")
