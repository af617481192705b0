"""Children of a RelayServer: a StatefulSet of relays, each an nginx with the agent that fills its folder and knows its tokens. Pure."""

from shoal_operator.api import RelayServer
from shoal_operator.children import names
from shoal_operator.children.pods import (
    Container,
    claim_template,
    config_map,
    headless_service,
    http_probes,
    pod_template,
    secrets,
    stateful_set,
    tcp_probes,
)
from shoal_operator.engine.cluster import Object

COMPONENT = "relay"


def relay_server_children(relay: RelayServer, config_hash: str | None) -> list[Object]:
    """Headless Service, which names each relay singly, and StatefulSet.

    Args:
        relay: the relays.
        config_hash: digest of the run's configuration, which makes the pods start anew when it changes.
    """
    name, run, spec = relay.metadata.name, relay.spec.run, relay.spec
    config, www = config_map(names.config(run)), claim_template("www")
    containers = [
        Container(
            name="sync",
            image=names.IMAGES["relay"],
            command=["python", "-m", "shoal.broadcast.relay"],
            role="relay",
            mounts=(config, secrets(names.role_secret(run, "relay")), www),
            port=names.PORTS["sync"],
            probes=http_probes(names.PORTS["sync"]),
        ),
        Container(
            name="nginx",
            image=names.IMAGES["relay"],
            command=["python", "-m", "shoal.broadcast.nginx", "relay"],
            role="relay",
            mounts=(config, www),
            port=names.PORTS["nginx"],
            probes=tcp_probes(names.PORTS["nginx"]),
            resources=spec.resources,
        ),
    ]
    template = pod_template(run, COMPONENT, containers, grace_seconds=20, config_hash=config_hash)
    ports = {part: names.PORTS[part] for part in ("nginx", "sync")}
    return [
        headless_service(name, run, COMPONENT, ports),
        stateful_set(name, run, COMPONENT, spec.replicas, template, claims={"www": spec.cache_size}),
    ]
