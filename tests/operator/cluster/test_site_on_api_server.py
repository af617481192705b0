"""What an admin sets for every run of a cluster (`--runs`), on a real API server with an operator of each test's own.

A policy of the API server plays OpenShift's restricted-v2: a namespace's pods have user ids of its own range, or leave them to admission.
`benchmarks/results/citizen.json` says how many parts of a run work so. No operator of a module is here: two would lead at once for a while.
"""

import json
from collections.abc import Iterator

import pytest
from cluster_story import Story
from kube_client import Kube
from operator_process import StartOperator, install_operator

from servers import ROOT
from shoal_operator.children import names


@pytest.fixture
def openshift(kube: Kube, namespace: str) -> Iterator[None]:
    """Admission that takes pods of this namespace only without user ids, or with those of the namespace's range."""
    path, name = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic", f"uids-{namespace}"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "validations": [
            {
                "expression": f"!has(object.spec.securityContext.{field}) || object.spec.securityContext.{field} >= 1000650000",
                "message": f"{field}: must be in the ranges: [1000650000, 1000659999]",
            }
            for field in ("runAsUser", "fsGroup")
        ],
    }
    group = "admissionregistration.k8s.io/v1"
    kube.call(
        "POST",
        f"{path}ies",
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
    )
    kube.call(
        "POST",
        f"{path}ybindings",
        {
            "apiVersion": group,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
            },
        },
    )
    yield
    kube.call("DELETE", f"{path}ybindings/{name}")
    kube.call("DELETE", f"{path}ies/{name}")


def test_a_run_works_where_a_namespace_has_user_ids_of_its_own(
    story: Story, openshift: None, start_operator: StartOperator, kube: Kube
) -> None:
    install_operator(kube, "--all-namespaces")
    start_operator("--all-namespaces", "--runs", '{"userIds": "Cluster"}', install_rbac=False)
    story.running()
    made = kube.list("Pod", story.namespace)
    assert {"runAsUser", "fsGroup"}.isdisjoint({key for pod in made for key in pod["spec"]["securityContext"]})
    figures = json.loads((ROOT / "benchmarks/results/citizen.json").read_text())
    parts = {pod["metadata"]["labels"][names.COMPONENT_LABEL] for pod in made}
    assert figures["openshift_uids"] == len(parts), sorted(parts)


def test_the_nodes_network_reaches_pods_where_an_admin_and_the_namespace_allow_it(
    story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    level = {"pod-security.kubernetes.io/enforce": "privileged"}
    kube.merge("Namespace", story.namespace, None, {"metadata": {"labels": level}})
    install_operator(kube, "--all-namespaces")
    start_operator("--all-namespaces", "--runs", '{"hostNetwork": true}', install_rbac=False)
    story.create(inferencePools=[{"name": "pool", "replicas": 1, "podTemplate": {"hostNetwork": True}}])
    assert story.wait_there("Pod", "sums-pool-0")["spec"]["hostNetwork"] is True
