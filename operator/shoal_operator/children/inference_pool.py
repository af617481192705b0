"""Children of an InferencePool: a StatefulSet of rollout workers that know of the run only what a stranger's machine knows. Pure."""

from shoal.contracts.run import NodeConfig
from shoal_operator.api import InferencePool
from shoal_operator.children import names
from shoal_operator.children.pods import (
    Container,
    child,
    claim_template,
    config_map,
    digest,
    empty,
    headless_service,
    http_probes,
    pod_template,
    stateful_set,
)
from shoal_operator.engine.cluster import Object

COMPONENT = "pool"


def inference_pool_children(pool: InferencePool, join: NodeConfig) -> list[Object]:
    """ConfigMap with `node.json`, headless Service and StatefulSet of a pool.

    Args:
        pool: the pool.
        join: how to join the run, from its ConfigMap; its pool name is replaced by this pool's.
    """
    name, run, spec = pool.metadata.name, pool.spec.run, pool.spec
    node_json = join.model_copy(update={"pool": spec.pool}).to_json()
    config = config_map(names.node_config(name))
    run_folder, weights = empty("run"), claim_template("weights")
    containers = [
        Container(
            name="agent",
            image=names.IMAGES["protocol"],
            command=["python", "-m", "shoal.protocol.agent"],
            role="agent",
            mounts=(config, claim_template("key"), run_folder),
            port=names.PORTS["agent"],
            probes=http_probes(names.PORTS["agent"]),
        ),
        Container(
            name="fetch",
            image=names.IMAGES["worker"],
            command=["python", "-m", "shoal.broadcast.fetch"],
            role="fetch",
            mounts=(config, weights, run_folder),
            port=names.PORTS["fetch"],
            probes=http_probes(names.PORTS["fetch"]),
        ),
        Container(
            name="worker",
            image=names.IMAGES["worker"],
            command=["python", "-m", "shoal.inference"],
            role="worker",
            mounts=(config, weights, run_folder),
            port=names.PORTS["worker"],
            probes=http_probes(names.PORTS["worker"]),
            resources=spec.resources,
        ),
    ]
    template = pod_template(run, COMPONENT, containers, grace_seconds=30, config_hash=digest(node_json))
    ports = {part: names.PORTS[part] for part in ("agent", "fetch", "worker")}
    claims: dict[str, str | int] = {"key": "1Mi", "weights": spec.weights_size}
    return [
        child("ConfigMap", names.node_config(name), run, COMPONENT, {"data": {"node.json": node_json.decode()}}),
        headless_service(name, run, COMPONENT, ports),
        stateful_set(name, run, COMPONENT, spec.replicas, template, claims=claims),
    ]
