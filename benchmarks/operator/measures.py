"""The figures, each by one function: what is done, what is waited for, what the clock says. `__main__.py` calls them in this order."""

import time
from collections.abc import Sequence

from benchmarks.operator.cluster import (
    NAMESPACE,
    OPERATOR_NAMESPACE,
    Bench,
    Deadline,
    Kube,
    Object,
    OperatorProcess,
    Seen,
    kill,
    pool_name,
    wait,
)
from shoal_operator.engine.kinds import CHILDREN, OWN

MANAGED = "app.kubernetes.io/managed-by=shoal-operator"
CHILD_KINDS = ("ConfigMap", "Service", "StatefulSet", "NetworkPolicy", "PodDisruptionBudget")
FIRST_VALUE = 1000
"""Replicas that a change asks for: a number that says which change it was. Nothing makes pods here."""


def apply_seconds(bench: Bench, seen: Seen, pools: int) -> tuple[float, int]:
    """Seconds from the first create until every child of every pool is there, and how many children that is."""
    began = time.monotonic()
    bench.make_pools(pools)
    wait(f"the StatefulSets of {pools} pools", lambda: len(seen.names) >= pools, 600)
    last = time.monotonic()
    # A StatefulSet is not the last child of its pool: the others are counted until none comes any more.
    count = children(bench.kube)
    while True:
        time.sleep(0.5)
        again = children(bench.kube)
        if again == count:
            break
        count, last = again, time.monotonic()
    if count % pools:
        raise Deadline(f"{count} children of {pools} pools: some are missing")
    return last - began, count


def children(kube: Kube) -> int:
    """How many objects the operator has made for pools."""
    found = [each for kind in CHILD_KINDS for each in kube.list(kind, NAMESPACE, MANAGED)]
    return sum(each["metadata"]["ownerReferences"][0]["kind"] == "InferencePool" for each in found)


def change_latencies(bench: Bench, seen: Seen, pools: int, *, rate: float, seconds: float) -> list[float]:
    """Milliseconds from a change of a spec until its child is applied, for changes at a steady rate, each of another pool than the last."""
    sent: dict[tuple[str, int], float] = {}
    began = time.monotonic()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        change = pool_name(number % pools), FIRST_VALUE + number
        sent[change] = time.monotonic()
        bench.kube.merge("InferencePool", change[0], NAMESPACE, {"spec": {"replicas": change[1]}}, manager="bench")
    wait("the last change", lambda: change in seen.replicas, 60)
    taken = [1000 * (seen.replicas[key] - at) for key, at in sent.items() if key in seen.replicas]
    if len(taken) < 0.9 * len(sent):
        raise Deadline(f"only {len(taken)} of {len(sent)} changes were seen in a child")
    return sorted(taken)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the sorted values lies."""
    return values[min(len(values) - 1, int(share * len(values)))]


def reconciles(process: OperatorProcess) -> float:
    """Reconciles that a replica has finished."""
    return sum(
        float(value) for name, value in process.metrics().items() if "controller_runtime_reconcile_total{" in name
    )


def is_through(process: OperatorProcess, pools: int) -> bool:
    """Whether a replica has looked at every pool and at the run, and has nothing in hand."""
    return reconciles(process) >= pools + 1 and process.metrics().get('workqueue_depth{name="shoal"}') == 0


def cold_start(bench: Bench, pools: int) -> tuple[OperatorProcess, float, int]:
    """Start the operator beside everything that is there. Returns it, the seconds until all was looked at, and its writes, which are printed."""
    bench.kube.delete("Lease", "shoal-operator", OPERATOR_NAMESPACE)
    bench.audit.mark()
    began = time.monotonic()
    process = bench.operator("cold")
    wait("every pool to be looked at", lambda: is_through(process, pools), 300)
    seconds = time.monotonic() - began
    time.sleep(3.0)  # what it might still write
    writes = bench.audit.writes()
    for each in writes:
        print(f"a write at a cold start: {each.verb} {each.resource} {each.namespace}/{each.name}", flush=True)
    return process, seconds, len(writes)


def failover_seconds(bench: Bench, seen: Seen, leader: OperatorProcess) -> float:
    """Seconds from SIGKILL of the leader until a change that was made at that moment is applied by the other replica."""
    standby = bench.operator("standby")
    wait("the standby to have listed everything", standby.is_ready, 60)
    kill(leader)
    began = time.monotonic()
    name, value = pool_name(0), 9_999
    bench.kube.merge("InferencePool", name, NAMESPACE, {"spec": {"replicas": value}}, manager="bench")
    wait("the standby to take over", lambda: (name, value) in seen.replicas, 120, interval=0.01)
    return seen.replicas[name, value] - began


def recorded(kube: Kube) -> list[Object]:
    """All objects of our kinds and their children, for the replayed stream."""
    found = [each for kind in OWN for each in kube.list(kind, NAMESPACE)]
    for kind in CHILDREN:
        found += kube.list(kind, NAMESPACE, MANAGED)
    return found
