"""A run's turn in its Kueue queue: what its Workload says is whether pods may be, and what they must be told (ADR 0095).

`turn` decides, purely, from what the run asks for, the live Workload and whether pods are left. `take` does it. No quota goes back before the
last pod is gone, and no pod is made before all are admitted. Cost: a pass reads the run's workloads and pods from the cache, some milliseconds with
hundreds of workers. Each flavour is one request in ten seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.children.queue import (
    ASKS_ANNOTATION,
    STANDS,
    PodSet,
    QueueGrant,
    asks,
    assignments,
    capped,
    placed,
    workload,
)
from shoal_operator.children.workloads import WITH_PODS
from shoal_operator.engine.apply import job_state
from shoal_operator.engine.cluster import KUEUE, Cluster, ClusterError, Object, controller_of
from shoal_operator.engine.conditions import Condition, condition, is_true, merge
from shoal_operator.engine.kinds import SCALED_KINDS
from shoal_operator.reconcile.common import owned, owned_by, refuse_anothers, up_to_date
from shoal_operator.reconcile.decisions import parse_time

PENDING = "Pending"
"""Kueue's reason of a Workload that waits for quota."""
REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
"""Reasons of an eviction after which a Workload may be queued again as soon as its quota is back. Of others Kueue says when."""


NOT_READY = "not all pods of the run are ready"


class Step(Enum):
    """What to do with the Workload."""

    NOTHING = "nothing"
    WRITE = "write"
    DELETE = "delete"
    RELEASE = "release"
    FINISH = "finish"


@dataclass(frozen=True)
class Rest:
    """What is left of a run's pods: none of the work, and none at all. One that may be made at any moment counts."""

    work: bool = True
    all: bool = True


@dataclass(frozen=True)
class QueueTurn:
    """Whether a run must be without pods (`holds`), why, and what becomes of its Workload."""

    holds: bool = False
    step: Step = Step.NOTHING
    reason: str = ""
    message: str = ""

    def condition(self) -> Condition:
        """The condition `Queued` of the run."""
        return condition("Queued", self.holds, self.reason or "NotQueued", self.message)


class KueueAway(ClusterError):
    """Kueue's API is gone or cannot be seen while a run has pods. They go on: nobody took their quota back, and rights come and go in an upgrade."""

    condition = "KueueMissing"


class FlavorUnreadable(ClusterError):
    """A node flavour that a queue gave cannot be read."""

    condition = "FlavorUnreadable"


@dataclass(frozen=True)
class Quota:
    """A run's Workload, and what the queue gives each of its sets of pods. `unreadable`: why that is not known; no pod may then be made."""

    live: Object | None = None
    assigned: Mapping[str, QueueGrant] = field(default_factory=dict)
    unreadable: FlavorUnreadable | None = None

    def place(self, child: Object) -> Object:
        """The child on the nodes that the queue gave it."""
        return placed(child, self.assigned)

    def cap(self, child: Object, *, works: bool) -> Object:
        """The child with no more pods than the queue gave it."""
        return capped(child, self.assigned, works=works)


def quota_of(cluster: Cluster, owner: Object) -> Quota:
    """The Workload of a run as it is."""
    live = cluster.get("Workload", names.workload(owner["metadata"]["name"]))
    if live is None or not owned_by(live, owner):
        return Quota()

    def flavor(name: str) -> Object:
        try:
            found = cluster.read_foreign("ResourceFlavor", name)
        except ClusterError as error:
            if error.passing:
                raise
            raise FlavorUnreadable(
                f"ResourceFlavor {name} cannot be read ({error}): bind the operator's account to a ClusterRole that may get"
                " resourceflavors.kueue.x-k8s.io"
            ) from None
        if found is None and is_true(live, "Finished"):
            return {}  # nothing is made of it any more
        if found is None:
            raise FlavorUnreadable(f"ResourceFlavor {name}, which the queue gave, does not exist: make it again")
        return found

    try:
        return Quota(live, assignments(live, flavor))
    except FlavorUnreadable as error:
        return Quota(live, unreadable=error)  # a run that ends, rests or is evicted gives its quota back all the same


def turn(
    queue: str | None,
    sets: Sequence[PodSet],
    live: Object | None,
    rest: Rest,
    *,
    served: bool,
    ended: bool = False,
    waits: bool = False,
    priority: int = 0,
    now: datetime,
) -> QueueTurn:
    """Where a run is in its queue.

    Args:
        sets: what it asks for; none for a run that rests or has ended.
        live: its Workload, with its status.
        rest: what is left of its pods.
        served: whether the cluster has Kueue.
        ended: the run is complete or has failed.
        waits: the run waits for something else before it begins.

    Raises:
        KueueAway: Kueue cannot be asked about pods that are there.
    """
    if live is not None and live["metadata"].get("deletionTimestamp"):
        return QueueTurn(bool(sets), reason="Requeues", message="the earlier Workload is being deleted")
    if queue is None:
        return QueueTurn(step=Step.NOTHING if live is None else Step.DELETE)
    if ended:
        over = live is None or is_true(live, "Finished") or not rest.all
        return QueueTurn(step=Step.NOTHING if over else Step.FINISH, reason="Ended")
    if live is not None and is_true(live, "Evicted") and is_true(live, "QuotaReserved"):
        found = _condition(live, "Evicted")
        text = f"{_words(found)}; the run gives its quota back when its pods are gone"
        step = Step.RELEASE if rest.all else Step.NOTHING
        return QueueTurn(bool(sets), step, found.get("reason", "Evicted"), text)
    if not sets:
        kept = live is None or not rest.all or live["spec"].get("active") is False
        return QueueTurn(step=Step.NOTHING if kept else Step.DELETE, reason="Rests")
    if not served:
        lacks = f"spec.queueName is {queue}, but this cluster does not serve {KUEUE} to the operator's account"
        ways = "install Kueue 0.15 or later, or take spec.queueName out"
        if not rest.all:
            raise KueueAway(f"{lacks}; pods of the run go on as they are: {ways}")
        return QueueTurn(True, reason=KueueAway.condition, message=f"{lacks}: {ways}")
    if live is None:
        if waits and rest.all:
            return QueueTurn(reason="Waits")
        return QueueTurn(True, Step.WRITE, "Asks", f"asks queue {queue} for {_pods(sets)}")
    fits = live["metadata"].get("annotations", {}).get(ASKS_ANNOTATION) == asks(sets)
    same = fits and live["spec"].get("queueName") == queue
    reserved = is_true(live, "QuotaReserved")
    stale = not reserved and (not same or live["spec"].get("priority") != priority)
    write = Step.WRITE if stale else Step.NOTHING
    if live["spec"].get("active") is False:
        name = live["metadata"]["name"]
        text = f"Workload {name} has spec.active false: set it to true to queue the run again"
        return QueueTurn(True, write, "Deactivated", text)
    if is_true(live, "Finished") or (reserved and not same):
        text = "what the run asks for has changed: it gives its quota back and asks again"
        return QueueTurn(True, Step.DELETE if rest.all else Step.NOTHING, "Requeues", text)
    if not reserved:
        return QueueTurn(True, write, *_waiting(queue, live, now))
    if not is_true(live, "Admitted"):
        checks = [each for each in live["status"].get("admissionChecks", ()) if each.get("state") != "Ready"]
        said = "; ".join(f"{each['name']} is {each['state']} {each.get('message', '')}".strip() for each in checks)
        return QueueTurn(True, reason="AdmissionChecks", message=f"quota is reserved; waits for {said or 'admission'}")
    return QueueTurn(reason="Admitted", message=_admitted(sets, live, priority))


def _pods(sets: Sequence[PodSet]) -> str:
    return ", ".join(f"{each.count} {each.name}" for each in sets)


def _waiting(queue: str, live: Object, now: datetime) -> tuple[str, str]:
    """Reason and message of a Workload without quota: Kueue's own, with the remedy where it is ours to know."""
    found = _condition(live, "QuotaReserved")
    state = live.get("status", {}).get("requeueState") or {}
    again = parse_time(state.get("requeueAt"))
    if again is not None and again > now:
        return "BackOff", f"{_words(_condition(live, 'Evicted'))}; Kueue queues the run again at {state['requeueAt']}"
    if not found:
        return "NotSeen", f"waits for Kueue to look at Workload {live['metadata']['name']} of queue {queue}"
    if found.get("reason") == "Inadmissible":
        return (
            "QueueUnusable",
            f"{found.get('message', '')}; make LocalQueue {queue} in this namespace and its ClusterQueue, or name another in spec.queueName",
        )
    return PENDING, found.get("message") or f"waits for room in queue {queue}"


def _admitted(sets: Sequence[PodSet], live: Object, priority: int) -> str:
    admission = live["status"].get("admission") or {}
    counts = {each["name"]: each.get("count") for each in admission.get("podSetAssignments", ())}
    fewer = [
        f"{counts[each.name]} of {each.count} {each.name}"
        for each in sets
        if counts.get(each.name, each.count) != each.count
    ]
    has = live["spec"].get("priority", 0)
    later = f"priority {has} was admitted and stays; spec.queuePriority {priority} counts when the run is queued again"
    admits = f"ClusterQueue {admission.get('clusterQueue', '')} admits the run"
    return "; ".join([admits, *fewer, *([later] if has != priority else [])])


def _condition(live: Object, kind: str) -> dict[str, Any]:
    return next((each for each in live.get("status", {}).get("conditions", ()) if each["type"] == kind), {})


def _words(found: Mapping[str, Any]) -> str:
    return str(found.get("message") or found.get("reason") or "evicted")


def rest_of(cluster: Cluster, owner: Object) -> Rest:
    """What is left of a run's pods, and of what may make some. What others made for the run does not count: it is not in its queue."""
    run = owner["metadata"]["name"]
    kinds = {
        each["metadata"]["name"]: each
        for kind in SCALED_KINDS
        for each in cluster.list(kind, {names.RUN_LABEL: run})
        if owned_by(each, owner)
    }
    makers: dict[tuple[str, str], Object] = {}
    foreign: set[tuple[str, str]] = set()
    for kind in WITH_PODS:
        for found in cluster.list(kind, {names.RUN_LABEL: run}):
            above, key = controller_of(found), (kind, found["metadata"]["name"])
            if owned_by(found, owner) or (
                above is not None and above["kind"] in SCALED_KINDS and above["name"] in kinds
            ):
                makers[key] = found
            else:
                foreign.add(key)
    busy = [each for each in (*makers.values(), *kinds.values()) if not _rests(each)]
    busy += [pod for pod in cluster.list("Pod", {names.RUN_LABEL: run}) if _lives(pod) and _maker(pod) not in foreign]
    return Rest(
        work=not any(each["metadata"].get("labels", {}).get(names.COMPONENT_LABEL, "") not in STANDS for each in busy),
        all=not busy,
    )


def _rests(found: Object) -> bool:
    """Whether what makes pods has none, and makes none."""
    if found["kind"] == "Job":
        return job_state(found) != "running"
    status = found.get("status", {})
    return found["spec"].get("replicas", 1) == 0 and up_to_date(found) and not status.get("replicas")


def _lives(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _maker(pod: Object) -> tuple[str, str]:
    """The workload of a pod; a ReplicaSet stands for its Deployment."""
    above = controller_of(pod) or {"kind": "", "name": ""}
    if above["kind"] == "ReplicaSet":
        return "Deployment", above["name"].rpartition("-")[0]
    return above["kind"], above["name"]


def take(
    cluster: Cluster,
    owner: Object,
    run: TrainingRun,
    sets: Sequence[PodSet],
    live: Object | None,
    found: QueueTurn,
    why: str,
) -> None:
    """Do a turn's step. `why`: how the run has ended, in words.

    Raises:
        ClusterError: the Workload was refused, such as one of too many sets of pods.
    """
    name = names.workload(run.metadata.name)
    if found.step is Step.WRITE:
        there = cluster.get("Workload", name)
        if there is not None:
            refuse_anothers(there, owner)
        cluster.apply(owned(workload(run, sets), owner, cluster.namespace))
    elif live is None:
        return
    elif found.step is Step.DELETE:
        cluster.delete("Workload", name)
    elif found.step is Step.RELEASE:
        evicted = _condition(live, "Evicted")
        reason, message = evicted.get("reason", "Evicted"), evicted.get("message", "")
        again = reason in REQUEUED_AT_ONCE
        _say(
            cluster,
            live,
            [
                condition("QuotaReserved", False, PENDING, message),
                condition("Admitted", False, "NoReservation", "The workload has no reservation"),
                condition("Requeued", again, reason, message),
                # As after its first admission: how long Kueue waits for pods to recover may have no bound.
                condition("PodsReady", False, "WaitForStart", NOT_READY),
            ],
            admission=None,
        )
    elif found.step is Step.FINISH:
        reason = "Failed" if why else "Succeeded"
        _say(cluster, live, [condition("Finished", True, reason, why or "the run is complete")])


def tell_ready(cluster: Cluster, live: Object | None, *, ready: bool) -> None:
    """Say in the Workload whether all pods are ready, for Kueue's waitForPodsReady. Written when it changes, and for what is admitted alone."""
    if live is None or not is_true(live, "Admitted") or is_true(live, "Finished") or is_true(live, "Evicted"):
        return
    before = _condition(live, "PodsReady")
    if ready:
        if before.get("status") != "True":
            _say(cluster, live, [condition("PodsReady", True, "Started", "all pods of the run are ready")])
        return
    reason = (
        "WaitForRecovery"
        if before.get("status") == "True" or before.get("reason") == "WaitForRecovery"
        else "WaitForStart"
    )
    if before.get("status") != "False" or before.get("reason") != reason:
        _say(cluster, live, [condition("PodsReady", False, reason, NOT_READY)])


def _say(cluster: Cluster, live: Object, told: Iterable[Condition], **fields: None) -> None:
    """Merge conditions into a Workload's own, and remove `fields`."""
    new = merge(told, live, cluster.now())
    types = {each["type"] for each in new}
    kept = [each for each in live.get("status", {}).get("conditions", ()) if each["type"] not in types]
    cluster.merge_status(live, {"conditions": [*kept, *new], **fields})
