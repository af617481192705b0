"""Reconciles a RelayServer: Service and StatefulSet of a run's relays."""

from shoal_operator.api import RelayServer
from shoal_operator.children import names, relay_server_children
from shoal_operator.engine.cluster import Cluster
from shoal_operator.reconcile.common import apply_children, parse, scaled_conditions, scaled_status, write_status
from shoal_operator.reconcile.run_config import read_config_hashes


def reconcile_relay_server(cluster: Cluster, name: str) -> float | None:
    """Make the children and the status of the relays right."""
    live = cluster.get("RelayServer", name)
    if live is None or live["metadata"].get("deletionTimestamp"):
        return None
    relay = parse(RelayServer, live)
    config_name = names.config(relay.spec.run)
    hashes = read_config_hashes(cluster.get("ConfigMap", config_name))
    waits_for = hashes if isinstance(hashes, str) else ""
    if not isinstance(hashes, str):
        apply_children(cluster, live, relay_server_children(relay, hashes["relay"]))
    workload = cluster.get("StatefulSet", name)
    write_status(
        cluster,
        live,
        scaled_status(workload),
        scaled_conditions(workload, f"ConfigMap {config_name}: {waits_for}" if waits_for else ""),
    )
    return None
