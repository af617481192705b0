"""Claims on a real API server: its StorageClasses are read, its admission decides what grows, and its controllers collect."""

from collections.abc import Callable, Iterator

import pytest
from cluster_story import Story
from kube_client import Kube, Object, Refused
from operator_process import OperatorProcess

MakeClass = Callable[..., str]


@pytest.fixture
def make_class(kube: Kube, namespace: str) -> Iterator[MakeClass]:
    """Makes StorageClasses that end with the test; returns their names."""
    made: list[str] = []

    def make(name: str, provisioner: str, *, grows: bool = True) -> str:
        full = f"{name}-{namespace}"
        metadata = {"name": full}
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"}
        kube.create({**kind, "metadata": metadata, "provisioner": provisioner, "allowVolumeExpansion": grows})
        made.append(full)
        return full

    yield make
    for name in made:
        kube.delete("StorageClass", name)


def bind(story: Story, claim: str, size: str = "20Gi") -> None:
    """What the controller of volumes and a driver would do."""
    story.wait_there("PersistentVolumeClaim", claim)
    status = {"phase": "Bound", "capacity": {"storage": size}, "accessModes": ["ReadWriteMany"]}
    story.kube.merge("PersistentVolumeClaim", claim, story.namespace, {"status": status}, sub="status")


def test_a_class_that_does_not_exist_is_said_and_nothing_is_made_then_its_claim_grows(
    story: Story, operator: OperatorProcess, kube: Kube, make_class: MakeClass
) -> None:
    name = f"late-{story.namespace}"
    story.create(storeVolume={"storageClassName": name, "size": "20Gi"})
    found = story.wait_condition("TrainingRun", "sums", "Ready", "False", "StorageClassNotFound")
    assert f"claim sums-store (spec.storeVolume) asks for StorageClass {name}, which does not exist" in found["message"]
    assert story.managed() == {}, "not even keys"
    make_class("late", "nfs.csi.k8s.io")
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert story.get("PersistentVolumeClaim", "sums-store")["spec"]["storageClassName"] == name
    bind(story, "sums-store")
    story.edit(storeVolume={"size": "40Gi"})
    story.wait_field("PersistentVolumeClaim", "sums-store", "spec.resources.requests.storage", "40Gi")
    story.wait_condition(
        "TrainingRun", "sums", "VolumesReady", "False", "Resizing claim sums-store grows from 20Gi to 40Gi"
    )
    failed = {"type": "ControllerResizeError", "status": "True", "reason": "Quota", "message": "the export is full"}
    kube.merge(
        "PersistentVolumeClaim", "sums-store", story.namespace, {"status": {"conditions": [failed]}}, sub="status"
    )
    story.wait_condition("TrainingRun", "sums", "VolumesReady", "False", "ResizeFailed claim sums-store does not grow")
    grown = {"status": {"conditions": None, "capacity": {"storage": "40Gi"}}}
    kube.merge("PersistentVolumeClaim", "sums-store", story.namespace, grown, sub="status")
    story.wait_for(
        "the store's claim to be well",
        lambda: "sums-store" not in story.condition("TrainingRun", "sums", "VolumesReady")["message"],
    )
    story.edit(storeVolume={"size": "30Gi"})
    story.wait_condition(
        "TrainingRun", "sums", "VolumesReady", "False", "claim sums-store has 40Gi and does not shrink to 30Gi"
    )
    assert story.condition("TrainingRun", "sums", "Ready")["status"] == "True"


@pytest.mark.soak
def test_a_class_of_one_node_is_refused_for_a_store_of_several(
    story: Story, operator: OperatorProcess, make_class: MakeClass
) -> None:
    name = make_class("block", "ebs.csi.aws.com")
    story.create(storeVolume={"storageClassName": name})
    found = story.wait_condition("TrainingRun", "sums", "Ready", "False", "ReadWriteManyNotSupported")
    assert "(ebs.csi.aws.com) gives volumes to one node only" in found["message"]
    assert story.managed() == {}
    story.edit(storeVolume={"accessMode": "ReadWriteOnce"})
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert story.get("PersistentVolumeClaim", "sums-store")["spec"]["accessModes"] == ["ReadWriteOnce"]


@pytest.mark.soak
def test_an_unknown_provisioner_is_a_doubt_until_the_claim_is_bound(
    story: Story, operator: OperatorProcess, make_class: MakeClass
) -> None:
    name = make_class("new", "storage.example/new")
    small = {"storageClassName": name}
    story.running(storeVolume=small, trainer={"scratchVolume": small}, controlPlane={"redisVolume": small})
    story.wait_condition("TrainingRun", "sums", "VolumesReady", "Unknown", "ReadWriteManyNotKnown")
    for claim in ("sums-store", "sums-outbox", "sums-www", "data-sums-redis-0"):
        bind(story, claim)
    story.wait_condition("TrainingRun", "sums", "VolumesReady", "True", "ClaimsBound")


@pytest.mark.soak
def test_a_class_that_cannot_grow_is_named_and_the_api_server_would_have_refused(
    story: Story, operator: OperatorProcess, kube: Kube, make_class: MakeClass
) -> None:
    name = make_class("fixed", "nfs.csi.k8s.io", grows=False)
    story.running(storeVolume={"storageClassName": name})
    bind(story, "sums-store")
    larger = {"spec": {"resources": {"requests": {"storage": "40Gi"}}}}
    with pytest.raises(Refused, match="only dynamically provisioned pvc can be resized"):
        kube.merge("PersistentVolumeClaim", "sums-store", story.namespace, larger)
    story.edit(storeVolume={"size": "40Gi"})
    found = story.wait_condition("TrainingRun", "sums", "VolumesReady", "False", "ClaimsNotGrown")
    assert f"StorageClass {name} does not allow it" in found["message"]


@pytest.mark.soak
def test_claims_of_a_pool_grow_themselves_and_its_statefulset_is_made_anew_without_a_restart(
    story: Story, operator: OperatorProcess, make_class: MakeClass
) -> None:
    name = make_class("nvme", "ebs.csi.aws.com")
    pool: Object = {"name": "pool", "replicas": 1, "weightsVolume": {"storageClassName": name, "size": "20Gi"}}
    story.running(inferencePools=[pool])
    for each in ("weights", "key"):
        bind(story, f"{each}-sums-pool-0")
    pod = story.get("Pod", "sums-pool-0")["metadata"]["uid"]
    story.edit(inferencePools=[pool | {"weightsVolume": {"storageClassName": name, "size": "40Gi"}}])
    story.wait_field("PersistentVolumeClaim", "weights-sums-pool-0", "spec.resources.requests.storage", "40Gi")
    story.wait_condition("InferencePool", "sums-pool", "VolumesReady", "False", "Resizing")
    story.wait_for(
        "the template to be larger", lambda: "40Gi" in str(story.kube.get("StatefulSet", "sums-pool", story.namespace))
    )
    assert story.get("Pod", "sums-pool-0")["metadata"]["uid"] == pod


@pytest.mark.soak
def test_a_retained_store_outlives_its_run_and_no_other_run_writes_into_it(
    story: Story, operator: OperatorProcess, kube: Kube
) -> None:
    story.running(storeVolume={"retain": True})
    before = story.get("PersistentVolumeClaim", "sums-store")["metadata"]
    assert "ownerReferences" not in before
    kube.delete("TrainingRun", "sums", story.namespace, propagation="Foreground")
    story.wait_gone("TrainingRun", "sums")
    story.wait_gone("PersistentVolumeClaim", "sums-outbox")
    assert story.get("PersistentVolumeClaim", "sums-store")["metadata"]["uid"] == before["uid"]
    story.create(storeVolume={"retain": True})
    story.wait_condition("TrainingRun", "sums", "Ready", "False", "IdentityLost")
    kube.delete("PersistentVolumeClaim", "sums-store", story.namespace)
    story.wait_condition("TrainingRun", "sums", "Ready", "True")


@pytest.mark.soak
def test_a_retained_claim_is_taken_back_by_its_run_that_lives(story: Story, operator: OperatorProcess) -> None:
    story.running()
    story.edit(storeVolume={"retain": True})
    story.wait_for(
        "the claim to have no owner",
        lambda: "ownerReferences" not in story.get("PersistentVolumeClaim", "sums-store")["metadata"],
    )
    story.edit(storeVolume=None)
    story.wait_for(
        "the claim to have its owner again",
        lambda: story.get("PersistentVolumeClaim", "sums-store")["metadata"].get("ownerReferences"),
    )
