"""Level-triggered reconcile: look at the world, compute the children, apply what differs, write one status.

`reconcile(cluster, kind, name)` is what the engine calls on a cluster for each key of its queue. The run on one machine calls it for each of its
objects a few times a second. It may be called at any time and any number of times.
"""

from shoal_operator.engine.cluster import Cluster, ClusterError
from shoal_operator.reconcile.common import tell_failure
from shoal_operator.reconcile.scaled import reconcile_scaled
from shoal_operator.reconcile.stalled import stall_of_failing
from shoal_operator.reconcile.training_run import reconcile_training_run


def reconcile(cluster: Cluster, kind: str, name: str) -> float | None:
    """Make one object's children and status right; one that does not exist needs nothing. Returns seconds after which to look again although nothing
    changed. Raises `ClusterError` when it must be tried again; why is in its status."""
    try:
        if kind == "TrainingRun":
            return reconcile_training_run(cluster, name)
        return reconcile_scaled(cluster, kind, name)
    except ClusterError as error:
        tell_failure(cluster, kind, name, error, stall_of_failing)
        raise
    except Exception as error:
        # A fault of ours, perhaps by what somebody wrote. Whoever looks at the object sees that nothing is done for it, and its run stalls; the
        # text is for the log alone, as it may quote what was read.
        said = ClusterError(f"unexpected {type(error).__name__}: the operator's log says where")
        tell_failure(cluster, kind, name, said, stall_of_failing)
        raise


__all__ = ["reconcile"]
