"""Children of an InferencePool: rollout workers that know of the run only what a stranger's machine knows, and what makes their pods. Pure."""

from shoal.contracts.protocol import LEAVE_SECONDS
from shoal.contracts.roster import first_roster
from shoal.contracts.run import NodeConfig
from shoal_operator.api import InferencePool
from shoal_operator.children import names
from shoal_operator.children.claims import VolumeClaim, claimed
from shoal_operator.children.pods import (
    Container,
    claim,
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
    group_claims,
    headless_service,
    leader_worker_set,
    set_selector,
    stateful_set,
)
from shoal_operator.engine.cluster import Object

COMPONENT = "pool"


def inference_pool_children(pool: InferencePool, join: NodeConfig, *, beside_run: bool = True) -> list[Object]:
    """ConfigMap with `node.json`, headless Service and StatefulSet or LeaderWorkerSet of a pool. `engine.hosts` pods in a row share an engine, or
    those of a group.

    Args:
        pool: the pool.
        join: how to join the run, from its ConfigMap; its pool, engine and quantization are replaced by this pool's.
        beside_run: whether the run itself is in this namespace, with its policies.
    """
    name, run, spec = pool.metadata.name, pool.spec.run, pool.spec
    own = join.model_copy(update={"pool": spec.pool, "engine": spec.engine, "quantization": spec.quantization})
    node_json = own.to_json()
    begun = own.model_copy(update={"roster": first_roster(own.roster)})  # nodes follow changed keys without a restart
    config = config_map(names.node_config(name))
    run_folder, shared = empty("run"), spec.weights_claim
    weights = claim_template("weights") if shared is None else claim("weights", shared)
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
    hosts, claims = spec.engine.hosts, pool_claims(pool)
    if spec.hosts_by is None:
        workload = stateful_set(
            name, run, COMPONENT, spec.replicas * hosts, template, claims=claims, retention=spec.claim_retention
        )
    else:
        workload = leader_worker_set(name, run, COMPONENT, spec.replicas, hosts, template, claims=claims)
    return [
        child("ConfigMap", names.node_config(name), run, COMPONENT, {"data": {"node.json": node_json.decode()}}),
        headless_service(name, run, COMPONENT, ports, {names.SET_LABEL: name}),
        *([_hosts_policy(pool, beside_run)] if hosts > 1 else []),
        workload,
        disruption_budget(name, run, COMPONENT, set_selector(name, run, COMPONENT)),
    ]


def _hosts_policy(pool: InferencePool, beside_run: bool) -> Object:
    """Every port between the pods of a pool whose engines span several: vLLM's ranks choose theirs, and believe whoever reaches them.

    Elsewhere than beside its run a pod has no policy for the way out, and may not get its first one here: it would cut all other ways.
    """
    name, run = pool.metadata.name, pool.spec.run
    pods = {"podSelector": {"matchLabels": set_selector(name, run, COMPONENT)}}
    spec: Object = pods | {"policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
    if beside_run:
        spec |= {"policyTypes": ["Ingress", "Egress"], "egress": [{"to": [pods]}]}
    return child("NetworkPolicy", names.hosts_policy(name), run, COMPONENT, {"spec": spec})


def pool_group_claims(pool: InferencePool) -> list[Object] | None:
    """The claims that the operator makes for a pool's pods; None where a StatefulSet does."""
    spec = pool.spec
    if spec.hosts_by is None:
        return None
    of = pool.metadata.name, spec.run, COMPONENT, spec.replicas, spec.engine.hosts
    return group_claims(*of, pool_claims(pool), spec.claim_retention)


def pool_claims(pool: InferencePool) -> dict[str, VolumeClaim]:
    """Claims of each worker, by the name of the volume. One that the pods share is the admin's."""
    weights = claimed(pool.spec.weights_volume, pool.spec.weights_size)
    key = {"key": VolumeClaim("1Mi", weights.storage_class)}
    return key if pool.spec.weights_claim is not None else key | {"weights": weights}
