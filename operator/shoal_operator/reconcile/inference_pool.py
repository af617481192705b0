"""Reconciles an InferencePool: its workers' configuration, Service and StatefulSet. It waits for the run's ConfigMap that says how to join."""

from pydantic import ValidationError

from shoal.contracts.run import NodeConfig
from shoal_operator.api import InferencePool
from shoal_operator.children import inference_pool_children, names
from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.reconcile.common import apply_children, parse, scaled_conditions, scaled_status, write_status


def reconcile_inference_pool(cluster: Cluster, name: str) -> float | None:
    """Make the children and the status of a pool right."""
    live = cluster.get("InferencePool", name)
    if live is None or live["metadata"].get("deletionTimestamp"):
        return None
    pool = parse(InferencePool, live)
    join_name = pool.spec.join_config_map or names.join(pool.spec.run)
    join = read_join(cluster.get("ConfigMap", join_name), pool.spec.run)
    waits_for = join if isinstance(join, str) else ""
    if isinstance(join, NodeConfig):
        apply_children(cluster, live, inference_pool_children(pool, join))
    workload = cluster.get("StatefulSet", name)
    write_status(
        cluster,
        live,
        scaled_status(workload),
        scaled_conditions(workload, f"ConfigMap {join_name}: {waits_for}" if waits_for else ""),
    )
    return None


def read_join(config_map: Object | None, run: str) -> NodeConfig | str:
    """How to join the run, or in words why that is not known. The ConfigMap may have been copied by hand from another cluster."""
    if config_map is None:
        return f"does not exist; the TrainingRun {run} makes it, or copy it from the run's cluster"
    text = config_map.get("data", {}).get("node.json")
    if text is None:
        return "has no entry node.json; copy it from the run's cluster"
    try:
        join = NodeConfig.from_json(text)
        join.trusted_roster()
    except (ValidationError, ValueError) as error:
        return f"node.json is wrong ({' '.join(str(error).split())[:300]}); copy it from the run's cluster"
    if join.run != run:
        return f"is for run {join.run}, but the pool's spec.run is {run}"
    return join
