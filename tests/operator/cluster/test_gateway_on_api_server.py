"""A run behind a Gateway on a real API server: routes where the cluster has HTTPRoutes, and words where it lacks them or a Gateway refuses one."""

from collections.abc import Iterator
from typing import Any

import pytest
from cluster_story import Story
from foreign_kinds import is_installed
from gateway_api import httproutes, say
from kube_audit import AuditLog, named, used
from kube_client import Kube
from operator_process import USER
from snapshot_cluster import wait_settled

from shoal_operator.engine.kinds import ROUTE
from shoal_operator.engine.permissions import WATCHED

pytestmark = pytest.mark.usefixtures("operator")

EXPOSURE: dict[str, Any] = {
    "type": "Gateway",
    "domain": "runs.example.org",
    "gateway": {"name": "public", "namespace": "edge", "sectionName": "https"},
}
EXPOSED: dict[str, Any] = {
    "controlPlane": {"exposure": EXPOSURE},
    "relayServer": {"replicas": 1, "exposure": EXPOSURE},
    "ui": {"exposure": EXPOSURE},
}
ROUTES = {"sums-discovery-public", "sums-orchestrator-public", "sums-relay-0", "sums-ui-public"}


def routes(story: Story) -> set[str]:
    return {each["metadata"]["name"] for each in story.kube.list("HTTPRoute", story.namespace)}


def test_a_cluster_without_the_gateway_api_is_said_and_one_that_gets_it_has_the_routes(
    story: Story, kube: Kube
) -> None:
    if is_installed(kube, "HTTPRoute"):
        pytest.skip("the Gateway API is there")
    story.running(**EXPOSED)
    for kind, name in (("TrainingRun", "sums"), ("RelayServer", "sums-relay")):
        story.wait_condition(kind, name, "Exposed", "False", "install the CRDs of the Gateway API")
    with httproutes(kube):
        story.wait_for("the routes", lambda: routes(story) == ROUTES)
        for kind, name in (("TrainingRun", "sums"), ("RelayServer", "sums-relay")):
            story.wait_condition(kind, name, "Exposed", "Unknown", "NotSeen")
        for name in ROUTES:
            say(kube, story.namespace, name)
        story.wait_condition("TrainingRun", "sums", "Exposed", "True", "RoutesAccepted")


@pytest.fixture(scope="module")
def gateway(kube: Kube) -> Iterator[None]:
    with httproutes(kube):
        yield


@pytest.mark.usefixtures("gateway")
def test_what_a_gateway_says_is_shown_and_routes_go_with_their_reason(
    story: Story, kube: Kube, audit: AuditLog
) -> None:
    found = story.running(**EXPOSED)
    assert found["status"]["endpoint"] == "https://sums-discovery-public.runs.example.org"
    story.wait_for("the routes", lambda: routes(story) == ROUTES)
    route = story.get("HTTPRoute", "sums-discovery-public")
    assert route["spec"]["rules"][0]["backendRefs"][0]["kind"] == "Service"
    assert route["spec"]["rules"][0]["timeouts"] == {"request": "0s"}
    owner = route["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("TrainingRun", "sums", True)
    for name in ROUTES:
        say(kube, story.namespace, name)
    story.wait_condition("TrainingRun", "sums", "Exposed", "True", "RoutesAccepted")
    relays = story.get("RelayServer", "sums-relay")["status"]
    assert relays["addresses"] == ["https://sums-relay-0.runs.example.org"]
    say(kube, story.namespace, "sums-ui-public", Accepted=("NotAllowedByListeners", "namespace is not allowed"))
    story.wait_condition("TrainingRun", "sums", "Exposed", "False", "NotAllowedByListeners Gateway edge/public")
    say(kube, story.namespace, "sums-ui-public")
    say(kube, story.namespace, "sums-relay-0", ResolvedRefs=("BackendNotFound", "no such Service"))
    story.wait_condition("RelayServer", "sums-relay", "Exposed", "False", "BackendNotFound")
    story.wait_condition("TrainingRun", "sums", "Exposed", "False", "RelayServer sums-relay: Gateway edge/public")
    assert story.condition("TrainingRun", "sums", "Ready")["status"] == "True"
    # Somebody's edit is put right, and what the API server filled in is not taken for one.
    kube.merge("HTTPRoute", "sums-ui-public", story.namespace, {"spec": {"hostnames": ["other.example.org"]}})
    host = ["sums-ui-public.runs.example.org"]
    story.wait_for("the host to be back", lambda: story.get("HTTPRoute", "sums-ui-public")["spec"]["hostnames"] == host)
    wait_settled(story)
    story.edit(controlPlane={"exposure": {"type": "ClusterIP", "domain": None, "gateway": None}})
    story.wait_for(
        "routes to go", lambda: routes(story) == ROUTES - {"sums-discovery-public", "sums-orchestrator-public"}
    )
    kube.delete("TrainingRun", "sums", story.namespace)
    story.wait_for("all routes to go", lambda: routes(story) == set())
    rows = {(named(row), verb) for row in WATCHED if row.resource == ROUTE.plural for verb in row.verbs}
    assert sorted(f"{verb} {name}" for name, verb in rows - used(audit, USER) if verb not in ("list", "watch")) == []
