"""The chart's examples of autoscalers on a real API server: it takes them, and refuses what is misspelt.

KEDA's own definition is not here; a stand-in has the shape that its documentation gives to a ScaledObject, and knows no other field.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from foreign_kinds import definition, fields, served
from kube_client import Kube, Object, Refused

from servers import ROOT

FOLDER = ROOT / "charts" / "shoal" / "files" / "autoscaling"


def text(**more: Any) -> Object:
    return {"type": "string", **more}


def whole(**more: Any) -> Object:
    return {"type": "integer", "format": "int32", **more}


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
        [],
        restoreToOriginalReplicaCount={"type": "boolean"},
        horizontalPodAutoscalerConfig=fields(
            [],
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
    with served(kube, definition("keda.sh/v1alpha1", "ScaledObject", fields([], spec=SCALED_OBJECT))):
        yield


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
