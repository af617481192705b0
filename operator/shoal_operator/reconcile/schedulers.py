"""Two schedulers that hold the same pods back: Kueue's queue of a run, and a scheduler with queues of its own.

Kueue gives quota to the whole run and knows nothing of such a scheduler's quota. That one holds back pods which Kueue has admitted: both may wait
forever, with GPUs taken. Looked at before anything of a run exists, so that no run stops at an upgrade. Costs nothing where no queue is named.
"""

from collections.abc import Iterator
from typing import Any

from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.engine.cluster import Cluster, ClusterError

WITH_QUEUES = frozenset({"kai-scheduler", "koord-scheduler", "volcano", "yunikorn"})
"""Names under which these schedulers are installed by their own charts. Others are taken for schedulers that only choose nodes."""


class TwoSchedulers(ClusterError):
    """A run is in Kueue's queue, and in another scheduler's too."""

    condition = "TwoSchedulers"


def require_one_scheduler(cluster: Cluster, run: TrainingRun) -> None:
    """Raise TwoSchedulers for a run of which nothing exists yet."""
    if run.spec.queue_name is None or cluster.get("ConfigMap", names.config(run.metadata.name)) is not None:
        return
    found = sorted(schedulers(run.spec.model_dump(mode="json", by_alias=True, exclude_unset=True), "spec"))
    if asked := [f"{field} is {name}" for field, name in found if name in WITH_QUEUES]:
        raise TwoSchedulers(
            f"spec.queueName is {run.spec.queue_name}, so Kueue admits the run, and {', '.join(asked)}, which has queues of its own: pods could wait"
            " for both forever. Take spec.queueName out, or name no scheduler that has queues"
        )


def schedulers(found: Any, path: str) -> Iterator[tuple[str, str]]:
    """Path and value of each `schedulerName` in a manifest."""
    below = (
        [(f"{path}.{key}", each) for key, each in found.items()]
        if isinstance(found, dict)
        else [(f"{path}[{number}]", each) for number, each in enumerate(found if isinstance(found, list) else ())]
    )
    for where, each in below:
        if where.endswith(".schedulerName") and isinstance(each, str):
            yield where, each
        yield from schedulers(each, where)
