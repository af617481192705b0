"""Level-triggered reconcile: look at the world, compute the children, apply what differs, write one status.

`reconcile(cluster, kind, name)` is what the engine calls on a cluster for each key of its queue. The run on one machine calls it for each of its
objects a few times a second. It may be called at any time and any number of times.
"""

from collections.abc import Callable
from functools import partial

from shoal_operator.engine.cluster import Cluster, ClusterError
from shoal_operator.reconcile.common import tell_failure
from shoal_operator.reconcile.scaled import SCALED_KINDS, reconcile_scaled
from shoal_operator.reconcile.stalled import stall_of_failing
from shoal_operator.reconcile.training_run import reconcile_training_run


def _scaled(kind: str, cluster: Cluster, name: str) -> float | None:
    return reconcile_scaled(cluster, kind, name)


RECONCILERS: dict[str, Callable[[Cluster, str], float | None]] = {
    "TrainingRun": reconcile_training_run,
    **{kind: partial(_scaled, kind) for kind in SCALED_KINDS},
}
"""By kind: makes the named object's children and status right; returns seconds after which to look again although nothing changed."""


def reconcile(cluster: Cluster, kind: str, name: str) -> float | None:
    """Reconcile one object; one that does not exist needs nothing. Raises `ClusterError` when it must be tried again; why is in its status."""
    try:
        return RECONCILERS[kind](cluster, name)
    except ClusterError as error:
        tell_failure(cluster, kind, name, error, stall_of_failing)
        raise
    except Exception as error:
        # A fault of ours, perhaps by what somebody wrote. Whoever looks at the object sees that nothing is done for it, and its run stalls; the
        # text is for the log alone, as it may quote what was read.
        said = ClusterError(f"unexpected {type(error).__name__}: the operator's log says where")
        tell_failure(cluster, kind, name, said, stall_of_failing)
        raise


__all__ = ["RECONCILERS", "reconcile"]
