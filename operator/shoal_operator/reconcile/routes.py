"""Whether clients outside come in through the Gateway: the condition `Exposed` of what has `exposure.type: Gateway`, from its HTTPRoutes' status.

An HTTPRoute says nothing until a controller has looked at it, and its controller says `Accepted` and `ResolvedRefs` for each Gateway. What is False
there, or lacks, is said with its reason. The parts work on without a way in. Cost: one read of the cache a route, microseconds; no request.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal_operator.api import RelayServer, TrainingRun
from shoal_operator.api.exposure import Exposure, GatewayRef
from shoal_operator.children import names
from shoal_operator.engine.cluster import MAYBE_KINDS, Cluster, Object
from shoal_operator.engine.conditions import Condition, condition

EXPOSED = "Exposed"
MOST_WORDS = 500
"""Characters of a controller's message: it is not ours, and a condition is read in one line."""

MISSING = (
    f"the cluster does not serve HTTPRoute of {MAYBE_KINDS['HTTPRoute']}, or the operator may not list it:"
    " install the CRDs of the Gateway API 1.2 or later and the operator's permissions of this release, or choose another exposure.type"
)


@dataclass(frozen=True)
class RouteFinding:
    """What is known of one route: `holds` as in a condition, one CamelCase word, and the same for people."""

    holds: bool | None
    reason: str
    message: str


def relays_exposed(cluster: Cluster, relay: RelayServer) -> Condition | None:
    """`Exposed` of a RelayServer; None where no Gateway lets in to it."""
    each = {f"{relay.metadata.name}-{number}": relay.spec.exposure for number in range(relay.spec.replicas)}
    return _condition(_verdicts(cluster, each))


def run_exposed(cluster: Cluster, run: TrainingRun) -> Condition | None:
    """`Exposed` of a run: of discovery, orchestrator and page, and what its RelayServer says of its own; None where no Gateway lets in to any."""
    name, plane = run.metadata.name, run.spec.control_plane.exposure
    each = {names.public(part): plane for part in (names.discovery(name), names.orchestrator(name))}
    if run.spec.ui is not None:
        each[names.public(names.ui(name))] = run.spec.ui.exposure
    verdicts = _verdicts(cluster, each)
    relays = run.spec.relay_server_ref or names.relay(name)
    found = cluster.get("RelayServer", relays) or {}
    for said in found.get("status", {}).get("conditions", []):
        if said["type"] == EXPOSED:
            holds = {"True": True, "False": False}.get(said["status"])
            verdicts.append(RouteFinding(holds, said["reason"], f"RelayServer {relays}: {said['message']}"))
    return _condition(verdicts)


def _verdicts(cluster: Cluster, exposures: Mapping[str, Exposure]) -> list[RouteFinding]:
    """Of the routes by these names, as far as their exposure asks for one."""
    wanted = [(name, each.gateway) for name, each in exposures.items() if each.gateway is not None]
    if wanted and not cluster.serves("HTTPRoute"):
        return [RouteFinding(False, "GatewayApiMissing", MISSING)]
    return [verdict(name, gateway, cluster.get("HTTPRoute", name), cluster.namespace) for name, gateway in wanted]


def _condition(verdicts: list[RouteFinding]) -> Condition | None:
    """The worst verdict: False before Unknown before True."""
    if not verdicts:
        return None
    worst = min(verdicts, key=lambda each: (False, None, True).index(each.holds))
    message = f"{len(verdicts)} are accepted" if worst.holds else worst.message
    return condition(EXPOSED, worst.holds, "RoutesAccepted" if worst.holds else worst.reason, message)


def verdict(name: str, gateway: GatewayRef, route: Object | None, namespace: str) -> RouteFinding:
    """What the controllers of `gateway` say of a live HTTPRoute in `namespace`, about its newest spec."""
    if route is None:
        return RouteFinding(None, "NotMade", f"HTTPRoute {name} is made with the part that it leads to")
    where = f"Gateway {gateway.namespace or namespace}/{gateway.name}"
    accepted = False
    for parent in route.get("status", {}).get("parents", []):
        ref = parent.get("parentRef", {})
        of = ref.get("name"), ref.get("namespace", namespace), ref.get("sectionName")
        if of != (gateway.name, gateway.namespace or namespace, gateway.section_name):
            continue
        for said in parent.get("conditions", []):
            if said.get("observedGeneration", 0) < route["metadata"].get("generation", 0):
                continue
            if said["type"] in ("Accepted", "ResolvedRefs") and said["status"] == "False":
                words = " ".join(str(said.get("message", "")).split())[:MOST_WORDS]
                text = f"{where} says of HTTPRoute {name} that {said['type']} is False ({said['reason']}): {words}"
                return RouteFinding(False, said["reason"], text)
            accepted = accepted or (said["type"] == "Accepted" and said["status"] == "True")
    if accepted:
        return RouteFinding(True, "RoutesAccepted", "")
    text = f"{where} has not accepted HTTPRoute {name} yet: see that the Gateway exists and its controller runs"
    return RouteFinding(None, "NotSeen", text)
