"""Reconciles the three kinds with replicas, InferencePool, RelayServer and Validator, which differ only in a row of `SCALED_KINDS`.

Each waits for a ConfigMap of its run, has one workload of its own name. Its status says how many pods are ready and why others are not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from shoal.contracts.run import NodeConfig, RunConfig
from shoal_operator.api import InferencePool, RelayServer, Validator
from shoal_operator.children import inference_pool_children, names, relay_server_children, validator_children
from shoal_operator.children.exposure import address_of
from shoal_operator.children.inference_pool import pool_claims
from shoal_operator.children.relay_server import relay_claims, way_in_port
from shoal_operator.children.run_config import config_hashes
from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.engine.conditions import Condition, condition
from shoal_operator.reconcile.common import (
    apply_children,
    grow_claims,
    parse,
    prune,
    replica_counts,
    up_to_date,
    write_status,
)
from shoal_operator.reconcile.pod_problems import worst_problem
from shoal_operator.reconcile.refused_pods import AGAIN_SECONDS as REFUSED_AGAIN_SECONDS
from shoal_operator.reconcile.refused_pods import lacks_pods, refused_pods

REMEMBERED_TEXTS = 512
"""Parsed texts of ConfigMaps: checking a roster's signature was a third of a reconcile. A text always parses alike."""

WAIT_SECONDS = 10.0
"""How soon to look again for a ConfigMap that is not there: one that was copied by hand carries no label, so nothing tells of it."""
FOREIGN_SECONDS = 60.0
"""How soon to look again at the configuration of a run that did not make this object, and so cannot wake it by an annotation."""

Sizes = Mapping[str, str | int]


@dataclass(frozen=True)
class Built:
    """What a kind builds: children and the sizes of its pods' claims, or what it waits for, in words."""

    children: list[Object] | None = None
    claims: Sizes | None = None
    waits_for: str = ""


@dataclass(frozen=True)
class ScaledKind:
    """One row: the model, the kind of its workload, how it is built, what is removed when no longer wanted, and what else its status says."""

    model: type[InferencePool] | type[RelayServer] | type[Validator]
    workload: str
    build: Callable[[Cluster, Any], Built]
    prunes: tuple[str, ...] = ()
    more_status: Callable[[Cluster, Any], dict[str, Any]] = lambda cluster, found: {}


def reconcile_scaled(cluster: Cluster, kind: str, name: str) -> float | None:
    """Reconcile the children and the status of one of these objects; returns after how many seconds to look again, if at all."""
    row = SCALED_KINDS[kind]
    live = cluster.get(kind, name)
    if live is None or live["metadata"].get("deletionTimestamp"):
        return None
    found: Any = parse(row.model, live)
    built = row.build(cluster, found)
    refused = ""
    if built.children is not None:
        refused = apply_children(cluster, live, built.children)
        prune(cluster, live, found.spec.run, row.prunes, built.children)
        if built.claims is not None:
            refused = refused or grow_claims(cluster, name, found.spec.run, built.claims)
    workload = cluster.get(row.workload, name)
    conditions = scaled_conditions(cluster, workload, found.spec.run, name, built.waits_for)
    if refused:
        conditions = [*conditions[:1], condition("Progressing", True, "ClaimsNotGrown", refused)]
    write_status(cluster, live, scaled_status(workload) | row.more_status(cluster, found), conditions)
    if built.waits_for:
        return WAIT_SECONDS
    if lacks_pods(workload):
        return REFUSED_AGAIN_SECONDS
    return None if live["metadata"].get("ownerReferences") and not refused else FOREIGN_SECONDS


def scaled_conditions(
    cluster: Cluster, workload: Object | None, run: str, name: str, waits_for: str
) -> list[Condition]:
    """Ready and Progressing, from the workload and, where it is not ready, from its pods. `waits_for` says what keeps it from being built."""
    if waits_for:
        return [condition("Ready", False, "Waiting", waits_for), condition("Progressing", True, "Waiting", waits_for)]
    wanted, _, ready = replica_counts(workload)
    message = f"{ready} of {wanted} pods are ready"
    settled = workload is not None and up_to_date(workload) and ready == wanted
    if settled and wanted == 0:
        reason = "ScaledToZero"
        return [condition("Ready", False, reason, message), condition("Progressing", False, reason, message)]
    reason = "PodsReady" if settled else "PodsNotReady"
    if not settled:
        problem = worst_problem(cluster.list("Pod", {names.RUN_LABEL: run, names.SET_LABEL: name}))
        problem = problem or refused_pods(cluster, workload)
        if problem is not None:
            reason, message = problem[0], f"{message}; {problem[1]}"
    return [condition("Ready", settled, reason, message), condition("Progressing", not settled, reason, message)]


def scaled_status(workload: Object | None) -> dict[str, Any]:
    """Replica counts and selector, for the status and the scale subresource."""
    _, replicas, ready = replica_counts(workload)
    labels = (workload or {}).get("spec", {}).get("selector", {}).get("matchLabels", {})
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return {"replicas": replicas, "readyReplicas": ready, "selector": selector or None}


def _build_pool(cluster: Cluster, pool: InferencePool) -> Built:
    name = pool.spec.join_config_map or names.join(pool.spec.run)
    join = read_join(cluster.get("ConfigMap", name) or cluster.read_foreign("ConfigMap", name), pool.spec.run)
    if isinstance(join, str):
        return Built(waits_for=f"ConfigMap {name}: {join}")
    if pool.spec.join_config_map is None:
        # Runners can be reached from within the run's own cluster only, so that what strangers join by does not name them.
        config = _read_run(cluster, pool.spec.run)
        if not isinstance(config, str):
            join = join.model_copy(update={"runners": config.addresses.runners})
    return Built(inference_pool_children(pool, join), pool_claims(pool))


def _build_relays(cluster: Cluster, relay: RelayServer) -> Built:
    config = _read_run(cluster, relay.spec.run)
    if isinstance(config, str):
        return Built(waits_for=config)
    secret = names.held_secret(config.run, config.roster.document, "relay")
    return Built(relay_server_children(relay, config_hashes(config)["relay"], secret), relay_claims(relay))


def _build_validators(cluster: Cluster, validator: Validator) -> Built:
    run = validator.spec.run
    config = _read_run(cluster, run)
    if isinstance(config, str):
        return Built(waits_for=config)
    if config.validation != validator.spec.validation:
        return Built(
            waits_for=f"TrainingRun {run} has a different spec.validation; name this Validator in its spec.validatorRef, "
            "or make the two equal"
        )
    if config.storage != validator.spec.storage:
        return Built(
            waits_for=f"TrainingRun {run} has a different spec.storage; create a Validator with the run's storage"
        )
    secret = names.held_secret(config.run, config.roster.document, "validator")
    return Built(validator_children(validator, config_hashes(config)["validator"], secret))


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
    return RunConfig.from_json(text)


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
        join = NodeConfig.from_json(text)
        join.trust  # noqa: B018 - checked when it is made
    except (ValidationError, ValueError) as error:
        return f"node.json is wrong ({' '.join(str(error).split())[:300]}); copy it from the run's cluster"
    if join.run != run:
        return f"is for run {join.run}, but the pool's spec.run is {run}"
    return join


SCALED_KINDS: dict[str, ScaledKind] = {
    "RelayServer": ScaledKind(
        RelayServer, "StatefulSet", _build_relays, prunes=("Service", "Ingress"), more_status=_relay_addresses
    ),
    "Validator": ScaledKind(Validator, "Deployment", _build_validators),
    "InferencePool": ScaledKind(InferencePool, "StatefulSet", _build_pool),
}
