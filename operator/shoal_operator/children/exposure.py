"""Access from outside the cluster: a Service for each pod that clients outside must reach, with an Ingress or an HTTPRoute where the
type says so. Pure.

Nothing is balanced: a client that gets half a version from one relay and half from another could not tell which of them is bad. `address_of` gives
the URL of one of them as soon as it is known; a load balancer's comes with the live Service's status.
"""

from collections.abc import Mapping, Sequence

from shoal_operator.api.exposure import Exposure, GatewayRef
from shoal_operator.children.workloads import child
from shoal_operator.engine.cluster import Object

EVERYTHING = (("/", "Prefix"),)
API = (("/v1", "Prefix"), ("/openapi.json", "Exact"))
"""Paths of discovery and orchestrator that are for clients outside: the rest of their ports is health and metrics."""

MATCHES = {"Prefix": "PathPrefix", "Exact": "Exact"}
"""How a path of an Ingress is called in an HTTPRoute."""


NO_LIMIT = "0s"
"""Of the seconds that a request may take at a Gateway; Envoy's default is 15. A shard of 64 MiB takes nine minutes at 1 Mb/s, and an upload as long
as its grant allows, at 256 KiB/s. No bound here fits every client: the pod behind ends a request that stands still, at its own limits."""


def way_in(
    name: str,
    run: str,
    component: str,
    exposure: Exposure,
    selector: Mapping[str, str],
    port: tuple[str, int],
    paths: Sequence[tuple[str, str]] = EVERYTHING,
) -> list[Object]:
    """Objects that let clients in to the pod that `selector` finds, at its `port` (name, number); none for ClusterIP.

    The objects are called `name`, and so is the host below the exposure's domain. Ingress and HTTPRoute let in to `paths` (path, type) alone; the
    other types of exposure know no paths.
    """
    if exposure.type == "ClusterIP":
        return []
    port_name, number = port
    spec: Object = {
        "type": "ClusterIP" if exposure.type in ("Ingress", "Gateway") else exposure.type,
        "selector": dict(selector),
        "ports": [{"name": port_name, "port": number, "targetPort": number}],
    }
    if exposure.type in ("NodePort", "LoadBalancer"):
        # Nodes without the pod answer nothing, and the pod sees who asks: limits and logs are about clients, not about nodes.
        spec["externalTrafficPolicy"] = "Local"
    if exposure.load_balancer_class is not None:
        spec["loadBalancerClass"] = exposure.load_balancer_class
    service = child("Service", name, run, component, {"spec": spec})
    if exposure.gateway is not None:
        return [service, _annotated(_route(name, run, component, exposure, exposure.gateway, number, paths), exposure)]
    if exposure.type != "Ingress":
        return [_annotated(service, exposure)]
    return [service, _annotated(_ingress(name, run, component, exposure, port_name, paths), exposure)]


def _ingress(
    name: str, run: str, component: str, exposure: Exposure, port_name: str, paths: Sequence[tuple[str, str]]
) -> Object:
    host = f"{name}.{exposure.domain}"
    backend = {"service": {"name": name, "port": {"name": port_name}}}
    allowed = [{"path": path, "pathType": kind, "backend": backend} for path, kind in paths]
    spec: Object = {"rules": [{"host": host, "http": {"paths": allowed}}]}
    if exposure.ingress_class_name is not None:
        spec["ingressClassName"] = exposure.ingress_class_name
    if exposure.tls_secret is not None:
        own = f"{exposure.tls_secret}-{name}" if exposure.tls_secrets == "PerHost" else exposure.tls_secret
        spec["tls"] = [{"hosts": [host], "secretName": own}]
    return child("Ingress", name, run, component, {"spec": spec})


def _route(
    name: str,
    run: str,
    component: str,
    exposure: Exposure,
    gateway: GatewayRef,
    port: int,
    paths: Sequence[tuple[str, str]],
) -> Object:
    """What the API server would fill in (kinds, groups, weights) is left to it."""
    parent = {"name": gateway.name, "namespace": gateway.namespace, "sectionName": gateway.section_name}
    matches = [{"path": {"type": MATCHES[kind], "value": path}} for path, kind in paths]
    rule = {
        "matches": matches,
        "backendRefs": [{"name": name, "port": port}],
        "timeouts": {"request": NO_LIMIT},
    }
    spec = {
        "parentRefs": [{key: value for key, value in parent.items() if value is not None}],
        "hostnames": [f"{name}.{exposure.domain}"],
        "rules": [rule],
    }
    return child("HTTPRoute", name, run, component, {"spec": spec})


def _annotated(made: Object, exposure: Exposure) -> Object:
    if exposure.annotations:
        made["metadata"]["annotations"] = dict(exposure.annotations)
    return made


def address_of(name: str, exposure: Exposure, service: Object | None, port: int) -> str | None:
    """URL at which clients outside reach what `way_in` made under this name, or None while it is not known.

    Args:
        service: the live Service of that name.
        port: number of its port.
    """
    scheme = "https" if exposure.tls_secret else "http"
    if exposure.gateway is not None:
        scheme = exposure.gateway.protocol.lower()
    match exposure.type:
        case "Ingress" | "Gateway":
            return f"{scheme}://{name}.{exposure.domain}"
        case "NodePort":
            ports = (service or {}).get("spec", {}).get("ports", [])
            number = next((each.get("nodePort") for each in ports if each.get("port") == port), None)
            return f"{scheme}://{exposure.node_address}:{number}" if number else None
        case "LoadBalancer":
            given = (service or {}).get("status", {}).get("loadBalancer", {}).get("ingress", [])
            host = next((each.get("hostname") or each.get("ip") for each in given), None)
            if host is None:
                return None
            return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return None
