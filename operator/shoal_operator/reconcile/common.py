"""What the four reconcilers share: applying children under their owner, and writing a status only when it changed."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from shoal_operator.engine.apply import Action, decide, with_hash
from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.engine.conditions import Condition, condition, merge

Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], live: Object) -> Model:
    """A live object of one of our kinds as its model, without the status, which is ours to write and not to read."""
    return model.model_validate({key: value for key, value in live.items() if key != "status"})


def owned(child: Object, owner: Object, namespace: str) -> Object:
    """A copy of a child that lies in the namespace and is collected with its owner."""
    made = copy.deepcopy(child)
    made["metadata"]["namespace"] = namespace
    made["metadata"]["ownerReferences"] = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    return made


def apply_children(cluster: Cluster, owner: Object, children: Iterable[Object]) -> None:
    """Make each child what it should be, in order; what is right already is not touched."""
    for child in children:
        wanted = owned(child, owner, cluster.namespace)
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        match decide(wanted, cluster.get(kind, name)):
            case Action.APPLY:
                cluster.apply(with_hash(wanted))
            case Action.REPLACE:
                # Pods of a replaced StatefulSet or Deployment go on; a Job's are part of it. It is made anew once it is gone.
                cluster.delete(kind, name, orphan=kind != "Job")


def write_status(cluster: Cluster, live: Object, status: Mapping[str, Any], conditions: Iterable[Condition]) -> None:
    """Write the status of one of our objects, without fields that are None, unless it is there already."""
    new = {key: value for key, value in status.items() if value is not None}
    new["observedGeneration"] = live["metadata"].get("generation", 1)
    new["conditions"] = merge(conditions, live, cluster.now())
    if new != live.get("status"):
        cluster.apply_status(live["kind"], live["metadata"]["name"], new)


def replica_counts(workload: Object | None) -> tuple[int, int, int]:
    """Replicas wanted, existing and ready of a StatefulSet, a Deployment or one of our scaled kinds."""
    if workload is None:
        return 0, 0, 0
    status = workload.get("status", {})
    return workload["spec"].get("replicas", 1), status.get("replicas", 0), status.get("readyReplicas", 0)


def up_to_date(workload: Object) -> bool:
    """Whether the workload's own controller has seen its newest spec."""
    seen = workload.get("status", {}).get("observedGeneration")
    return seen is not None and seen >= workload["metadata"].get("generation", 1)


def scaled_conditions(workload: Object | None, waits_for: str = "") -> list[Condition]:
    """Ready and Progressing of a kind with replicas, from its workload. `waits_for` says what keeps it from being built."""
    if waits_for:
        return [condition("Ready", False, "Waiting", waits_for), condition("Progressing", True, "Waiting", waits_for)]
    wanted, _, ready = replica_counts(workload)
    message = f"{ready} of {wanted} pods are ready"
    settled = workload is not None and up_to_date(workload) and ready == wanted
    if settled and wanted == 0:
        reason = "ScaledToZero"
        return [condition("Ready", False, reason, message), condition("Progressing", False, reason, message)]
    reason = "PodsReady" if settled else "PodsNotReady"
    return [condition("Ready", settled, reason, message), condition("Progressing", not settled, reason, message)]


def scaled_status(workload: Object | None) -> dict[str, Any]:
    """Replica counts and selector, for the status and the scale subresource."""
    _, replicas, ready = replica_counts(workload)
    labels = (workload or {}).get("spec", {}).get("selector", {}).get("matchLabels", {})
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return {"replicas": replicas, "readyReplicas": ready, "selector": selector or None}
