"""The control plane of these tests is a real one: what the other tests rest on."""

import pytest
from control_plane import ControlPlane
from kube_client import Kube, Object, Refused


def pod(namespace: str, **security: object) -> Object:
    container = {"name": "c", "image": "none", "securityContext": security}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"containers": [container]},
    }


def test_pods_that_are_not_restricted_are_refused(kube: Kube, namespace: str) -> None:
    with pytest.raises(Refused, match='violates PodSecurity "restricted'):
        kube.create(pod(namespace))


def test_what_is_owned_is_collected(kube: Kube, namespace: str, deadline) -> None:
    owner = kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o", "namespace": namespace}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": owner["metadata"]["uid"]}
    metadata = {"name": "owned", "namespace": namespace, "ownerReferences": [reference]}
    kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    kube.delete("ConfigMap", "o", namespace)
    deadline("the owned Secret to be collected", lambda: kube.get("Secret", "owned", namespace) is None)


def test_it_survives_the_death_of_its_api_server(control_plane: ControlPlane, kube: Kube, namespace: str) -> None:
    kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "namespace": namespace}})
    control_plane.api_server.kill()
    control_plane.start_api_server()
    assert kube.get("ConfigMap", "kept", namespace)


def test_kubectl_knows_the_kinds_by_their_short_names(control_plane: ControlPlane, kube: Kube) -> None:
    assert {"trun", "ipool", "relay", "val"} <= set(
        control_plane.kubectl("api-resources", "--api-group=shoal.dev").split()
    )
