"""Level-triggered reconcile: look at the world, compute the children, apply what differs, write one status. One module a kind, all of one shape.

`reconcile(cluster, kind, name)` is what the engine calls on a cluster for each key of its queue; `reconcile_all(cluster)` is the same for everything
in a namespace, as the run on one machine does a few times a second. Either may be called at any time and any number of times.
"""

from collections.abc import Callable

from shoal_operator.engine.cluster import Cluster
from shoal_operator.reconcile.inference_pool import reconcile_inference_pool
from shoal_operator.reconcile.relay_server import reconcile_relay_server
from shoal_operator.reconcile.training_run import reconcile_training_run
from shoal_operator.reconcile.validator import reconcile_validator

RECONCILERS: dict[str, Callable[[Cluster, str], float | None]] = {
    "TrainingRun": reconcile_training_run,
    "RelayServer": reconcile_relay_server,
    "Validator": reconcile_validator,
    "InferencePool": reconcile_inference_pool,
}
"""By kind: makes the named object's children and status right; returns seconds after which to look again although nothing changed."""


def reconcile(cluster: Cluster, kind: str, name: str) -> float | None:
    """Reconcile one object; one that does not exist needs nothing. Raises `ClusterError` when it must be tried again."""
    return RECONCILERS[kind](cluster, name)


def reconcile_all(cluster: Cluster) -> None:
    """Reconcile every object of our kinds, owners before what they own, so that one call sees a new run through."""
    for kind in RECONCILERS:
        for found in cluster.list(kind, {}):
            reconcile(cluster, kind, found["metadata"]["name"])


__all__ = ["RECONCILERS", "reconcile", "reconcile_all"]
