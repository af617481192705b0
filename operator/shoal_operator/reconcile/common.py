"""What all reconcilers share: applying children under their owner, removing what is no longer wanted, writing a status only when it changed."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from shoal_operator.api.volumes import ClaimRetention
from shoal_operator.children import names
from shoal_operator.children.claims import VolumeClaim
from shoal_operator.children.workloads import selector_of, stamped, template_of
from shoal_operator.engine.apply import Action, contains, decide, hash_of, kept, with_hash
from shoal_operator.engine.cluster import MAYBE_KINDS, TOO_DEEP, Cluster, ClusterError, Object, controller_of
from shoal_operator.engine.conditions import Condition, condition, is_true, merge
from shoal_operator.engine.kinds import SCALED_KINDS
from shoal_operator.reconcile.volumes import Problem, kept_and_grown, new_claims, refused_growth, require

MAX_FAILURE = 1000
"""Characters of a failure in a condition, which is read in one line."""

Model = TypeVar("Model", bound=BaseModel)
ChildName = tuple[str, str]
"""Kind and name."""


def parse(model: type[Model], live: Object) -> Model:
    """A live object of one of our kinds as its model, without the status, which is ours to write and not to read.

    Raises ClusterError for one that the API server took by other CRDs than ours, or that is nested too deep.
    """
    if live["spec"] == TOO_DEEP:
        raise ClusterError(
            f"{live['kind']} {live['metadata']['name']}: spec: nested more than 250 levels deep, which no field of a pod is: correct its podTemplate"
        )
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
    """The child as one that lies in the namespace and is collected with its owner, unless it is retained; what does not change is shared with the
    one given."""
    metadata = {**child["metadata"], "namespace": namespace}
    if names.RETAIN_ANNOTATION in metadata.get("annotations", {}):
        return {**child, "metadata": metadata}
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
    return {**child, "metadata": {**metadata, "ownerReferences": references}}


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
        for found in cluster.controlled(kind, {names.RUN_LABEL: run}, None):
            metadata = found["metadata"]
            named = metadata["name"].startswith(f"{run}-")
            if names.MADE_OF_ANNOTATION in (metadata.get("annotations") or {}):
                named = metadata["name"] == names.release_record(
                    run
                )  # others are records of its pools, relays and validators
            if named and not metadata.get("deletionTimestamp"):
                # With the uid nothing is made anew, empty, should the object be gone meanwhile.
                identity = {"name": metadata["name"], "uid": metadata["uid"]}
                bare = {"apiVersion": found["apiVersion"], "kind": kind, "metadata": identity}
                cluster.adopt(owned(bare, owner, cluster.namespace))


def apply_children(cluster: Cluster, owner: Object, children: Iterable[Object]) -> list[Problem]:
    """Make each child what it should be, in order; what is right already is not touched. One that is refused does not keep the others.

    Returns:
        What of live claims could not be as it is wanted: pods continue with the volumes that they have.

    Raises:
        ClusterError: a child was refused, or the cluster could not be asked.
    """
    stayed, failed = list[Problem](), None
    for child in children:
        try:
            wanted = owned(stamped(cluster.at_site(child)), owner, cluster.namespace)
        except ClusterError as error:
            failed = failed or error
            continue
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        live = cluster.get(kind, name)
        if live is not None:
            refuse_anothers(live, owner)
            wanted = kept(wanted, live)
            if kind == "PersistentVolumeClaim":
                wanted, problems = kept_and_grown(wanted, child, live, cluster.storage_classes)
                stayed += problems
        elif kind in MAYBE_KINDS and not cluster.serves(kind):
            continue  # a condition says so
        elif kind in SCALED_KINDS and "replicas" not in wanted["spec"]:
            continue  # deleted since its number was looked at; we are called again for that, and then it is made as a new one
        try:
            action = decide(wanted, live)
            if action is not Action.NOTHING:
                # Before a workload is deleted: its successor asks for all of its claims anew.
                require(new_claims(wanted, None if action is Action.REPLACE else live), cluster.storage_classes)
            match action:
                case Action.APPLY:
                    cluster.apply(with_hash(wanted))
                case Action.REPLACE:
                    cluster.delete(kind, name, orphan=pods_go_on(wanted, live or {}))
        except ClusterError as error:
            if error.passing:
                raise
            if kind == "PersistentVolumeClaim" and live is not None:
                stayed.append(refused_growth(name, error))
            else:
                failed = failed or error
    if failed is not None:
        raise failed
    return stayed


def pods_go_on(wanted: Object, live: Object) -> bool:
    """Whether the pods of a workload that is replaced may continue without it until its successor takes them over.

    A Job's pods are part of it. Pods that the successor's selector would not find would be nobody's forever.
    """
    if wanted["kind"] == "Job":
        return False
    return contains(live.get("spec", {}).get("selector"), wanted.get("spec", {}).get("selector"))


def names_of(children: Iterable[Object]) -> frozenset[ChildName]:
    """Kind and name of each."""
    return frozenset((child["kind"], child["metadata"]["name"]) for child in children)


def prune(cluster: Cluster, owner: Object, run: str, kinds: Sequence[str], wanted: Collection[ChildName]) -> None:
    """Delete the owner's children of these kinds that are no longer wanted. Others' objects are never touched, whatever they are called."""
    for kind in kinds:
        for found in cluster.controlled(kind, {names.RUN_LABEL: run}, owner):
            metadata = found["metadata"]
            if (
                owned_by(found, owner)
                and (kind, metadata["name"]) not in wanted
                and not metadata.get("deletionTimestamp")
            ):
                cluster.delete(kind, metadata["name"])


def grow_claims(
    cluster: Cluster, live: Iterable[Object], set_name: str, claims: Mapping[str, VolumeClaim]
) -> list[Problem]:
    """Make the claims of a StatefulSet's pods as large as its template now says; the StatefulSet itself never does that.

    Args:
        live: the claims of its pods.
        claims: what each pod claims, by name of the claim template; a pod's claim is called `<template>-<set>-<number>`.

    Returns:
        What could not be. Pods continue with the volumes that they have.
    """
    found: list[Problem] = []
    for each in live:
        name = each["metadata"]["name"]
        template = next((known for known in claims if name.startswith(f"{known}-{set_name}-")), None)
        if template is None or each["metadata"].get("deletionTimestamp"):
            continue
        bare = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        asked = {
            **bare,
            "metadata": {"name": name, "namespace": cluster.namespace},
            "spec": {key: value for key, value in claims[template].spec().items() if key != "accessModes"},
        }
        wanted, problems = kept_and_grown(asked, asked, each, cluster.storage_classes)
        found += problems
        if not contains(each, wanted):
            try:
                cluster.apply(wanted)
            except ClusterError as error:
                found.append(refused_growth(name, error))
    return found


def drop_scaled_in(
    cluster: Cluster,
    owner: Object,
    live: Iterable[Object],
    retention: ClaimRetention | None,
    wanted: Iterable[Object],
    volumes: Iterable[str],
) -> None:
    """Delete claims of groups that are scaled in, where they are not to stay. One is there until its pod has ended.

    Only those that the operator applied for this owner, or for nobody, because they are retained; each is called `<volume>-<set>-<group>[-<place>]`.
    """
    if retention is None or retention.when_scaled == "Retain":
        return
    stay = {each["metadata"]["name"] for each in wanted}
    named = re.compile(f"({'|'.join(map(re.escape, volumes))})-{re.escape(owner['metadata']['name'])}-[0-9]+(-[0-9]+)?")
    for each in live:
        metadata = each["metadata"]
        retained = names.RETAIN_ANNOTATION in metadata.get("annotations", {}) and controller_of(each) is None
        ours = named.fullmatch(metadata["name"]) and hash_of(each) is not None and (retained or owned_by(each, owner))
        if ours and metadata["name"] not in stay and not metadata.get("deletionTimestamp"):
            cluster.delete("PersistentVolumeClaim", metadata["name"])


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


def tell_failure(
    cluster: Cluster,
    kind: str,
    name: str,
    error: ClusterError,
    stalled: Callable[[Object, Condition, datetime], tuple[str | None, Condition]],
) -> None:
    """Say in an object's Ready condition why its reconcile failed, when that will last; of a run also whether it is `stalled`. All else stands.

    A run that never got further has the phase Blocked.
    """
    live = cluster.get(kind, name)
    if error.passing or live is None or live["metadata"].get("deletionTimestamp"):
        return
    text = " ".join(str(error).split())[:MAX_FAILURE]
    told, now, before = [condition("Ready", False, error.condition, text)], cluster.now(), live.get("status", {})
    new = {**before, "observedGeneration": live["metadata"].get("generation", 1)}
    if kind == "TrainingRun":
        new.setdefault("phase", "Blocked")
        new["lastProgressTime"], found = stalled(live, told[0], now)
        told.append(found)
    types = {each["type"] for each in told}
    others = [each for each in before.get("conditions", []) if each["type"] not in types]
    new = _given({**new, "conditions": [*merge(told, live, now), *others]})
    if new != before:
        try:
            cluster.apply_status(kind, name, new)
        except ClusterError:
            pass  # the failure itself is logged by whoever called, and told at the next try


def replica_counts(workload: Object | None) -> tuple[int, int, int]:
    """Replicas wanted, existing and ready of a StatefulSet, a Deployment, or one of our scaled kinds."""
    if workload is None:
        return 0, 0, 0
    status, wanted = workload.get("status", {}), workload["spec"].get("replicas", 1)
    admitted = admitted_replicas(workload)
    wanted = wanted if admitted is None else min(wanted, admitted)
    return wanted, status.get("replicas", 0), status.get("readyReplicas", 0)


def admitted_replicas(live: Object) -> int | None:
    """Pods that the queue of its run admits of one of our scaled kinds; None without a queue."""
    text = live["metadata"].get("annotations", {}).get(names.ADMITTED_ANNOTATION, "")
    return int(text) if text.isdecimal() else None


def up_to_date(workload: Object) -> bool:
    """Whether the workload's own controller has seen its newest spec. Where a LeaderWorkerSet's does not say, it has a status: ask `groups` too."""
    status = workload.get("status", {})
    seen = status.get("observedGeneration")
    if seen is None and workload["kind"] == "LeaderWorkerSet":
        return bool(status)
    return seen is not None and seen >= workload["metadata"].get("generation", 1)


@dataclass(frozen=True)
class Groups:
    """Groups of a LeaderWorkerSet, counted from their pods: those with any pod, those that are ready, and those of them that are new."""

    existing: int
    ready: int
    new: int


def groups_of(cluster: Cluster, workload: Object) -> Groups:
    """What of a LeaderWorkerSet is there. Its status may be that of an earlier spec, and not all releases of its controller say which.

    A group is ready when all of its pods are, and new when these are of the newest template and number.
    Costs one read of the cache: 1 ms a hundred pods.
    """
    group = workload["spec"]["leaderWorkerTemplate"]
    size, prefix = group["size"], f"{workload['metadata']['name']}-"
    stamp = template_of(workload)["metadata"]["labels"].get(names.TEMPLATE_LABEL)
    pods = defaultdict[str, list[Object]](list)
    for pod in cluster.list("Pod", selector_of(workload)):
        pods[pod["metadata"]["name"].removeprefix(prefix).partition("-")[0]].append(pod)
    ready = {
        number
        for number, each in pods.items()
        if len(each) == size
        and all(is_true(pod, "Ready") and not pod["metadata"].get("deletionTimestamp") for pod in each)
    }
    new = sum(
        all(pod["metadata"]["labels"].get(names.TEMPLATE_LABEL) == stamp for pod in pods[number])
        for number in map(str, range(workload["spec"]["replicas"]))
        if number in ready
    )
    return Groups(len(pods), len(ready), new)
