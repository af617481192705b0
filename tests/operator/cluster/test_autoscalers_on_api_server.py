"""The chart's examples of autoscalers on a real API server: it takes them, and refuses what is misspelt.

KEDA's own definition is not here; a stand-in has the shape that its documentation gives to a ScaledObject, and knows no other field.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kube_client import Kube, Object, Refused

from servers import ROOT, wait_until

FOLDER = ROOT / "charts" / "shoal" / "files" / "autoscaling"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def text(**more: Any) -> Object:
    return {"type": "string", **more}


def whole(**more: Any) -> Object:
    return {"type": "integer", "format": "int32", **more}


def fields(required: list[str] | None = None, **properties: Object) -> Object:
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


TRIGGER = fields(
    ["type", "metadata"],
    type=text(),
    name=text(),
    useCachedMetrics={"type": "boolean"},
    metadata={"type": "object", "additionalProperties": text()},
    authenticationRef=fields(["name"], name=text(), kind=text()),
    metricType=text(),
)
SCALED_OBJECT = fields(
    ["scaleTargetRef", "triggers"],
    scaleTargetRef=fields(["name"], name=text(), apiVersion=text(), kind=text(), envSourceContainerName=text()),
    pollingInterval=whole(),
    cooldownPeriod=whole(),
    initialCooldownPeriod=whole(),
    idleReplicaCount=whole(),
    minReplicaCount=whole(),
    maxReplicaCount=whole(),
    advanced=fields(
        restoreToOriginalReplicaCount={"type": "boolean"},
        horizontalPodAutoscalerConfig=fields(
            name=text(),
            # As in a HorizontalPodAutoscaler, which the API server knows.
            behavior={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        ),
    ),
    fallback=fields(["failureThreshold", "replicas"], failureThreshold=whole(), replicas=whole()),
    triggers={"type": "array", "items": TRIGGER},
)


@pytest.fixture(scope="module")
def keda(kube: Kube) -> Iterator[None]:
    """The kind ScaledObject."""
    names = {
        "kind": "ScaledObject",
        "listKind": "ScaledObjectList",
        "plural": "scaledobjects",
        "singular": "scaledobject",
    }
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": fields(spec=SCALED_OBJECT)},
    }
    spec = {"group": "keda.sh", "scope": "Namespaced", "names": names, "versions": [version]}
    group = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    kube.call("POST", CRDS, {**group, "metadata": {"name": "scaledobjects.keda.sh"}, "spec": spec})

    def is_served() -> bool:
        try:
            kube.call("GET", "/apis/keda.sh/v1alpha1/scaledobjects")
        except Refused:
            return False
        return True

    wait_until("ScaledObjects to be served", is_served, 30.0)
    yield
    kube.call("DELETE", f"{CRDS}/scaledobjects.keda.sh")


def documents(name: str) -> list[Object]:
    return [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if "kind" in each]


def apply(kube: Kube, namespace: str, made: Object) -> Object:
    """Server-side apply that refuses unknown fields."""
    group, kind = made["apiVersion"], made["kind"]
    path = f"/apis/{group}/namespaces/{namespace}/{kind.lower()}s"
    return kube.call("POST", path, made, params={"fieldValidation": "Strict"})


@pytest.mark.usefixtures("keda")
@pytest.mark.parametrize("name", ["hpa.yaml", "keda.yaml"])
def test_the_api_server_takes_them_and_refuses_a_misspelt_field(kube: Kube, namespace: str, name: str) -> None:
    for made in documents(name):
        stored = apply(kube, namespace, made)
        assert stored["spec"]["scaleTargetRef"]["name"].startswith("arithmetic-")
        wrong = {**made, "metadata": {"name": "wrong"}, "spec": {**made["spec"], "maxReplica": 3}}
        with pytest.raises(Refused, match="maxReplica"):
            apply(kube, namespace, wrong)
