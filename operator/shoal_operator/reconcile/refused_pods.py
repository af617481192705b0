"""Pods that were never made: refused by a quota, a limit range, a priority class or a webhook. Their controller says so. Of a Job that somebody else
suspended nobody does."""

from shoal_operator.children.workloads import WITH_PODS, selector_of
from shoal_operator.engine.apply import job_state
from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.reconcile.common import replica_counts
from shoal_operator.reconcile.decisions import parse_time
from shoal_operator.reconcile.last_words import without_secrets

REASON, SUSPENDED = "PodsRefused", "JobSuspended"
FAILED_CREATE = "FailedCreate"
"""Reason of the Events of controllers whose pods, or whose pods' claims, were not admitted."""
MOST_TEXT = 500
MOST_SETS = 3
"""StatefulSets of one LeaderWorkerSet about which Events are read."""


def lacks_pods(workload: Object | None) -> bool:
    """Whether fewer pods exist than the workload should have made."""
    if workload is None or workload["kind"] not in WITH_PODS:
        return False
    if workload["kind"] != "Job":
        wanted, made, _ = replica_counts(workload)
        return made < wanted
    status = workload.get("status", {})
    made = sum(int(status.get(each) or 0) for each in ("active", "succeeded"))
    waits = _suspended(workload) or job_state(workload) != "running"
    return not waits and made < int(workload["spec"].get("parallelism", 1))


def _suspended(workload: Object) -> bool:
    return workload["kind"] == "Job" and workload["spec"].get("suspend") is True and job_state(workload) == "running"


def refused_pods(cluster: Cluster, workload: Object | None) -> tuple[str, str] | None:
    """Reason and message for a workload whose pods were refused; None when none lack, or nobody has said why.

    A Deployment has a condition for it. Of StatefulSets and Jobs only Events tell, which are read only while pods lack.
    """
    if workload is not None and _suspended(workload):
        return SUSPENDED, (
            f"Job {workload['metadata']['name']} was suspended by others, as Kueue does to Jobs without a queue where a LocalQueue is named default"
            " or manageJobsWithoutQueueName is set: give that LocalQueue another name, or take the namespace out of managedJobsNamespaceSelector"
        )
    if workload is None or (workload["kind"] != "LeaderWorkerSet" and not lacks_pods(workload)):
        return None
    if workload["kind"] == "LeaderWorkerSet":
        return _refused_in_groups(cluster, workload)
    conditions = workload.get("status", {}).get("conditions") or []
    said = next(
        (
            each.get("message", "")
            for each in conditions
            if (each["type"], each["status"]) == ("ReplicaFailure", "True")
        ),
        "",
    )
    if not said and workload["kind"] != "Deployment":
        _, said = cluster.warning_about(workload, FAILED_CREATE)
    text = " ".join(without_secrets(said).split())
    return (REASON, f"{workload['kind']} {workload['metadata']['name']}: {text[:MOST_TEXT]}") if text else None


def _refused_in_groups(cluster: Cluster, workload: Object) -> tuple[str, str] | None:
    """Of a LeaderWorkerSet, whose pods are made by StatefulSets that are not watched: one of its own name for the groups' first pods, and
    `<set>-<group>` for the others of a group. Asks about the first few that lack pods."""
    name, size = workload["metadata"]["name"], workload["spec"]["leaderWorkerTemplate"]["size"]
    pods = {each["metadata"]["name"] for each in cluster.list("Pod", selector_of(workload))}
    lacking = dict[str, None]()
    for group in range(workload["spec"]["replicas"]):
        leader = f"{name}-{group}"
        if leader not in pods:
            lacking[name] = None
        elif any(f"{leader}-{place}" not in pods for place in range(1, size)):
            lacking[leader] = None
    since = parse_time(workload["metadata"].get("creationTimestamp"))
    for each in list(lacking)[:MOST_SETS]:
        made = {"kind": "StatefulSet", "metadata": {"name": each}}
        _, said = cluster.warning_about(made, FAILED_CREATE, since)
        if text := " ".join(without_secrets(said).split()):
            return REASON, f"StatefulSet {each} of LeaderWorkerSet {name}: {text[:MOST_TEXT]}"
    return None
