"""The operator runs with exactly the permissions that it prints: enough for all it does, none that it never uses, none outside its namespaces."""

import time
from collections.abc import Iterator

import pytest
from cluster_story import Story
from control_plane import ControlPlane
from kube_audit import AuditLog, named, used
from kube_client import Kube
from kube_manifests import manifest
from kueue_api import GROUP as KUEUE_GROUP
from operator_process import OPERATOR_NAMESPACE, USER, StartOperator

from shoal_operator.engine.cluster import MAYBE_KINDS
from shoal_operator.engine.permissions import CLUSTER_WIDE, WATCHED
from shoal_operator.engine.permissions import OPERATOR_NAMESPACE as LEASES


@pytest.fixture
def elsewhere(kube: Kube) -> Iterator[str]:
    """Another namespace, not the operator's business."""
    name = f"elsewhere-{time.monotonic_ns()}"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    kube.delete("Namespace", name)


def test_a_namespaced_operator_serves_its_namespace_and_cannot_touch_another(
    story: Story,
    start_operator: StartOperator,
    control_plane: ControlPlane,
    kube: Kube,
    elsewhere: str,
    audit: AuditLog,
) -> None:
    start_operator("--namespace", story.namespace)
    kube.create(manifest("TrainingRun", "sums", elsewhere))
    # It may not list StorageClasses, which lie in no namespace, and does without: the claim itself says what is wrong.
    story.running(storeVolume={"storageClassName": "nobody-knows"})
    assert story.get("PersistentVolumeClaim", "sums-store")["spec"]["storageClassName"] == "nobody-knows"
    assert kube.list("ConfigMap", elsewhere, "app.kubernetes.io/managed-by=shoal-operator") == []
    assert "status" not in kube.get("TrainingRun", "sums", elsewhere)

    def may(verb: str, resource: str, namespace: str) -> bool:
        return (
            control_plane.kubectl("auth", "can-i", verb, resource, f"--as={USER}", "-n", namespace, check=False).strip()
            == "yes"
        )

    for verb, resource in (("list", "trainingruns.shoal.dev"), ("get", "secrets"), ("patch", "deployments.apps")):
        assert may(verb, resource, story.namespace)
        assert not may(verb, resource, elsewhere)
    assert not [request for request in audit.requests(USER) if request.namespace == elsewhere]
    assert not kube.list("ClusterRole", labels="app.kubernetes.io/name=shoal-operator")


def test_several_namespaces_are_served_by_one_operator(
    story: Story, start_operator: StartOperator, kube: Kube, elsewhere: str
) -> None:
    start_operator("--namespace", story.namespace, "--namespace", elsewhere)
    kube.create(manifest("TrainingRun", "other", elsewhere))
    story.running()
    story.wait_for("the other namespace's run", lambda: kube.get("Job", "other-prepare", elsewhere))


def everything(story: Story, kube: Kube) -> None:
    """A story that makes the operator do all that it can do."""
    story.running()
    story.edit(suspend=True)
    story.wait_condition("TrainingRun", "sums", "Suspended", "True")
    story.edit(suspend=False)
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    secret = {"accessKey": "YQ==", "secretKey": "Yg=="}
    kube.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3", "namespace": story.namespace}, "data": secret}
    )
    s3 = {"endpoint": "http://minio:9000", "bucket": "rollouts", "credentialsSecret": "s3"}
    story.running(
        "stored",
        storage={"s3": s3},
        relayServer={"exposure": {"type": "Ingress", "domain": "relays.example"}},
        ui={},
    )
    story.create("hard", tasks={"environment": "arithmetic", "count": 64, "offlineFilter": {"samples": 8}})
    story.wait_there("TrainingRun", "hard-filter")
    copied = story.get("ConfigMap", "sums-join")["data"]
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "copied", "namespace": story.namespace},
            "data": copied,
        }
    )
    kube.create(manifest("InferencePool", "far", story.namespace, joinConfigMap="copied"))
    story.wait_condition("InferencePool", "far", "Ready", "True")


def test_nothing_is_forbidden_to_it_and_every_permission_is_used(
    story: Story, start_operator: StartOperator, kube: Kube, audit: AuditLog
) -> None:
    operator = start_operator()
    everything(story, kube)
    assert not [
        request
        for request in audit.requests(USER)
        if request.status in (401, 403) and request.namespace == story.namespace
    ]
    asked = used(audit, USER)
    # The API server asks for itself whether blockOwnerDeletion and ownerReferences may be set: `/finalizers`, and `delete` of every child.
    rows = {
        (named(row), verb)
        for row in (*WATCHED, *CLUSTER_WIDE, *LEASES)
        for verb in row.verbs
        if not row.resource.endswith("/finalizers")
    }
    # Used where these are: test_queue_on_api_server.py, test_gateway_on_api_server.py, test_groups_on_api_server.py.
    elsewhere = {
        (named(row), verb)
        for row in (*WATCHED, *CLUSTER_WIDE)
        if row.group in (KUEUE_GROUP, *(version.partition("/")[0] for version in MAYBE_KINDS.values()))
        for verb in row.verbs
    }
    unused = sorted(f"{verb} {resource}" for resource, verb in rows - elsewhere - asked if verb != "delete")
    assert unused == [], "permissions that nothing uses"
    # What any authenticated account may do needs no row.
    beyond = {(resource, verb) for resource, verb in asked - rows if not resource.startswith(("/", "selfsubject"))}
    assert beyond == set()
    assert operator.is_healthy()


def test_its_account_may_do_nothing_else(
    start_operator: StartOperator, control_plane: ControlPlane, kube: Kube
) -> None:
    start_operator()
    for what in (
        "create pods",
        "delete pods",
        "get nodes",
        "list namespaces",
        "create clusterroles.rbac.authorization.k8s.io",
        "create pods/exec",
    ):
        verb, resource = what.split()
        answer = control_plane.kubectl(
            "auth", "can-i", verb, resource, f"--as={USER}", "-n", OPERATOR_NAMESPACE, check=False
        )
        assert answer.strip().startswith("no"), what
