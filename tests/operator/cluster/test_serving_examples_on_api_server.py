"""The examples of serving on a real API server: it takes them strictly, in a namespace where Pod Security is restricted.

KServe's own definition is not here. Its predictor is the spec of a pod beside a few fields of its own, so the API server is asked about the pod.
"""

from typing import Any

import pytest
import yaml
from kube_client import Kube, Object, Refused

from servers import ROOT

FOLDER = ROOT / "examples" / "serving"
KSERVE_FIELDS = {"minReplicas", "maxReplicas"}
STRICT = {"fieldValidation": "Strict", "dryRun": "All"}


def documents(name: str) -> list[Object]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pod_specs() -> dict[str, Object]:
    [deployment, _] = documents("deployment.yaml")
    [service] = documents("inferenceservice.yaml")
    predictor: dict[str, Any] = service["spec"]["predictor"]
    return {
        "deployment": deployment["spec"]["template"]["spec"],
        "inferenceservice": {key: value for key, value in predictor.items() if key not in KSERVE_FIELDS},
    }


def test_the_deployment_and_its_service_are_taken(kube: Kube, namespace: str) -> None:
    for made, group in zip(documents("deployment.yaml"), ("/apis/apps/v1", "/api/v1"), strict=True):
        kube.call("POST", f"{group}/namespaces/{namespace}/{made['kind'].lower()}s", made, params=STRICT)


@pytest.fixture
def with_account(kube: Kube, namespace: str) -> str:
    """The namespace, with the account that pods have unless they say another."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    try:
        kube.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    except Refused as refused:
        if refused.status != 409:  # else a controller was quicker
            raise
    return namespace


@pytest.mark.parametrize("name", ["deployment", "inferenceservice"])
def test_the_pod_is_taken_where_pod_security_is_restricted(kube: Kube, with_account: str, name: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_specs()[name]}
    path = f"/api/v1/namespaces/{with_account}/pods"
    kube.call("POST", path, pod, params=STRICT)
    with pytest.raises(Refused, match="volume"):
        kube.call("POST", path, {**pod, "spec": {**pod["spec"], "volume": []}}, params=STRICT)
    with pytest.raises(Refused, match="violates PodSecurity"):
        kube.call("POST", path, {**pod, "spec": {**pod["spec"], "hostNetwork": True}}, params=STRICT)


def test_both_examples_run_the_same_pod() -> None:
    expected = pod_specs()["deployment"]
    [container] = expected["containers"]
    container |= {"name": "kserve-container", "ports": [{"name": "http1", "containerPort": 8000, "protocol": "TCP"}]}
    for probe in ("startupProbe", "readinessProbe"):
        container[probe]["httpGet"]["port"] = 8000
    assert pod_specs()["inferenceservice"] == expected
