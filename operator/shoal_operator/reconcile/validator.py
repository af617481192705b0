"""Reconciles a Validator: the Deployment of a run's validators."""

from shoal_operator.api import Validator
from shoal_operator.children import names, validator_children
from shoal_operator.engine.cluster import Cluster
from shoal_operator.reconcile.common import apply_children, parse, scaled_conditions, scaled_status, write_status
from shoal_operator.reconcile.run_config import read_config_hashes


def reconcile_validator(cluster: Cluster, name: str) -> float | None:
    """Make the children and the status of the validators right."""
    live = cluster.get("Validator", name)
    if live is None or live["metadata"].get("deletionTimestamp"):
        return None
    validator = parse(Validator, live)
    config_name = names.config(validator.spec.run)
    hashes = read_config_hashes(cluster.get("ConfigMap", config_name))
    waits_for = hashes if isinstance(hashes, str) else ""
    if not isinstance(hashes, str):
        apply_children(cluster, live, validator_children(validator, hashes["validator"]))
    workload = cluster.get("Deployment", name)
    write_status(
        cluster,
        live,
        scaled_status(workload),
        scaled_conditions(workload, f"ConfigMap {config_name}: {waits_for}" if waits_for else ""),
    )
    return None
