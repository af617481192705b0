"""Stands in for Kueue's scheduler, by its documented conditions: which status each Workload gets next, from queues, flavours and quotas. Pure.

It reserves quota, shrinks one set of pods to its `minCount`, asks admission checks, evicts (a higher priority, `active: false`, a stopped queue, pods
that are not ready in time) and forgets an eviction when quota is reserved again. What an integration must do, such as to give quota back, it never
does. Left out: cohorts, topologies, fair sharing.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from shoal_operator.api.base import quantity_value
from shoal_operator.engine.conditions import condition, is_true, merge

Object = dict[str, Any]
Usage = dict[tuple[str, str], int]
"""Amount of each resource of each flavour, in thousandths."""
BACKOFF_SECONDS = 2.0


@dataclass(frozen=True)
class World:
    """Everything that decides, as the API server has it."""

    local_queues: Sequence[Object]
    cluster_queues: Sequence[Object]
    flavors: Sequence[Object]
    workloads: Sequence[Object]
    checks: Mapping[str, Object] = field(default_factory=dict)
    """What admission checks answer, by name: `state`, `podSetUpdates`."""


def next_statuses(world: World, now: datetime) -> list[tuple[Object, Object]]:
    """Workloads whose status changes, with the new one."""
    queues = {each["metadata"]["name"]: each for each in world.cluster_queues}
    ways = {
        (each["metadata"]["namespace"], each["metadata"]["name"]): each["spec"]["clusterQueue"]
        for each in world.local_queues
    }
    flavors = {each["metadata"]["name"]: each.get("spec", {}) for each in world.flavors}
    alive = [each for each in world.workloads if not is_true(each, "Finished")]
    used: dict[str, Usage] = {name: {} for name in queues}
    for each in alive:
        if (admission := each.get("status", {}).get("admission")) and is_true(each, "QuotaReserved"):
            _add(used.setdefault(admission["clusterQueue"], {}), admission)
    changed: list[tuple[Object, Object]] = []
    order = sorted(
        alive,
        key=lambda each: (
            -each["spec"].get("priority", 0),
            each["metadata"].get("creationTimestamp", ""),
            each["metadata"]["name"],
        ),
    )
    for each in order:
        queue = queues.get(ways.get((each["metadata"]["namespace"], each["spec"].get("queueName", "")), ""))
        status: Object | tuple[Object, Object] | None = _reserved(each, queue, world.checks, now)
        if not is_true(each, "QuotaReserved"):
            status = _pending(each, queue, order, used, flavors, now)
        if isinstance(status, tuple):
            victim, told = status
            if not is_true(victim, "Evicted"):
                changed.append((victim, told))
        elif status is not None and status != each.get("status", {}):
            changed.append((each, status))
    return changed


def _reserved(each: Object, queue: Object | None, checks: Mapping[str, Object], now: datetime) -> Object | None:
    if is_true(each, "Evicted") or not is_true(each, "QuotaReserved"):
        return None  # its integration gives the quota back
    if each["spec"].get("active") is False:
        return _told(each, now, condition("Evicted", True, "Deactivated", "The workload is deactivated"))
    if queue is not None and queue["spec"].get("stopPolicy") == "HoldAndDrain":
        return _told(each, now, condition("Evicted", True, "ClusterQueueStopped", "The ClusterQueue is stopped"))
    if is_true(each, "Admitted") or queue is None:
        return None
    names = [one["name"] for one in (queue["spec"].get("admissionChecksStrategy") or {}).get("admissionChecks", [])]
    states = [
        {"name": name, "message": "", "lastTransitionTime": _text(now), "state": "Pending", **checks.get(name, {})}
        for name in names
    ]
    before = {one["name"]: one for one in each["status"].get("admissionChecks", [])}
    states = [
        before[one["name"]] if before.get(one["name"], {}).get("state") == one["state"] else one for one in states
    ]
    if all(one["state"] == "Ready" for one in states):
        return _told(
            each, now, condition("Admitted", True, "Admitted", "The workload is admitted"), admissionChecks=states
        )
    return {**each["status"], "admissionChecks": states}


def _pending(
    each: Object,
    queue: Object | None,
    others: Iterable[Object],
    used: dict[str, Usage],
    flavors: Mapping[str, Object],
    now: datetime,
) -> Object | tuple[Object, Object] | None:
    spec, status = each["spec"], each.get("status", {})
    if queue is None:
        text = f"LocalQueue {spec.get('queueName', '')} doesn't exist"
        return _told(each, now, condition("QuotaReserved", False, "Inadmissible", text))
    if spec.get("active") is False:
        return None
    again = (status.get("requeueState") or {}).get("requeueAt")
    if again is not None:
        if now < datetime.fromisoformat(again):
            return None
        state = {key: value for key, value in status["requeueState"].items() if key != "requeueAt"}
        return _told(
            each, now, condition("Requeued", True, "BackoffFinished", "The backoff has ended"), requeueState=state
        )
    if queue["spec"].get("stopPolicy", "None") != "None":
        return _told(
            each,
            now,
            condition("QuotaReserved", False, "Inadmissible", f"ClusterQueue {queue['metadata']['name']} is stopped"),
        )
    for one in status.get("conditions", []):
        if one["type"] == "Requeued" and one["status"] == "False":
            active = one["reason"] == "Deactivated"
            return (
                _told(each, now, condition("Requeued", True, "Reactivated", "The workload is active"))
                if active
                else None
            )
    name = queue["metadata"]["name"]
    admission = _fit(spec["podSets"], queue, used[name], flavors)
    if isinstance(admission, dict):
        _add(used[name], admission)
        told = [condition("QuotaReserved", True, "QuotaReserved", f"Quota reserved in ClusterQueue {name}")]
        if any(one["type"] in ("Evicted", "Preempted") for one in status.get("conditions", [])):
            told += [condition(kind, False, "QuotaReserved", "Previously") for kind in ("Evicted", "Preempted")]
        return _told(each, now, *told, admission=admission)
    if (queue["spec"].get("preemption") or {}).get("withinClusterQueue") == "LowerPriority":
        lower = [
            one
            for one in others
            if is_true(one, "QuotaReserved") and one["spec"].get("priority", 0) < spec.get("priority", 0)
        ]
        if lower:
            text = f"Preempted to accommodate a workload (UID: {each['metadata']['uid']}) due to prioritization in the ClusterQueue"
            victim = lower[-1]
            told = [condition("Evicted", True, "Preempted", text), condition("Preempted", True, "InClusterQueue", text)]
            return victim, _told(victim, now, *told)
    return _told(each, now, condition("QuotaReserved", False, "Pending", admission))


def _fit(sets: Sequence[Object], queue: Object, used: Usage, flavors: Mapping[str, Object]) -> Object | str:
    """The admission of these sets, with one of them shrunk as little as it takes, or why they do not fit."""
    found = _assign(sets, queue, used, flavors)
    small = next((number for number, each in enumerate(sets) if each.get("minCount") is not None), None)
    if isinstance(found, dict) or small is None:
        return found
    for count in range(sets[small]["count"] - 1, sets[small]["minCount"] - 1, -1):
        shrunk = [*sets[:small], {**sets[small], "count": count}, *sets[small + 1 :]]
        fewer = _assign(shrunk, queue, used, flavors)
        if isinstance(fewer, dict):
            return fewer
    return found


def _assign(sets: Sequence[Object], queue: Object, used: Usage, flavors: Mapping[str, Object]) -> Object | str:
    taken, made = dict(used), []
    for each in sets:
        asked = {name: amount * each["count"] for name, amount in requests(each["template"]["spec"]).items() if amount}
        given: dict[str, str] = {}
        for group in queue["spec"].get("resourceGroups", []):
            covered = [name for name in group["coveredResources"] if name in asked]
            if not covered:
                continue
            why = f"couldn't assign flavors to pod set {each['name']}: "
            for flavor in group["flavors"]:
                quota = {one["name"]: round(1000 * quantity_value(one["nominalQuota"])) for one in flavor["resources"]}
                if not _matches(each["template"]["spec"], flavors.get(flavor["name"], {})):
                    why += f"flavor {flavor['name']} doesn't match node affinity, "
                    continue
                short = [
                    name for name in covered if taken.get((flavor["name"], name), 0) + asked[name] > quota.get(name, 0)
                ]
                if not short:
                    given |= dict.fromkeys(covered, flavor["name"])
                    break
                why += f"insufficient unused quota for {short[0]} in flavor {flavor['name']}, "
            else:
                return why.rstrip(", ")
        absent = [name for name in asked if name not in given]
        if absent:
            return (
                f"couldn't assign flavors to pod set {each['name']}: resource {absent[0]} unavailable in ClusterQueue"
            )
        for name, flavor_name in given.items():
            taken[flavor_name, name] = taken.get((flavor_name, name), 0) + asked[name]
        usage = {name: f"{amount}m" for name, amount in asked.items()}
        made.append({"name": each["name"], "flavors": given, "resourceUsage": usage, "count": each["count"]})
    return {"clusterQueue": queue["metadata"]["name"], "podSetAssignments": made}


def requests(pod: Object) -> dict[str, int]:
    """What one pod asks for, in thousandths."""
    total: dict[str, int] = {}
    sidecars = [each for each in pod.get("initContainers", []) if each.get("restartPolicy") == "Always"]
    for each in (*pod["containers"], *sidecars):
        resources = each.get("resources", {})
        for name, amount in ({**resources.get("limits", {}), **resources.get("requests", {})}).items():
            if not name.startswith("ephemeral"):
                total[name] = total.get(name, 0) + round(1000 * quantity_value(amount))
    return total


def _matches(pod: Object, flavor: Object) -> bool:
    labels, selector = flavor.get("nodeLabels", {}), pod.get("nodeSelector", {})
    return all(selector.get(key, value) == value for key, value in labels.items())


def _add(used: Usage, admission: Object) -> None:
    for each in admission["podSetAssignments"]:
        for name, flavor in each.get("flavors", {}).items():
            used[flavor, name] = used.get((flavor, name), 0) + round(1000 * quantity_value(each["resourceUsage"][name]))


def _told(each: Object, now: datetime, *conditions: Object, **fields: Any) -> Object:
    """The status with these conditions and fields."""
    new = merge(conditions, each, now)
    types = {one["type"] for one in new}
    kept = [one for one in each.get("status", {}).get("conditions", []) if one["type"] not in types]
    return copy.deepcopy({**each.get("status", {}), **fields, "conditions": [*kept, *new]})


def not_ready_in_time(each: Object, now: datetime) -> Object:
    """The status of a Workload whose pods were not ready in time: evicted, and queued again later."""
    state = {"count": 1, "requeueAt": _text(now + timedelta(seconds=BACKOFF_SECONDS))}
    return _told(
        each, now, condition("Evicted", True, "PodsReadyTimeout", "Exceeded the PodsReady timeout"), requeueState=state
    )


def _text(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
