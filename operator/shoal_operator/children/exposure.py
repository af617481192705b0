"""Access from outside the cluster: a Service, and for type Ingress an Ingress, for each pod that clients outside must reach. Pure.

Nothing is balanced: a client that gets half a version from one relay and half from another could not tell which of them is bad. `address_of` gives
the URL of one of them as soon as it is known; a load balancer's comes with the live Service's status.
"""

from collections.abc import Mapping, Sequence

from shoal_operator.api.exposure import Exposure
from shoal_operator.children.workloads import child
from shoal_operator.engine.cluster import Object

EVERYTHING = (("/", "Prefix"),)
API = (("/v1", "Prefix"), ("/openapi.json", "Exact"))
"""Paths of discovery and orchestrator that are for clients outside: the rest of their ports is health and metrics."""


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

    The objects are called `name`, and so is the host below the exposure's domain. An Ingress lets in to `paths` (path, type) alone; the other types
    of exposure know no paths.
    """
    if exposure.type == "ClusterIP":
        return []
    port_name, number = port
    spec: Object = {
        "type": "ClusterIP" if exposure.type == "Ingress" else exposure.type,
        "selector": dict(selector),
        "ports": [{"name": port_name, "port": number, "targetPort": number}],
    }
    if exposure.type in ("NodePort", "LoadBalancer"):
        # Nodes without the pod answer nothing, and the pod sees who asks: limits and logs are about clients, not about nodes.
        spec["externalTrafficPolicy"] = "Local"
    if exposure.load_balancer_class is not None:
        spec["loadBalancerClass"] = exposure.load_balancer_class
    service = child("Service", name, run, component, {"spec": spec})
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
        spec["tls"] = [{"hosts": [host], "secretName": exposure.tls_secret}]
    return child("Ingress", name, run, component, {"spec": spec})


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
    match exposure.type:
        case "Ingress":
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
