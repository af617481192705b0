"""Reconciles the three kinds with replicas, InferencePool, RelayServer and Validator, which differ only in a row of `SCALED_KINDS`.

Each waits for a ConfigMap of its run, has one workload of its own name. Its status says how many pods are ready and why others are not.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from shoal.contracts.newer import from_newer_json
from shoal.contracts.run import NodeConfig, RunConfig
from shoal_operator.api import InferencePool, RelayServer, Validator
from shoal_operator.api.base import ChildMeta
from shoal_operator.children import inference_pool_children, names, relay_server_children, validator_children
from shoal_operator.children.claims import VolumeClaim
from shoal_operator.children.exposure import address_of
from shoal_operator.children.inference_pool import pool_claims, pool_group_claims
from shoal_operator.children.relay_server import relay_claims, way_in_port
from shoal_operator.children.releases import Builder
from shoal_operator.children.run_config import config_hashes
from shoal_operator.children.workloads import claim_templates_of, selector_of
from shoal_operator.engine.cluster import MAYBE_KINDS, Cluster, Object, controller_of
from shoal_operator.engine.conditions import Condition, condition, is_true, message_of
from shoal_operator.reconcile.common import (
    admitted_replicas,
    apply_children,
    drop_scaled_in,
    groups_of,
    grow_claims,
    names_of,
    parse,
    prune,
    replica_counts,
    up_to_date,
    write_status,
)
from shoal_operator.reconcile.pod_problems import pods_problem
from shoal_operator.reconcile.releases import release_mark, upgrade_of, workload_kind
from shoal_operator.reconcile.routes import relays_exposed
from shoal_operator.reconcile.volumes import Problem, volumes_condition

REMEMBERED_TEXTS = 512
"""Parsed texts of ConfigMaps: checking a roster's signature was a third of a reconcile. A text always parses alike."""

WAIT_SECONDS = 10.0
"""How soon to look again for a ConfigMap that is not there: one that was copied by hand carries no label, so nothing tells of it."""
TROUBLE_SECONDS = 10.0
"""How soon to look again at a workload whose pods lack or are not ready: no event of a watched kind tells of refusals, volumes or probes."""
FOREIGN_SECONDS = 60.0
"""How soon to look again at the configuration of a run that did not make this object, and so cannot wake it by an annotation."""

NO_GROUPS = (
    f"the cluster does not serve LeaderWorkerSet of {MAYBE_KINDS['LeaderWorkerSet']}, or the operator may not list it: install LeaderWorkerSet 0.8"
    " or later and the operator's permissions of this release; or make another pool without hostsBy"
)
OLD_GROUPS = (
    "the LeaderWorkerSet installed is older than what keeps claims, and dropped volumeClaimTemplates: install release 0.8 or later, then delete this"
    " pool's LeaderWorkerSet, which is then made again"
)
UNSEEN_GROUPS = "nothing has looked at its LeaderWorkerSet yet: see that LeaderWorkerSet's controller runs"


@dataclass(frozen=True)
class PoolInputs:
    """What a pool's children are made of."""

    pool: InferencePool
    join: NodeConfig
    beside_run: bool = True
    """Whether the run itself is in this namespace, with its policies; a pool may serve one of another cluster."""


@dataclass(frozen=True)
class RelayInputs:
    """What the children of relays are made of."""

    relay: RelayServer
    config: RunConfig


@dataclass(frozen=True)
class ValidatorInputs:
    """What the children of validators are made of."""

    validator: Validator
    config: RunConfig


@dataclass(frozen=True)
class ScaledKind:
    """One row: the model, how it is built and of what.

    Further what is removed when it is no longer wanted, and what else its status says.

    `inputs` returns in words what is waited for; `claims` the claims of its pods, `own_claims` those that no controller makes, None where one does.
    """

    model: type[InferencePool] | type[RelayServer] | type[Validator]
    inputs: Callable[[Cluster, Any], Any]
    builder: Builder[Any]
    claims: Callable[[Any], Mapping[str, VolumeClaim]] | None = None
    own_claims: Callable[[Any], list[Object] | None] = lambda found: None
    prunes: tuple[str, ...] = ()
    more_status: Callable[[Cluster, Any], dict[str, Any]] = lambda cluster, found: {}
    exposed: Callable[[Cluster, Any], Condition | None] = lambda cluster, found: None


def reconcile_scaled(cluster: Cluster, kind: str, name: str) -> float | None:
    """Reconcile the children and the status of one of these objects; returns after how many seconds to look again, if at all."""
    row = SCALED_KINDS[kind]
    live = cluster.get(kind, name)
    if live is None or live["metadata"].get("deletionTimestamp"):
        return None
    found: Any = parse(row.model, live)
    admitted, kept_back = admitted_replicas(live), ""
    if admitted is not None and found.spec.replicas > admitted:  # whoever scales may ask for more than its queue has
        kept_back = f"; of {found.spec.replicas} replicas the run's queue admits {admitted}"
        found = found.model_copy(update={"spec": found.spec.model_copy(update={"replicas": admitted})})
    run = found.spec.run
    inputs = row.inputs(cluster, found.model_copy(update={"metadata": ChildMeta(name=name)}))
    waits_for = inputs if isinstance(inputs, str) else _named_alike(cluster, live)
    released, volumes = list[Condition](), list[Condition]()
    if not waits_for:
        mine = controller_of(live) is not None  # a run says in the annotation which release it is to be of
        upgrade = upgrade_of(cluster, live, run, row.builder, inputs, release_mark(live), sure=mine)

        own_claims = row.own_claims(found) if cluster.enforces_volumes else None

        def make() -> list[Problem]:
            children = [*(own_claims or ()), *upgrade.children(row.builder.build(inputs), work=True)]
            problems = apply_children(cluster, live, children)
            prune(cluster, live, run, row.prunes, names_of(children))
            return problems

        of = live["metadata"]["uid"], upgrade.made_of
        problems = cluster.unchanged("children", of, make) if upgrade.made_of else make()
        if row.claims is not None and cluster.enforces_volumes:
            claims = cluster.list("PersistentVolumeClaim", {names.RUN_LABEL: run, names.SET_LABEL: name})
            if own_claims is not None:
                drop_scaled_in(cluster, live, claims, found.spec.claim_retention, own_claims, pool_claims(found))
            else:
                problems = grow_claims(cluster, claims, name, row.claims(found))
            volumes = [volumes_condition(claims, problems, cluster.storage_classes)]
        released = upgrade.conditions()
    workload = cluster.get(workload_kind(live), name)
    hosts = found.spec.engine.hosts if row.model is InferencePool else 1
    conditions = scaled_conditions(cluster, workload, run, name, waits_for, message_of(live, "Ready"), hosts)
    if kept_back:
        conditions = [{**each, "message": each["message"] + kept_back} for each in conditions]
    exposed = row.exposed(cluster, found)
    conditions += [*volumes, *([] if exposed is None else [exposed]), *released]
    write_status(cluster, live, scaled_status(cluster, workload, hosts) | row.more_status(cluster, found), conditions)
    if waits_for:
        return WAIT_SECONDS
    if next(each for each in conditions if each["type"] == "Progressing")["status"] == "True":
        return TROUBLE_SECONDS
    well = all(each["status"] == "True" for each in volumes)
    if exposed is not None and exposed["status"] != "True":
        return TROUBLE_SECONDS
    return None if live["metadata"].get("ownerReferences") and well else FOREIGN_SECONDS


def scaled_conditions(
    cluster: Cluster, workload: Object | None, run: str, name: str, waits_for: str, former: str = "", hosts: int = 1
) -> list[Condition]:
    """Ready and Progressing, from the workload and, where it is not ready, from its pods. `waits_for` says what keeps it from being built, `former`
    what Ready said before, `hosts` how many pods are one replica."""
    if waits_for:
        return [condition("Ready", False, "Waiting", waits_for), condition("Progressing", True, "Waiting", waits_for)]
    wanted, _, ready = whole_counts(cluster, workload, hosts)
    message = f"{ready} of {wanted} {'pods' if hosts == 1 else f'engines of {hosts} pods'} are ready"
    settled = workload is not None and up_to_date(workload) and ready == wanted
    if settled and workload is not None and workload["kind"] == "LeaderWorkerSet":
        found = groups_of(cluster, workload)
        settled = found.new == found.existing == wanted
    if settled and wanted == 0:
        reason = "ScaledToZero"
        return [condition("Ready", False, reason, message), condition("Progressing", False, reason, message)]
    reason = "PodsReady" if settled else "PodsNotReady"
    if not settled:
        pods = cluster.list("Pod", {names.RUN_LABEL: run, names.SET_LABEL: name})
        problem = pods_problem(cluster, pods, workload, former)
        if problem is not None:
            reason, message = problem[0], f"{message}; {problem[1]}"
        elif workload is not None and workload["kind"] == "LeaderWorkerSet" and not workload.get("status"):
            message = f"{message}; {UNSEEN_GROUPS}"
    if workload is not None and workload["kind"] == "LeaderWorkerSet" and not claim_templates_of(workload):
        reason, message, settled = "OldGroups", f"{message}; {OLD_GROUPS}", False
    return [condition("Ready", settled, reason, message), condition("Progressing", not settled, reason, message)]


def _named_alike(cluster: Cluster, live: Object) -> str:
    """In words, whether the StatefulSet of this object and one that LeaderWorkerSet makes of a group would have one name; empty for no, and for
    an object that has its workload already: the other waits."""
    kind, name = workload_kind(live), live["metadata"]["name"]
    if kind == "Deployment" or cluster.get(kind, name) is not None:
        return ""
    if kind == "LeaderWorkerSet":
        others = (each for of in ("InferencePool", "RelayServer") for each in cluster.list(of, {}))
        found = next((each for each in others if _is_group(each["metadata"]["name"], name)), None)
    else:
        found = cluster.get("InferencePool", name.rpartition("-")[0])
        if found is not None and not (found["spec"].get("hostsBy") and _is_group(name, found["metadata"]["name"])):
            found = None
    if found is None:
        return ""
    return (
        f"{found['kind']} {found['metadata']['name']} is there, and LeaderWorkerSet names a group's StatefulSet as the pool with a number behind it:"
        " rename one of the two"
    )


def _is_group(name: str, pool: str) -> bool:
    return name.startswith(f"{pool}-") and name[len(pool) + 1 :].isdecimal()


def whole_counts(cluster: Cluster, workload: Object | None, hosts: int) -> tuple[int, int, int]:
    """Replicas wanted, existing and ready, where `hosts` pods in a row are one: it is ready when all of them are."""
    wanted, existing, ready = replica_counts(workload)
    if workload is not None and workload["kind"] == "LeaderWorkerSet":
        found = groups_of(cluster, workload)
        return wanted, found.existing, found.ready
    if hosts == 1 or workload is None:
        return wanted, existing, ready
    if ready < wanted:
        pods = cluster.list("Pod", selector_of(workload))
        at = Counter(int(pod["metadata"]["name"].rpartition("-")[2]) // hosts for pod in pods if is_true(pod, "Ready"))
        return wanted // hosts, existing // hosts, sum(count == hosts for count in at.values())
    return wanted // hosts, existing // hosts, ready // hosts


def scaled_status(cluster: Cluster, workload: Object | None, hosts: int) -> dict[str, Any]:
    """Replica counts and selector, for the status and the scale subresource."""
    _, replicas, ready = whole_counts(cluster, workload, hosts)
    labels = selector_of(workload) if workload is not None else {}
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return {"replicas": replicas, "readyReplicas": ready, "selector": selector or None}


def _pool_inputs(cluster: Cluster, pool: InferencePool) -> PoolInputs | str:
    if pool.spec.hosts_by is not None and not cluster.serves(pool.spec.hosts_by):
        return NO_GROUPS
    name = pool.spec.join_config_map or names.join(pool.spec.run)
    join = read_join(cluster.get("ConfigMap", name) or cluster.read_foreign("ConfigMap", name), pool.spec.run)
    if isinstance(join, str):
        return f"ConfigMap {name}: {join}"
    if pool.spec.join_config_map is None:
        # Runners can be reached from within the run's own cluster only, so that what strangers join by does not name them.
        config = _read_run(cluster, pool.spec.run)
        if not isinstance(config, str):
            join = join.model_copy(update={"runners": config.addresses.runners})
    return PoolInputs(pool, join, cluster.get("ConfigMap", names.config(pool.spec.run)) is not None)


def _relay_inputs(cluster: Cluster, relay: RelayServer) -> RelayInputs | str:
    config = _read_run(cluster, relay.spec.run)
    return config if isinstance(config, str) else RelayInputs(relay, config)


def _validator_inputs(cluster: Cluster, validator: Validator) -> ValidatorInputs | str:
    run = validator.spec.run
    config = _read_run(cluster, run)
    if isinstance(config, str):
        return config
    if config.validation != validator.spec.validation:
        return (
            f"TrainingRun {run} has a different spec.validation; name this Validator in its spec.validatorRef, "
            "or make the two equal"
        )
    if config.storage != validator.spec.storage:
        return f"TrainingRun {run} has a different spec.storage; create a Validator with the run's storage"
    return ValidatorInputs(validator, config)


def _build_relays(inputs: RelayInputs) -> list[Object]:
    config = inputs.config
    secret = names.held_secret(config.run, config.roster.document, "relay")
    return relay_server_children(inputs.relay, config_hashes(config)["relay"], secret)


def _build_validators(inputs: ValidatorInputs) -> list[Object]:
    config = inputs.config
    secret = names.held_secret(config.run, config.roster.document, "validator")
    return validator_children(inputs.validator, config_hashes(config)["validator"], secret)


def _relay_addresses(cluster: Cluster, relay: RelayServer) -> dict[str, Any]:
    """URLs of the relays from outside, as far as they are known."""
    _, port = way_in_port(relay.spec)
    each = [f"{relay.metadata.name}-{number}" for number in range(relay.spec.replicas)]
    if relay.spec.exposure.type == "ClusterIP":
        return {}
    known = [address_of(name, relay.spec.exposure, cluster.get("Service", name), port) for name in each]
    return {"addresses": [url for url in known if url is not None]}


def _read_run(cluster: Cluster, run: str) -> RunConfig | str:
    """The run's configuration, or in words why there is none."""
    name = names.config(run)
    config_map = cluster.get("ConfigMap", name)
    if config_map is None:
        return f"ConfigMap {name}: does not exist; the TrainingRun creates it"
    text = config_map.get("data", {}).get("run.json")
    if text is None:
        return f"ConfigMap {name}: has no entry run.json; the TrainingRun repairs it"
    try:
        return _run_config_of(text)
    except ValidationError as error:
        return f"ConfigMap {name}: run.json is wrong: {error.error_count()} fields; the TrainingRun repairs it"


@lru_cache(maxsize=REMEMBERED_TEXTS)
def _run_config_of(text: str) -> RunConfig:
    return from_newer_json(RunConfig, text)


def read_join(config_map: Object | None, run: str) -> NodeConfig | str:
    """How to join the run, or in words why that is not known. The ConfigMap may have been copied by hand from another cluster."""
    if config_map is None:
        return f"does not exist; the TrainingRun {run} makes it, or copy it from the run's cluster"
    text = config_map.get("data", {}).get("node.json")
    if text is None:
        return "has no entry node.json; copy it from the run's cluster"
    return _join_of(text, run)


@lru_cache(maxsize=REMEMBERED_TEXTS)
def _join_of(text: str, run: str) -> NodeConfig | str:
    try:
        join = from_newer_json(NodeConfig, text)
        join.trust  # noqa: B018 - checked when it is made
    except (ValidationError, ValueError) as error:
        return f"node.json is wrong ({' '.join(str(error).split())[:300]}); copy it from the run's cluster"
    if join.run != run:
        return f"is for run {join.run}, but the pool's spec.run is {run}"
    return join


SCALED_KINDS: dict[str, ScaledKind] = {
    "RelayServer": ScaledKind(
        RelayServer,
        _relay_inputs,
        Builder(TypeAdapter(RelayInputs), _build_relays),
        relay_claims,
        prunes=("Service", "Ingress", "HTTPRoute"),
        more_status=_relay_addresses,
        exposed=relays_exposed,
    ),
    "Validator": ScaledKind(Validator, _validator_inputs, Builder(TypeAdapter(ValidatorInputs), _build_validators)),
    "InferencePool": ScaledKind(
        InferencePool,
        _pool_inputs,
        Builder(
            TypeAdapter(PoolInputs),
            lambda inputs: inference_pool_children(inputs.pool, inputs.join, beside_run=inputs.beside_run),
        ),
        pool_claims,
        pool_group_claims,
        prunes=("NetworkPolicy",),
    ),
}
