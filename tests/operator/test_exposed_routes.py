"""A run behind a Gateway: what `Exposed` says of its routes, and that the rest of the run does not wait for them."""

from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import put, running, said, status

from shoal_operator.api.exposure import Exposure, GatewayRef
from shoal_operator.children.exposure import address_of, way_in
from shoal_operator.engine.cluster import Object
from shoal_operator.reconcile.routes import MOST_WORDS, verdict

GATEWAY = {"name": "public", "namespace": "edge"}
EXPOSURE = {"type": "Gateway", "domain": "runs.example.org", "gateway": GATEWAY}
BEHIND: dict[str, Any] = {"controlPlane": {"exposure": EXPOSURE}}
REF = GatewayRef(**GATEWAY)


def routes(cluster: MemoryCluster) -> list[str]:
    return [each["metadata"]["name"] for each in cluster.objects.find("HTTPRoute")]


def test_a_run_without_a_gateway_has_no_such_condition_and_asks_for_no_such_kind(cluster: MemoryCluster) -> None:
    cluster.lacks.add("HTTPRoute")
    running(cluster)
    assert "Exposed" not in {each["type"] for each in status(cluster)["conditions"]}


def test_a_cluster_that_lacks_the_kind_is_said_and_the_run_goes_on(cluster: MemoryCluster) -> None:
    cluster.lacks.add("HTTPRoute")
    put(cluster, **BEHIND)
    cluster.settle()
    assert said(cluster, "Exposed")["reason"] == "GatewayApiMissing", "while the run is prepared"
    running(cluster)
    assert said(cluster, "Ready")["status"] == "True"
    assert routes(cluster) == []
    cluster.lacks.clear()
    cluster.settle()
    assert routes(cluster) == ["sums-discovery-public", "sums-orchestrator-public"]
    assert said(cluster, "Exposed")["reason"] == "NotSeen"


def test_routes_go_with_the_type_and_what_ingress_made_goes_for_them(cluster: MemoryCluster) -> None:
    put(cluster, controlPlane={"exposure": {"type": "Ingress", "domain": "runs.example.org"}})
    running(cluster)
    assert cluster.objects.find("Ingress")
    put(cluster, **BEHIND)
    cluster.settle()
    cluster.pods_end()
    assert routes(cluster)
    assert cluster.objects.find("Ingress") == []
    put(cluster)
    cluster.settle()
    cluster.pods_end()
    assert routes(cluster) == []


def parent(status: str, reason: str, *, kind: str = "Accepted", generation: int = 2, **ref: str) -> Object:
    said = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": f"{reason} \n is why",
        "observedGeneration": generation,
    }
    return {"parentRef": GATEWAY | ref, "conditions": [said]}


@pytest.mark.parametrize(
    ("parents", "holds", "reason"),
    [
        ([], None, "NotSeen"),
        ([parent("True", "Accepted")], True, "RoutesAccepted"),
        ([parent("False", "NoMatchingParent")], False, "NoMatchingParent"),
        (
            [parent("True", "Accepted"), parent("False", "BackendNotFound", kind="ResolvedRefs")],
            False,
            "BackendNotFound",
        ),
        ([parent("Unknown", "Pending")], None, "NotSeen"),
        ([parent("False", "NoMatchingParent", generation=1)], None, "NotSeen"),
        ([parent("False", "NoMatchingParent", name="former")], None, "NotSeen"),
        ([parent("False", "NoMatchingParent", sectionName="other")], None, "NotSeen"),
        ([{}], None, "NotSeen"),
        ([{"parentRef": GATEWAY}], None, "NotSeen"),
    ],
)
def test_a_route_is_what_its_gateway_says_of_its_newest_spec(
    parents: list[Object], holds: bool | None, reason: str
) -> None:
    route = {"metadata": {"name": "way", "generation": 2}, "status": {"parents": parents}}
    found = verdict("way", REF, route, "research")
    assert (found.holds, found.reason) == (holds, reason)
    assert "\n" not in found.message


def test_a_gateway_without_a_namespace_is_in_the_run_s_own() -> None:
    said = {**parent("True", "Accepted"), "parentRef": {"name": "public"}}
    route = {"metadata": {"generation": 2}, "status": {"parents": [said]}}
    assert verdict("way", GatewayRef(name="public"), route, "research").holds


def test_a_controller_s_words_are_bounded() -> None:
    wrong = parent("False", "Invalid")
    wrong["conditions"][0]["message"] = "x" * 30_000
    route = {"metadata": {"generation": 2}, "status": {"parents": [wrong]}}
    assert len(verdict("way", REF, route, "research").message) < MOST_WORDS + 200


@pytest.mark.parametrize(
    ("protocol", "url"), [("HTTPS", "https://way.runs.example.org"), ("HTTP", "http://way.runs.example.org")]
)
def test_the_url_follows_the_listener(protocol: str, url: str) -> None:
    exposure = Exposure.model_validate(EXPOSURE | {"gateway": GATEWAY | {"protocol": protocol}})
    assert address_of("way", exposure, None, 8080) == url


def test_cert_manager_s_annotation_is_on_each_ingress_and_each_has_a_secret_of_its_own() -> None:
    asked = {"cert-manager.io/cluster-issuer": "letsencrypt"}
    exposure = Exposure.model_validate(
        {
            "type": "Ingress",
            "domain": "runs.example.org",
            "tlsSecret": "tls",
            "tlsSecrets": "PerHost",
            "annotations": asked,
        }
    )
    secrets = []
    for name in ("a", "b"):
        service, ingress = way_in(name, "sums", "relay", exposure, {}, ("http", 8080))
        assert "annotations" not in service["metadata"]
        assert ingress["metadata"]["annotations"] == asked
        secrets += [
            each["secretName"] for each in ingress["spec"]["tls"] if each["hosts"] == [f"{name}.runs.example.org"]
        ]
    assert secrets == ["tls-a", "tls-b"]
