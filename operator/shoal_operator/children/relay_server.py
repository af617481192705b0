"""Children of a RelayServer: a StatefulSet of relays, each an nginx with the agent that fills its folder and knows its tokens. Pure."""

from shoal.contracts.relays import OUTSIDE_PORT, RelayConfig
from shoal_operator.api import RelayServer
from shoal_operator.api.base import quantity_value
from shoal_operator.api.relay_server import RelayFields
from shoal_operator.children import names
from shoal_operator.children.claims import VolumeClaim, claimed
from shoal_operator.children.exposure import way_in
from shoal_operator.children.overlay import overlay
from shoal_operator.children.pods import (
    Container,
    certificate,
    claim_template,
    config_map,
    http_probes,
    image_of,
    pod_template,
    secrets,
    tcp_probes,
)
from shoal_operator.children.workloads import (
    child,
    digest,
    disruption_budget,
    headless_service,
    set_selector,
    stateful_set,
)
from shoal_operator.engine.cluster import Object

COMPONENT = "relay"
VERSIONS_SHARE = 0.9
"""Of a relay's volume; the rest is for logs, and for what a file system keeps for itself."""
LEAST_DISK_BYTES = 1 << 20
PORT = ("nginx", names.PORTS["nginx"])
OUTSIDE = ("outside", OUTSIDE_PORT)


def relay_server_children(relay: RelayServer, config_hash: str | None, secret: str | None = None) -> list[Object]:
    """ConfigMap with `relay.json`, headless Service, which names each relay singly, StatefulSet, and ways in from outside.

    Args:
        relay: the relays.
        config_hash: digest of the run's configuration, which makes the pods restart when it changes.
        secret: name of the Secret with the role's key; None: the first.
    """
    name, run, spec = relay.metadata.name, relay.spec.run, relay.spec
    relay_json = RelayConfig(
        kept_versions=spec.kept_versions,
        rate_limits=spec.rate_limits,
        sources=spec.sources,
        disk_bytes=disk_bytes(relay_claims(relay)["www"].size),
        trusted_proxies=spec.trusted_proxies,
    ).to_json()
    config = config_map(names.config(run), names.relay_config(name))
    www, image = claim_template("www"), image_of("relay", spec.images)
    containers = [
        Container(
            name="sync",
            image=image,
            command=["python", "-m", "shoal.broadcast.relay"],
            role="relay",
            mounts=(config, secrets(secret or names.role_secret(run, "relay")), www),
            port=names.PORTS["sync"],
            probes=http_probes(names.PORTS["sync"]),
        ),
        Container(
            name="nginx",
            image=image,
            command=["python", "-m", "shoal.broadcast.nginx", "relay"],
            role="relay",
            mounts=(config, www, *([certificate(tls)] if (tls := own_certificate(spec)) is not None else [])),
            port=names.PORTS["nginx"],
            probes=tcp_probes(names.PORTS["nginx"]),
            resources=spec.resources,
        ),
    ]
    template = pod_template(
        run,
        COMPONENT,
        containers,
        grace_seconds=20,
        placement=spec.pod_template,
        images=spec.images,
        config_hash=digest((config_hash or "").encode() + relay_json),
    )
    selector = set_selector(name, run, COMPONENT)
    # Relays on one node share its uplink, and fall with it. Better so than not at all. An author's own word on it holds.
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector},
    }
    own = {key: template["spec"][key] for key in ("topologySpreadConstraints",) if key in template["spec"]}
    template["spec"] = overlay(template["spec"] | {"topologySpreadConstraints": [spread]}, own)
    ports = {part: names.PORTS[part] for part in ("nginx", "sync")}
    content = {"data": {"relay.json": relay_json.decode()}}
    return [
        child("ConfigMap", names.relay_config(name), run, COMPONENT, content),
        headless_service(name, run, COMPONENT, ports, {names.SET_LABEL: name}),
        stateful_set(
            name, run, COMPONENT, spec.replicas, template, claims=relay_claims(relay), retention=spec.claim_retention
        ),
        disruption_budget(name, run, COMPONENT, selector),
        *(
            made
            for number in range(spec.replicas)
            for made in way_in(
                f"{name}-{number}",
                run,
                COMPONENT,
                spec.exposure,
                {names.POD_NAME_LABEL: f"{name}-{number}"},
                way_in_port(spec),
            )
        ),
    ]


def own_certificate(spec: RelayFields) -> str | None:
    """The Secret whose certificate the relays' nginx shows to clients outside; None where an Ingress does, or nobody."""
    return spec.exposure.tls_secret if spec.exposure.type in ("NodePort", "LoadBalancer") else None


def way_in_port(spec: RelayFields) -> tuple[str, int]:
    """Where clients outside come in: the listener for them where there is one, else that of the cluster."""
    direct = spec.exposure.type in ("NodePort", "LoadBalancer")
    return OUTSIDE if direct and (spec.exposure.tls_secret or spec.trusted_proxies) else PORT


def disk_bytes(cache_size: str | int) -> int:
    """What policy versions may take of a volume of this size."""
    return max(LEAST_DISK_BYTES, int(VERSIONS_SHARE * quantity_value(cache_size)))


def relay_claims(relay: RelayServer) -> dict[str, VolumeClaim]:
    """Claims of each relay, by the name of the volume."""
    return {"www": claimed(relay.spec.cache_volume, relay.spec.cache_size)}
