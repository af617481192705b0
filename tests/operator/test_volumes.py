"""Claims of a run: which class and size each has, what is refused before anything is made, what grows, and what stays."""

from fractions import Fraction
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import put, running, said, status

from shoal_operator.api import TrainingRun
from shoal_operator.api.base import quantity_value
from shoal_operator.children.names import RETAIN_ANNOTATION
from shoal_operator.children.site import Site, at_site
from shoal_operator.engine.cluster import ClusterError, Object
from shoal_operator.reconcile import reconcile
from shoal_operator.reconcile.volumes import (
    ONE_NODE,
    SEVERAL_NODES,
    default_class,
    impossible,
    kept_and_grown,
    several_nodes,
    volumes_condition,
    wishes,
)

BLOCK, SHARED, UNKNOWN = "ebs.csi.aws.com", "nfs.csi.k8s.io", "example.org/new"


def storage_class(
    name: str, provisioner: str = BLOCK, *, default: bool = False, grows: bool = True, made: str = ""
) -> Object:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    metadata = {"name": name, "annotations": annotations, "creationTimestamp": made}
    return {"metadata": metadata, "provisioner": provisioner, "allowVolumeExpansion": grows}


def classes(*found: Object) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in found}


USUAL = classes(storage_class("block", default=True), storage_class("nfs", SHARED))


def claim(
    name: str = "sums-store", *, phase: str = "Bound", size: str = "20Gi", has: str = "20Gi", **status: Any
) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "block", "resources": {"requests": {"storage": size}}}
    made = {"phase": phase, **({"capacity": {"storage": has}} if phase == "Bound" else {}), **status}
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec, "status": made}


def fails(cluster: MemoryCluster) -> str:
    with pytest.raises(ClusterError) as caught:
        reconcile(cluster, "TrainingRun", "sums")
    return str(caught.value)


def store(cluster: MemoryCluster) -> Object:
    found = cluster.get("PersistentVolumeClaim", "sums-store")
    assert found is not None
    return found


# Before anything is made.


def test_a_class_that_does_not_exist_is_said_before_anything_is_made(cluster: MemoryCluster) -> None:
    cluster.classes = USUAL
    put(cluster, storeVolume={"storageClassName": "fast"})
    text = fails(cluster)
    assert text.startswith(
        "claim sums-store (spec.storeVolume) asks for StorageClass fast, which does not exist (there are block, nfs)"
    )
    assert said(cluster, "Ready") | {"reason": "StorageClassNotFound", "message": text} == said(cluster, "Ready")
    assert status(cluster)["phase"] == "Blocked"
    assert {kind: cluster.names(kind) for kind in ("Secret", "ConfigMap", "PersistentVolumeClaim", "Job")} == {
        "Secret": [], "ConfigMap": [], "PersistentVolumeClaim": [], "Job": [],
    }  # fmt: skip
    cluster.classes = USUAL | classes(storage_class("fast", SHARED))
    running(cluster)
    assert said(cluster, "Ready")["status"] == "True"
    assert store(cluster)["spec"]["storageClassName"] == "fast"


def test_a_default_class_of_one_node_cannot_hold_a_folder_store(cluster: MemoryCluster) -> None:
    cluster.classes = USUAL
    put(cluster)
    text = fails(cluster)
    assert (
        "must be ReadWriteMany, and the default StorageClass block (ebs.csi.aws.com) gives volumes to one node only"
        in text
    )
    for way in ("spec.storeVolume.storageClassName", "spec.storage.s3", "spec.storeVolume.accessMode to ReadWriteOnce"):
        assert way in text
    assert said(cluster, "Ready")["reason"] == "ReadWriteManyNotSupported"
    put(cluster, storeVolume={"accessMode": "ReadWriteOnce"})
    running(cluster)
    assert store(cluster)["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_all_that_is_wrong_is_said_at_once(cluster: MemoryCluster) -> None:
    cluster.classes = USUAL
    put(
        cluster,
        storeVolume={"storageClassName": "nfs"},
        trainer={"scratchVolume": {"storageClassName": "a"}},
        controlPlane={"redisVolume": {"storageClassName": "b"}},
        inferencePools=[{"weightsVolume": {"storageClassName": "c"}}],
    )
    text = fails(cluster)
    for field, name in (
        ("trainer.scratchVolume", "a"),
        ("controlPlane.redisVolume", "b"),
        ("inferencePools[0].weightsVolume", "c"),
    ):
        assert f"(spec.{field}) asks for StorageClass {name}," in text


def test_a_class_of_an_unknown_provisioner_is_a_doubt_and_no_refusal(cluster: MemoryCluster) -> None:
    cluster.classes = classes(storage_class("new", UNKNOWN, default=True))
    running(cluster)
    assert said(cluster, "VolumesReady")["status"] == "True", "a claim without a status waits for nothing"
    cluster.objects.set_status("PersistentVolumeClaim", "sums-store", {"phase": "Pending"})
    cluster.settle()
    found = said(cluster, "VolumesReady")
    assert (found["status"], found["reason"]) == ("Unknown", "ReadWriteManyNotKnown")
    assert "whether example.org/new can make one is not known here" in found["message"]
    assert said(cluster, "Ready")["status"] == "True"


def test_an_operator_that_may_not_read_classes_asks_for_nothing(cluster: MemoryCluster) -> None:
    put(cluster, storeVolume={"storageClassName": "fast"})
    running(cluster)
    assert said(cluster, "Ready")["status"] == "True"


def test_a_claim_that_is_there_is_not_asked_for(cluster: MemoryCluster) -> None:
    cluster.classes = USUAL
    cluster.objects.apply({**claim(), "apiVersion": "v1"})
    put(cluster)
    cluster.settle()
    assert "sums-prepare" in cluster.names("Job")


def test_a_part_whose_class_is_wrong_later_keeps_no_other_from_being_made(cluster: MemoryCluster) -> None:
    cluster.classes = classes(storage_class("nfs", SHARED, default=True))
    running(cluster)
    put(cluster, trackers={"tensorboard": {}, "volume": {"storageClassName": "gone"}}, ui={})
    text = fails(cluster)
    assert "claim tracks of StatefulSet sums-tracker asks for StorageClass gone" in text
    assert "sums-ui" in cluster.names("Deployment")
    assert "sums-tracker" not in cluster.names("StatefulSet")


def test_a_workload_is_not_deleted_whose_successor_could_not_have_its_claims(cluster: MemoryCluster) -> None:
    nfs = classes(storage_class("nfs", SHARED, default=True))
    cluster.classes = nfs | classes(storage_class("old", BLOCK))
    redis = {"redisVolume": {"storageClassName": "old"}}
    put(cluster, controlPlane=redis)
    running(cluster)
    cluster.classes = nfs
    put(cluster, controlPlane={"redisVolume": {"storageClassName": "old", "size": "2Gi"}})
    text = fails(cluster)
    assert "claim data of StatefulSet sums-redis asks for StorageClass old, which does not exist" in text
    assert "sums-redis" in cluster.names("StatefulSet")


def test_a_pool_says_itself_what_is_wrong_with_its_claims(cluster: MemoryCluster) -> None:
    cluster.classes = classes(storage_class("nfs", SHARED, default=True))
    running(cluster)
    spec = {"run": "sums", "pool": "far", "weightsVolume": {"storageClassName": "nvme"}}
    cluster.objects.apply(
        {"apiVersion": "shoal.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "far"}, "spec": spec}
    )
    with pytest.raises(ClusterError, match="claim key of StatefulSet far asks for StorageClass nvme"):
        reconcile(cluster, "InferencePool", "far")
    found = cluster.get("InferencePool", "far")
    assert found is not None
    assert found["status"]["conditions"][0]["reason"] == "StorageClassNotFound"


# What is known of classes.


@pytest.mark.parametrize(
    ("provisioner", "shared"),
    [("kubernetes.io/aws-ebs", False), ("rancher.io/local-path", False), ("efs.csi.aws.com", True),
     ("rook-ceph.cephfs.csi.ceph.com", True), ("cephfs.csi.ceph.com", True), ("kubernetes.io/no-provisioner", None),
     ("rook-ceph.rbd.csi.ceph.com", None), ("", None)],
)  # fmt: skip
def test_what_provisioners_are_known_to_do(provisioner: str, shared: bool | None) -> None:
    assert several_nodes({"provisioner": provisioner}) is shared


def test_no_provisioner_is_known_for_both() -> None:
    assert not ONE_NODE & SEVERAL_NODES


def test_the_newest_of_two_default_classes_counts() -> None:
    both = classes(
        storage_class("old", SHARED, default=True, made="2026-01-01T00:00:00Z"),
        storage_class("new", BLOCK, default=True, made="2026-02-01T00:00:00Z"),
    )
    assert default_class(both) == both["new"]
    wanted = {"accessModes": ["ReadWriteMany"]}
    assert impossible("claim a", wanted, both) is not None
    assert impossible("claim a", wanted | {"storageClassName": "old"}, both) is None


def test_without_classes_at_all_that_is_said() -> None:
    found = impossible("claim a", {"storageClassName": "b", "accessModes": ["ReadWriteOnce"]}, {})
    assert found is not None
    assert "(there is none)" in found.text


# What claims ask for.

VOLUMES: dict[str, Any] = {
    "storeVolume": {"size": "2Ti", "storageClassName": "nfs"},
    "trainer": {
        "scratchSize": "30Gi",
        "scratchVolume": {"storageClassName": "block"},
        "temporaryVolume": {"size": "9Gi"},
    },
    "prepare": {"temporaryVolume": {"storageClassName": "block"}},
    "validator": {"temporaryVolume": {"size": "7Gi"}},
    "controlPlane": {"redisVolume": {"size": "3Gi"}},
    "trackers": {"tensorboard": {}, "volume": {"size": "5Gi"}},
    "relayServer": {"cacheVolume": {"size": "50Gi", "storageClassName": "block"}},
    "inferencePools": [{"weightsVolume": {"size": "60Gi", "storageClassName": "block"}}],
}


def asked(cluster: MemoryCluster) -> dict[str, tuple[str, str | None]]:
    """Size and class of every claim, claim template and ephemeral claim."""
    found = {}
    for each in cluster.objects.find("PersistentVolumeClaim"):
        found[each["metadata"]["name"]] = each["spec"]
    for kind in ("StatefulSet", "Deployment", "Job"):
        for each in cluster.objects.find(kind):
            name = each["metadata"]["name"]
            for template in each["spec"].get("volumeClaimTemplates", []):
                found[f"{template['metadata']['name']}-{name}"] = template["spec"]
            for volume in each["spec"]["template"]["spec"]["volumes"]:
                if "ephemeral" in volume:
                    found[f"{volume['name']}-{name}"] = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
    return {
        name: (spec["resources"]["requests"]["storage"], spec.get("storageClassName")) for name, spec in found.items()
    }


def test_every_claim_has_the_class_and_size_that_its_volume_says(cluster: MemoryCluster) -> None:
    cluster.classes = USUAL
    put(cluster, **VOLUMES)
    running(cluster)
    assert asked(cluster) == {
        "sums-store": ("2Ti", "nfs"),
        "sums-outbox": ("30Gi", "block"),
        "sums-www": ("30Gi", "block"),
        "tmp-sums-trainer-1": ("9Gi", None),
        "tmp-sums-prepare": ("20Gi", "block"),
        "tmp-sums-validator": ("7Gi", None),
        "data-sums-redis": ("3Gi", None),
        "tracks-sums-tracker": ("5Gi", None),
        "www-sums-relay": ("50Gi", "block"),
        "key-sums-pool": ("1Mi", "block"),
        "weights-sums-pool": ("60Gi", "block"),
    }


def test_all_claims_of_a_run_are_looked_at_before_it_begins(cluster: MemoryCluster) -> None:
    """Those that workloads and pods make, too: each field of a volume is in the list."""
    put(cluster, **VOLUMES)
    live = cluster.get("TrainingRun", "sums")
    assert live is not None
    looked = {each.field for each in wishes(TrainingRun.model_validate(live))}
    assert looked == {
        "spec.storeVolume", "spec.trainer.scratchVolume", "spec.trainer.temporaryVolume", "spec.prepare.temporaryVolume",
        "spec.validator.temporaryVolume", "spec.controlPlane.redisVolume", "spec.trackers.volume", "spec.relayServer.cacheVolume",
        "spec.inferencePools[0].weightsVolume",
    }  # fmt: skip


def test_islands_beside_the_first_claim_their_scratch_where_it_has_a_volume(cluster: MemoryCluster) -> None:
    islands = {"count": 2, "innerSteps": 2}
    sft = {"dataset": {"path": "/data/traces"}, "epochs": 1, "batchRows": 4, "maxSequenceLength": 128}
    put(
        cluster,
        mode="SFT",
        sft=sft,
        trainer={"islands": islands, "scratchVolume": {"storageClassName": "block", "size": "4Gi"}},
    )
    running(cluster)
    assert asked(cluster)["outbox-sums-island-1"] == ("4Gi", "block")


def test_the_clusters_class_for_shared_claims_is_another_one_where_the_chart_says_so() -> None:
    site = Site(storage_class_name="block", shared_storage_class_name="nfs")

    def class_of(access_mode: str) -> str:
        spec = {"accessModes": [access_mode], "resources": {"requests": {"storage": "1Gi"}}}
        laid = at_site({"kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": spec}, site)
        found: str = laid["spec"]["storageClassName"]
        return found

    assert (class_of("ReadWriteMany"), class_of("ReadWriteOnce")) == ("nfs", "block")


# What exists.


def test_a_claim_grows_only_where_its_class_lets_it(cluster: MemoryCluster) -> None:
    cluster.classes = classes(storage_class("nfs", SHARED, default=True), storage_class("fixed", SHARED, grows=False))
    put(cluster, storeVolume={"size": "20Gi", "storageClassName": "fixed"})
    running(cluster)
    put(cluster, storeVolume={"size": "40Gi", "storageClassName": "fixed"})
    cluster.writes.clear()
    cluster.settle()
    found = said(cluster, "VolumesReady")
    assert (found["status"], found["reason"]) == ("False", "ClaimsNotGrown")
    assert found["message"].startswith(
        "claim sums-store cannot grow from 20Gi to 40Gi: StorageClass fixed does not allow it"
    )
    assert "PersistentVolumeClaim/sums-store" not in cluster.writes, (
        "the API server is not asked for what it would refuse"
    )
    assert said(cluster, "Ready")["status"] == "True"
    cluster.classes["fixed"]["allowVolumeExpansion"] = True
    cluster.settle()
    assert store(cluster)["spec"]["resources"]["requests"]["storage"] == "40Gi"
    assert said(cluster, "VolumesReady")["status"] == "True"


def test_a_smaller_size_is_refused_with_the_reason(cluster: MemoryCluster) -> None:
    put(cluster, storeVolume={"size": "40Gi"})
    running(cluster)
    put(cluster, storeVolume={"size": "20Gi"})
    cluster.settle()
    assert store(cluster)["spec"]["resources"]["requests"]["storage"] == "40Gi"
    found = said(cluster, "VolumesReady")
    assert (found["status"], found["reason"]) == ("False", "ClaimsNotShrunk")
    assert found["message"].startswith("claim sums-store has 40Gi and does not shrink to 20Gi: volumes only grow")


@pytest.mark.parametrize(
    ("wanted", "stored"),
    [("0.1Gi", "107374182400m"), ("1.1Gi", "1181116006400m"), ("0.7Ti", "769658139443200m"), ("1.5Gi", "1536Mi"), ("1000P", "1E")],
)  # fmt: skip
def test_a_size_that_an_api_server_writes_otherwise_is_the_same(wanted: str, stored: str) -> None:
    asked = claim(size=wanted)
    assert kept_and_grown(asked, asked, claim(size=stored, has=stored), dict)[1] == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("20e9", 20_000_000_000), ("1Ei", 1 << 60), ("100E", 10**20), ("2E2", 200), ("5u", Fraction(5, 1_000_000)), (7, 7)],
)  # fmt: skip
def test_every_quantity_of_an_api_server_is_read(text: str | int, value: Fraction) -> None:
    assert quantity_value(text) == value


@pytest.mark.parametrize("text", ["lots", "1e999999999", "1gi", "", "1.2.3"])
def test_what_is_no_quantity_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="a quantity is a number"):
        quantity_value(text)


def test_another_class_or_access_mode_is_told_and_the_claim_stays(cluster: MemoryCluster) -> None:
    put(cluster, storeVolume={"storageClassName": "nfs"})
    running(cluster)
    put(cluster, storeVolume={"storageClassName": "efs", "accessMode": "ReadWriteOnce", "size": "30Gi"})
    cluster.settle()
    spec = store(cluster)["spec"]
    assert (spec["storageClassName"], spec["accessModes"]) == ("nfs", ["ReadWriteMany"])
    assert spec["resources"]["requests"]["storage"] == "30Gi", "what can follow, follows"
    found = said(cluster, "VolumesReady")
    assert found["reason"] == "ClassKept"
    assert "keeps StorageClass nfs and does not become efs" in found["message"]
    assert "keeps access mode ReadWriteMany and does not become ReadWriteOnce" in found["message"]


@pytest.mark.parametrize(
    ("live", "status", "reason", "text"),
    [
        (claim(), "True", "ClaimsBound", ""),
        (claim(phase="Pending"), "Unknown", "ClaimsPending", "1 claims wait for a volume: sums-store"),
        (claim(phase="Lost"), "False", "VolumeLost", "what was in it is gone"),
        (claim(size="40Gi"), "False", "Resizing", "claim sums-store grows from 20Gi to 40Gi"),
        (claim(size="40Gi", conditions=[{"type": "FileSystemResizePending", "status": "True"}]), "False", "Resizing",
         "when its pod starts again"),
        (claim(size="40Gi", conditions=[{"type": "ControllerResizeError", "status": "True", "message": "quota"}]), "False",
         "ResizeFailed", "does not grow from 20Gi to 40Gi: quota"),
        (claim(size="40Gi", allocatedResourceStatuses={"storage": "NodeResizeInfeasible"}), "False", "ResizeFailed",
         "its driver cannot"),
    ],
    ids=["bound", "pending", "lost", "resizing", "pod must start", "error", "infeasible"],
)  # fmt: skip
def test_what_claims_do_is_in_the_condition(live: Object, status: str, reason: str, text: str) -> None:
    found = volumes_condition([live], [], lambda: None)
    assert (found["status"], found["reason"]) == (status, reason)
    assert text in found["message"]


def test_a_claim_without_class_waits_for_a_default_one() -> None:
    live = claim(phase="Pending")
    del live["spec"]["storageClassName"]
    found = volumes_condition([live], [], lambda: classes(storage_class("block")))
    assert (found["status"], found["reason"]) == ("Unknown", "NoDefaultStorageClass")


# What stays.


def test_a_retained_store_has_no_owner_and_the_rest_goes_with_the_run(cluster: MemoryCluster) -> None:
    put(cluster, storeVolume={"retain": True})
    running(cluster)
    assert "ownerReferences" not in store(cluster)["metadata"]
    cluster.objects.mark_deleted("TrainingRun", "sums", "2026-11-26T00:00:00Z")
    going = {each["metadata"]["name"] for each in cluster.objects.deleting() if each["kind"] == "PersistentVolumeClaim"}
    assert going == {"sums-outbox", "sums-www"}


def test_retention_can_be_taken_up_and_given_up_while_a_run_lives(cluster: MemoryCluster) -> None:
    running(cluster)
    assert store(cluster)["metadata"]["ownerReferences"]
    put(cluster, storeVolume={"retain": True})
    cluster.settle()
    assert "ownerReferences" not in store(cluster)["metadata"]
    put(cluster)
    cluster.settle()
    assert store(cluster)["metadata"]["ownerReferences"]


def test_a_new_run_writes_nothing_into_a_store_that_an_earlier_one_left(cluster: MemoryCluster) -> None:
    left = {**claim(), "apiVersion": "v1"}
    left["metadata"] |= {"annotations": {RETAIN_ANNOTATION: "true"}}
    cluster.objects.apply(left)
    put(cluster, storeVolume={"retain": True})
    text = fails(cluster)
    assert said(cluster, "Ready")["reason"] == "IdentityLost"
    assert text.endswith("start a new one after PersistentVolumeClaim sums-store, which keeps its store")
    assert cluster.names("Secret") == []


def test_claims_of_pods_are_kept_as_the_pool_says(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=[{"claimRetention": {"whenDeleted": "Retain", "whenScaled": "Delete"}}])
    running(cluster)
    found = {
        each["metadata"]["name"]: each["spec"]["persistentVolumeClaimRetentionPolicy"]
        for each in cluster.objects.find("StatefulSet")
    }
    assert found["sums-pool"] == {"whenDeleted": "Retain", "whenScaled": "Delete"}
    assert found["sums-relay"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}


def test_pods_of_a_pool_share_a_claim_of_the_admins_and_ask_for_no_volume_of_versions(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=[{"name": "pool", "replicas": 4, "weightsClaim": "node-a-weights"}])
    running(cluster)
    made = cluster.get("StatefulSet", "sums-pool")
    assert made is not None
    assert [each["metadata"]["name"] for each in made["spec"]["volumeClaimTemplates"]] == ["key"]
    pod = made["spec"]["template"]["spec"]
    [shared] = [each for each in pod["volumes"] if each["name"] == "weights"]
    assert shared == {"name": "weights", "persistentVolumeClaim": {"claimName": "node-a-weights"}}
    holders = [each["name"] for each in pod["containers"] if any(m["name"] == "weights" for m in each["volumeMounts"])]
    assert holders == ["fetch", "worker"]
    run = cluster.get("TrainingRun", "sums")
    assert run is not None
    assert not any("weights" in each.what for each in wishes(TrainingRun.model_validate(run)))
