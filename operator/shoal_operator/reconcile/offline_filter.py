"""The offline filter of a run: its own TrainingRun is made, waited for, and put to rest once its counts are read.

Called by `training_run` at each reconcile, before anything else is made. What the filter's run does is its own reconcile's business,
which also corrects a status that somebody wrote over. Until then a false failure holds the run up.
"""

from dataclasses import dataclass, field

from shoal_operator.api import TrainingRun
from shoal_operator.children.offline_filter import filter_training_run
from shoal_operator.children.own_kinds import References
from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.engine.conditions import is_true
from shoal_operator.reconcile.common import apply_children
from shoal_operator.reconcile.other_runs import Wait, completed


@dataclass(frozen=True)
class FilterState:
    """What the run waits for, or why its filter has failed; both empty when there is none, or when it is done."""

    waits: Wait = field(default_factory=Wait)
    failure: str = ""


def sample_first(
    cluster: Cluster, live: Object, run: TrainingRun, references: References, *, prepared: bool, rest: bool
) -> FilterState:
    """Bring the filter's run to its desired state. With `rest` (suspended, out of time) or when the run is `prepared`, it stops."""
    wanted = filter_training_run(run, references, suspend=prepared or rest)
    if wanted is None:
        return FilterState()
    name = wanted["metadata"]["name"]
    if prepared and cluster.get("TrainingRun", name) is None:
        return FilterState()  # its counts were read, and somebody has removed it since
    apply_children(cluster, live, [wanted])
    return FilterState() if prepared else _state(cluster, name)


def _state(cluster: Cluster, name: str) -> FilterState:
    what = f"TrainingRun {name}, which samples every task (spec.tasks.offlineFilter)"
    child = cluster.get("TrainingRun", name)
    status = (child or {}).get("status", {})
    if child is not None and completed(cluster, child):
        return FilterState()
    if is_true(child, "Failed"):
        why = _message(status, "Failed", "True")
        return FilterState(failure=f"{what}, has failed: {why}; delete it to sample again")
    well = not is_true(child, "Stalled")
    dataset = status.get("dataset")
    if dataset is not None:
        lacks = _message(status, "Ready", "False")  # a pool without pods: nobody should have to look there for it
        far = f"{dataset['slicesCollected']} of {dataset['slices']} parts are sampled"
        return FilterState(Wait(f"waits for {what}: {far}" + (f"; {lacks}" if lacks else ""), well))
    doing = _message(status, "Progressing")
    return FilterState(Wait(f"waits for {what}" + (f": {doing}" if doing else ""), well))


def _message(status: Object, type_: str, is_: str | None = None) -> str:
    """The message of a condition with this status, if it exists."""
    for each in status.get("conditions", []):
        if each["type"] == type_ and is_ in (None, each["status"]):
            return str(each.get("message", ""))
    return ""
