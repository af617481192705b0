"""Children of an InferencePool: a StatefulSet of rollout workers that know of the run only what a stranger's machine knows. Pure."""

from shoal.contracts.protocol import LEAVE_SECONDS
from shoal.contracts.roster import first_roster
from shoal.contracts.run import NodeConfig
from shoal_operator.api import InferencePool
from shoal_operator.children import names
from shoal_operator.children.claims import VolumeClaim, claimed
from shoal_operator.children.pods import (
    Container,
    claim_template,
    config_map,
    empty,
    http_probes,
    image_of,
    pod_template,
    ticket,
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

COMPONENT = "pool"


def inference_pool_children(pool: InferencePool, join: NodeConfig) -> list[Object]:
    """ConfigMap with `node.json`, headless Service and StatefulSet of a pool.

    Args:
        pool: the pool.
        join: how to join the run, from its ConfigMap; its pool, engine and quantization are replaced by this pool's.
    """
    name, run, spec = pool.metadata.name, pool.spec.run, pool.spec
    own = join.model_copy(update={"pool": spec.pool, "engine": spec.engine, "quantization": spec.quantization})
    node_json = own.to_json()
    begun = own.model_copy(update={"roster": first_roster(own.roster)})  # nodes follow changed keys without a restart
    config = config_map(names.node_config(name))
    run_folder, weights = empty("run"), claim_template("weights")
    worker_image = image_of("worker", spec.images, spec.gpu)
    containers = [
        Container(
            name="agent",
            image=image_of("protocol", spec.images),
            command=["python", "-m", "shoal.agent"],
            role="agent",
            mounts=(config, ticket(names.ticket_secret(name)), claim_template("key"), run_folder),
            port=names.PORTS["agent"],
            probes=http_probes(names.PORTS["agent"]),
        ),
        Container(
            name="fetch",
            image=worker_image,
            command=["python", "-m", "shoal.broadcast.fetch"],
            role="fetch",
            mounts=(config, weights, run_folder),
            port=names.PORTS["fetch"],
            probes=http_probes(names.PORTS["fetch"]),
        ),
        Container(
            name="worker",
            image=worker_image,
            command=["python", "-m", "shoal.inference"],
            role="worker",
            mounts=(config, weights, run_folder),
            port=names.PORTS["worker"],
            probes=http_probes(names.PORTS["worker"]),
            resources=spec.resources,
            gpu=spec.gpu,
            shared_memory=True,
        ),
    ]
    template = pod_template(
        run,
        COMPONENT,
        containers,
        grace_seconds=int(LEAVE_SECONDS) + 10,
        placement=spec.pod_template,
        images=spec.images,
        gpu=spec.gpu,
        config_hash=digest(begun.to_json()),
    )
    ports = {part: names.PORTS[part] for part in ("agent", "fetch", "worker")}
    return [
        child("ConfigMap", names.node_config(name), run, COMPONENT, {"data": {"node.json": node_json.decode()}}),
        headless_service(name, run, COMPONENT, ports, {names.SET_LABEL: name}),
        stateful_set(
            name, run, COMPONENT, spec.replicas, template, claims=pool_claims(pool), retention=spec.claim_retention
        ),
        disruption_budget(name, run, COMPONENT, set_selector(name, run, COMPONENT)),
    ]


def pool_claims(pool: InferencePool) -> dict[str, VolumeClaim]:
    """Claims of each worker, by the name of the volume."""
    weights = claimed(pool.spec.weights_volume, pool.spec.weights_size)
    return {"key": VolumeClaim("1Mi", weights.storage_class), "weights": weights}
