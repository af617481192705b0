"""Others write to the same objects: what is ours is repaired, what is theirs is left alone, and an autoscaler is not fought."""

import time

import pytest
from cluster_story import Story
from control_plane import ControlPlane
from kube_audit import AuditLog
from kube_client import Kube, Object, Refused

pytestmark = pytest.mark.usefixtures("operator")

QUIET_SECONDS = 3.0
"""Longer than the operator needs to answer an event by far; a fight would show in it."""


def test_a_field_that_someone_changed_is_changed_back(story: Story, kube: Kube) -> None:
    story.running()
    patch = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
    kube.merge("Deployment", "sums-orchestrator", story.namespace, patch, manager="meddler")
    story.wait_for(
        "the grace period to be ours again",
        lambda: (
            story.get("Deployment", "sums-orchestrator")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            != 1
        ),
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ConfigMap", "sums-config"),
        ("Service", "sums-discovery"),
        ("Deployment", "sums-orchestrator"),
        ("StatefulSet", "sums-pool"),
        ("InferencePool", "sums-pool"),
    ],
)
def test_a_child_that_was_deleted_is_made_again(story: Story, kube: Kube, kind: str, name: str) -> None:
    story.running()
    before = story.get(kind, name)["metadata"]["uid"]
    kube.delete(kind, name, story.namespace)
    story.wait_for(
        f"another {kind} {name}",
        lambda: (kube.get(kind, name, story.namespace) or {}).get("metadata", {}).get("uid") not in (None, before),
    )
    story.wait_condition("TrainingRun", "sums", "Ready", "True")


def test_what_others_add_is_left_alone(story: Story, kube: Kube, audit: AuditLog) -> None:
    story.running()
    added: Object = {"metadata": {"annotations": {"team.example/cost-centre": "7"}, "labels": {"team": "sums"}}}
    kube.merge("Deployment", "sums-orchestrator", story.namespace, added, manager="accountant")
    audit.mark()
    time.sleep(QUIET_SECONDS)
    live = story.get("Deployment", "sums-orchestrator")["metadata"]
    assert live["annotations"]["team.example/cost-centre"] == "7"
    assert live["labels"]["team"] == "sums"
    written = [request for request in audit.writes("shoal-operator") if request.name == "sums-orchestrator"]
    assert written == [], "the operator wrote although nothing of its own had changed"


def test_a_field_that_another_manager_took_by_force_is_taken_back_once(story: Story, kube: Kube) -> None:
    story.running()
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "sums-validator", "namespace": story.namespace},
        "spec": {"replicas": 5},
    }
    kube.apply(theirs, manager="rival", force=True)
    story.wait_field("Deployment", "sums-validator", "spec.replicas", 1)
    version = story.get("Deployment", "sums-validator")["spec"]
    time.sleep(QUIET_SECONDS)
    assert story.get("Deployment", "sums-validator")["spec"] == version
    # A manager that does not force is told of the conflict by the API server, and nothing is stuck.
    story.edit(validator={"replicas": 2})
    story.wait_field("Deployment", "sums-validator", "spec.replicas", 2)


def test_kubectl_scale_of_a_runs_pool_stands(story: Story, control_plane: ControlPlane) -> None:
    story.running()
    control_plane.kubectl("scale", "ipool/sums-pool", "--replicas=4", "-n", story.namespace)
    story.wait_field("StatefulSet", "sums-pool", "spec.replicas", 4)
    story.wait_field("InferencePool", "sums-pool", "status.replicas", 4)
    # An edit of something else must not scale it back.
    story.edit(recipe={"learningRate": 1e-5})
    story.wait_there("Job", "sums-trainer-2")
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    time.sleep(QUIET_SECONDS)
    assert story.get("InferencePool", "sums-pool")["spec"]["replicas"] == 4
    assert story.get("StatefulSet", "sums-pool")["spec"]["replicas"] == 4


def test_an_autoscaler_has_the_replicas_to_itself(story: Story, kube: Kube) -> None:
    """As a HorizontalPodAutoscaler does: read the scale with its selector, write it, again and again; anew where the object has changed."""
    story.running()
    path = f"/apis/shoal.dev/v1alpha1/namespaces/{story.namespace}/inferencepools/sums-pool/scale"

    def is_written(replicas: int) -> bool:
        scale = kube.call("GET", path)
        assert "shoal.dev/set=sums-pool" in scale["status"]["selector"]
        try:
            kube.call("PUT", path, scale | {"spec": {"replicas": replicas}}, params={"fieldManager": "hpa"})
        except Refused as refused:
            if refused.status != 409:
                raise
            return False
        return True

    for wanted in (3, 5, 1):
        story.wait_for("the scale to be written", lambda wanted=wanted: is_written(wanted))
        story.wait_field("StatefulSet", "sums-pool", "spec.replicas", wanted)
        story.wait_for(
            "the scale's own count", lambda wanted=wanted: kube.call("GET", path)["status"]["replicas"] == wanted
        )
        assert story.get("InferencePool", "sums-pool")["spec"]["replicas"] == wanted
    pods = kube.list("Pod", story.namespace, kube.call("GET", path)["status"]["selector"])
    assert [pod["metadata"]["name"] for pod in pods] == ["sums-pool-0"]


def test_suspension_remembers_the_number_that_the_autoscaler_chose(story: Story, control_plane: ControlPlane) -> None:
    story.running()
    control_plane.kubectl("scale", "ipool/sums-pool", "--replicas=3", "-n", story.namespace)
    story.wait_field("StatefulSet", "sums-pool", "status.readyReplicas", 3)
    story.edit(suspend=True)
    story.wait_field("StatefulSet", "sums-pool", "spec.replicas", 0)
    story.edit(suspend=False)
    story.wait_field("StatefulSet", "sums-pool", "spec.replicas", 3)


def test_immutable_objects_are_replaced_and_their_pods_keep_running(story: Story, kube: Kube) -> None:
    story.running()
    pods = {pod["metadata"]["uid"] for pod in kube.list("Pod", story.namespace, "shoal.dev/set=sums-pool")}
    before = story.get("StatefulSet", "sums-pool")["metadata"]["uid"]
    pool = story.get("TrainingRun", "sums")["spec"]["inferencePools"][0]
    story.edit(inferencePools=[pool | {"weightsSize": "30Gi"}])
    story.wait_for(
        "the StatefulSet to be another with larger volumes",
        lambda: (
            (found := kube.get("StatefulSet", "sums-pool", story.namespace)) is not None
            and found["metadata"]["uid"] != before
            and any("30Gi" in str(claim) for claim in found["spec"]["volumeClaimTemplates"])
        ),
    )
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    after = {pod["metadata"]["uid"] for pod in kube.list("Pod", story.namespace, "shoal.dev/set=sums-pool")}
    assert after == pods, "a pool's pods were stopped although only their volumes' template changed"
    # No volume is behind these claims, so the API server refuses to let them grow; the pool says so and goes on.
    story.wait_condition("InferencePool", "sums-pool", "VolumesReady", "False", "cannot grow")
