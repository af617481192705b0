"""What all reconcilers share: applying children under their owner, removing what is no longer wanted, writing a status only when it changed."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from shoal_operator.api.base import quantity_value
from shoal_operator.children import names
from shoal_operator.engine.apply import CREATION_ONLY, Action, contains, decide, with_hash, without
from shoal_operator.engine.cluster import Cluster, ClusterError, Object
from shoal_operator.engine.conditions import Condition, condition, merge
from shoal_operator.engine.kinds import SCALED_KINDS

MAX_FAILURE = 1000
"""Characters of a failure in a condition, which is read in one line."""

Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], live: Object) -> Model:
    """A live object of one of our kinds as its model, without the status, which is ours to write and not to read.

    Raises ClusterError for one that the API server took by other CRDs than ours.
    """
    try:
        return model.model_validate({key: value for key, value in live.items() if key != "status"})
    except ValidationError as error:
        first, count = error.errors()[0], error.error_count()
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise ClusterError(
            f"{live['kind']} {live['metadata']['name']}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}{more}; this "
            "operator cannot read it: apply the CRDs of the same release (crds/), then write the object again"
        ) from None


def owned(child: Object, owner: Object, namespace: str) -> Object:
    """The child as one that lies in the namespace and is collected with its owner; what does not change is shared with the one given."""
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    return {**child, "metadata": {**child["metadata"], "namespace": namespace, "ownerReferences": references}}


def owned_by(live: Object, owner: Object) -> bool:
    """Whether this owner, and not an earlier one of the same name, controls a live object."""
    found = controller_of(live)
    return found is not None and found.get("uid") == owner["metadata"]["uid"]


def refuse_anothers(live: Object, owner: Object) -> None:
    """Raise ClusterError for an object that something else controls: a child of a run of the same name that was deleted a
    moment ago (its end takes the child along); or one of another owner that happens to be called the same, and that both would write in turn forever.
    """
    found = controller_of(live)
    if found is None or owned_by(live, owner):
        return
    what = f"{live['kind']} {live['metadata']['name']}"
    if (found["kind"], found["name"]) == (owner["kind"], owner["metadata"]["name"]):
        raise ClusterError(
            f"{what} belongs to an earlier {found['kind']} {found['name']}; waits until Kubernetes deletes it"
        )
    raise ClusterError(
        f"{what} belongs to {found['kind']} {found['name']}; rename one of the two, because their children would have the same name"
    )


def adopt(cluster: Cluster, owner: Object, run: str) -> None:
    """Take over Jobs and Secrets that a run of this name left without a controller, as `kubectl delete --cascade=orphan` does.

    They carry the run's labels and a name of its children. All other kinds are written at each pass, and so get their owner; a Job that ended and
    a Secret never are. Cost: one read of both from the cache, and one request for each that is taken over.
    """
    for kind in ("Secret", "Job"):
        for found in cluster.list(kind, {names.RUN_LABEL: run}):
            metadata = found["metadata"]
            named = metadata["name"].startswith(f"{run}-")
            if named and controller_of(found) is None and not metadata.get("deletionTimestamp"):
                # With the uid nothing is made anew, empty, should the object be gone meanwhile.
                identity = {"name": metadata["name"], "uid": metadata["uid"]}
                bare = {"apiVersion": found["apiVersion"], "kind": kind, "metadata": identity}
                cluster.adopt(owned(bare, owner, cluster.namespace))


def controller_of(live: Object) -> dict[str, Any] | None:
    """The reference to what controls an object, or None."""
    return next((each for each in live["metadata"].get("ownerReferences", ()) if each.get("controller")), None)


def apply_children(cluster: Cluster, owner: Object, children: Iterable[Object]) -> str:
    """Make each child what it should be, in order; what is right already is not touched. One that is refused does not keep the others.

    Returns:
        What the cluster said to the first claim that it did not let grow, empty when all are well: pods continue with the volumes that they have.

    Raises:
        ClusterError: a child was refused, or the cluster could not be asked.
    """
    refused, failed = "", None
    for child in children:
        wanted = owned(child, owner, cluster.namespace)
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        live = cluster.get(kind, name)
        if live is not None:
            refuse_anothers(live, owner)
            wanted = without(not_smaller(wanted, live), CREATION_ONLY)
        elif kind in SCALED_KINDS and "replicas" not in wanted["spec"]:
            continue  # deleted since its number was looked at; we are called again for that, and then it is made as a new one
        try:
            match decide(wanted, live):
                case Action.APPLY:
                    cluster.apply(with_hash(wanted))
                case Action.REPLACE:
                    cluster.delete(kind, name, orphan=pods_go_on(wanted, live or {}))
        except ClusterError as error:
            if error.passing:
                raise
            if kind == "PersistentVolumeClaim" and live is not None:
                refused = refused or _not_grown(name, error)
            else:
                failed = failed or error
    if failed is not None:
        raise failed
    return refused


def not_smaller(wanted: Object, live: Object) -> Object:
    """A claim that does not shrink: volumes grow, and an API server refuses anything else."""
    if wanted["kind"] != "PersistentVolumeClaim":
        return wanted
    have = live.get("spec", {}).get("resources", {}).get("requests", {}).get("storage")
    want = wanted["spec"]["resources"]["requests"]["storage"]
    if have is None or quantity_value(have) <= quantity_value(want):
        return wanted
    kept = copy.deepcopy(wanted)
    kept["spec"]["resources"]["requests"]["storage"] = have
    return kept


def pods_go_on(wanted: Object, live: Object) -> bool:
    """Whether the pods of a workload that is replaced may continue without it until its successor takes them over.

    A Job's pods are part of it. Pods that the successor's selector would not find would be nobody's forever.
    """
    if wanted["kind"] == "Job":
        return False
    return contains(live.get("spec", {}).get("selector"), wanted.get("spec", {}).get("selector"))


def prune(cluster: Cluster, owner: Object, run: str, kinds: Sequence[str], children: Iterable[Object]) -> None:
    """Delete the owner's children of these kinds that are no longer wanted. Others' objects are never touched, whatever they are called."""
    wanted = {(child["kind"], child["metadata"]["name"]) for child in children}
    for kind in kinds:
        for found in cluster.list(kind, {names.RUN_LABEL: run}):
            metadata = found["metadata"]
            if (
                owned_by(found, owner)
                and (kind, metadata["name"]) not in wanted
                and not metadata.get("deletionTimestamp")
            ):
                cluster.delete(kind, metadata["name"])


def grow_claims(cluster: Cluster, set_name: str, run: str, sizes: Mapping[str, str | int]) -> str:
    """Make the claims of a StatefulSet's pods as large as its template now says; the StatefulSet itself never does that.

    Args:
        sizes: size by name of the claim template; a pod's claim is called `<template>-<set>-<number>`.

    Returns:
        What the cluster said to the first that it refused, empty when all are well. A storage class that cannot grow its volumes is common, and the
        pods continue with those they have.
    """
    refused = ""
    for live in cluster.list("PersistentVolumeClaim", {names.RUN_LABEL: run, names.SET_LABEL: set_name}):
        name = live["metadata"]["name"]
        template = next((each for each in sizes if name.startswith(f"{each}-{set_name}-")), None)
        if template is None or live["metadata"].get("deletionTimestamp"):
            continue
        wanted = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": cluster.namespace},
            "spec": {"resources": {"requests": {"storage": sizes[template]}}},
        }
        if not contains(live, not_smaller(wanted, live)):
            try:
                cluster.apply(wanted)
            except ClusterError as error:
                refused = refused or _not_grown(name, error)
    return refused


def _not_grown(claim: str, error: ClusterError) -> str:
    return f"claim {claim} cannot grow: {' '.join(str(error).split())[:300]}"


def write_status(cluster: Cluster, live: Object, status: Mapping[str, Any], conditions: Iterable[Condition]) -> None:
    """Write the status of one of our objects, without fields that are None at any depth: no field may be null. Does nothing if it is there
    already."""
    new = _given(status)
    new["observedGeneration"] = live["metadata"].get("generation", 1)
    new["conditions"] = merge(conditions, live, cluster.now())
    if new != live.get("status"):
        cluster.apply_status(live["kind"], live["metadata"]["name"], new)


def _given(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _given(value) if isinstance(value, dict) else value for key, value in found.items() if value is not None
    }


def tell_failure(cluster: Cluster, kind: str, name: str, error: ClusterError) -> None:
    """Say in an object's Ready condition why its reconcile failed, when that will last; all else of the status stands.

    A run that never got further has the phase Blocked.
    """
    live = cluster.get(kind, name)
    if error.passing or live is None or live["metadata"].get("deletionTimestamp"):
        return
    text = " ".join(str(error).split())[:MAX_FAILURE]
    (ready,) = merge([condition("Ready", False, error.condition, text)], live, cluster.now())
    before = live.get("status", {})
    others = [each for each in before.get("conditions", []) if each["type"] != "Ready"]
    new = {**before, "observedGeneration": live["metadata"].get("generation", 1), "conditions": [ready, *others]}
    if kind == "TrainingRun":
        new.setdefault("phase", "Blocked")
    if new != before:
        try:
            cluster.apply_status(kind, name, new)
        except ClusterError:
            pass  # the failure itself is logged by whoever called, and told at the next try


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
