"""Tenants on the API server: what people of a namespace may do with runs by Kubernetes' own roles, and what the operator cannot read of others."""

import json
from collections.abc import Callable

import httpx
import pytest
from cluster_story import Story
from control_plane import ControlPlane
from kube_client import Kube, Refused, make_namespace, path_of
from kube_manifests import manifest, run
from operator_process import ACCOUNT, OPERATOR_NAMESPACE, StartOperator

from servers import wait_until
from shoal_operator.install import aggregated


def person(plane: ControlPlane, kube: Kube, namespace: str, role: str) -> Kube:
    """A client of an account that has one of Kubernetes' roles in one namespace, and nothing else."""
    account = {"kind": "ServiceAccount", "name": f"a-{role}", "namespace": namespace}
    kube.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account["name"], "namespace": namespace}}
    )
    kube.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": account["name"], "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [account],
        }
    )
    return Kube(plane.account_kubeconfig(kube, namespace, account["name"]))


def may_list(one: Kube, namespace: str) -> bool:
    """Whether a person may list runs by now. 429: the API server begins anew with a kind whose CRD was just changed."""
    try:
        one.list("TrainingRun", namespace)
    except Refused as answer:
        if answer.status not in (403, 429):
            raise
        return False
    return True


def refused(call: Callable[..., object], *arguments: object, **more: object) -> bool:
    """Whether the API server forbids a request."""
    try:
        call(*arguments, **more)
    except Refused as error:
        if error.status != 403:
            raise
        return True
    return False


@pytest.mark.parametrize("role", ["admin", "edit"])
def test_whoever_may_edit_a_namespace_may_make_change_scale_and_delete_its_runs_there_only(
    whole_control_plane: ControlPlane, kube: Kube, namespace: str, role: str
) -> None:
    for role_for_people in aggregated():
        kube.apply(role_for_people, manager="installer", force=True)
    one = person(whole_control_plane, kube, namespace, role)
    elsewhere = make_namespace(kube)
    wait_until("the roles to be joined", lambda: may_list(one, namespace), 60.0)
    one.create(run(namespace, "theirs"))
    one.create(manifest("InferencePool", "pool", namespace, run="theirs"))
    one.merge("TrainingRun", "theirs", namespace, {"spec": {"suspend": True}})
    one.merge("InferencePool", "pool", namespace, {"spec": {"replicas": 3}}, sub="scale")
    scaled = kube.get("InferencePool", "pool", namespace)
    assert scaled is not None
    assert scaled["spec"]["replicas"] == 3
    assert refused(one.merge, "TrainingRun", "theirs", namespace, {"status": {"policyVersion": 999}}, sub="status")
    for kind in ("TrainingRun", "InferencePool", "RelayServer", "Validator"):
        assert refused(one.list, kind, elsewhere)
        assert refused(one.list, kind)
    assert refused(one.create, run(elsewhere))
    for kind, name in (("InferencePool", "pool"), ("TrainingRun", "theirs")):
        one.delete(kind, name, namespace)
    assert kube.list("TrainingRun", namespace) == []
    one.close()
    kube.delete("Namespace", elsewhere)


def test_whoever_may_view_a_namespace_sees_its_runs_and_changes_none(
    whole_control_plane: ControlPlane, kube: Kube, namespace: str
) -> None:
    for role_for_people in aggregated():
        kube.apply(role_for_people, manager="installer", force=True)
    kube.create(run(namespace, "seen"))
    one = person(whole_control_plane, kube, namespace, "view")
    wait_until("the roles to be joined", lambda: may_list(one, namespace), 60.0)
    assert one.get("TrainingRun", "seen", namespace) is not None
    assert refused(one.create, run(namespace, "theirs"))
    assert refused(one.merge, "TrainingRun", "seen", namespace, {"spec": {"suspend": True}})
    assert refused(one.delete, "TrainingRun", "seen", namespace)
    assert refused(one.list, "Secret", namespace)
    one.close()
    kube.delete("TrainingRun", "seen", namespace)


def test_a_namespaced_operator_is_refused_the_secrets_of_every_other_namespace(
    story: Story, start_operator: StartOperator, control_plane: ControlPlane, kube: Kube
) -> None:
    start_operator("--namespace", story.namespace)
    operator = Kube(control_plane.account_kubeconfig(kube, OPERATOR_NAMESPACE, ACCOUNT))
    elsewhere = make_namespace(kube)
    kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": elsewhere}})
    assert not refused(operator.list, "Secret", story.namespace)
    for namespace in (elsewhere, OPERATOR_NAMESPACE, "kube-system", None):
        assert refused(operator.list, "Secret", namespace), namespace
    assert refused(operator.get, "Secret", "theirs", elsewhere)
    assert refused(operator.create, run(elsewhere))
    with pytest.raises((Refused, httpx.HTTPError), match="403"):
        next(operator.watch("Secret", "0", seconds=1))
    operator.close()
    kube.delete("Namespace", elsewhere)


def test_a_run_nested_as_deep_as_the_api_server_takes_holds_up_no_other(
    story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    start_operator()
    text = json.dumps(run(story.namespace, "deep", trainer={"podTemplate": {"affinity": {"podAffinity": "DEEP"}}}))
    body = text.replace('"DEEP"', '{"a":' * 9_900 + "{}" + "}" * 9_900)
    headers = {"Content-Type": "application/json"}
    assert kube.http.post(path_of("TrainingRun", story.namespace), content=body, headers=headers).status_code == 201
    story.running("other")
    deep = path_of("TrainingRun", story.namespace, "deep")
    wait_until("it to be told", lambda: "spec: nested more than 250 levels deep" in kube.http.get(deep).text, 30.0)
    assert kube.http.delete(deep).status_code == 200
