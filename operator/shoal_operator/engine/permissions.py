"""All that the operator asks of an API server, as one list; RBAC is made from it, and the HTTP layer refuses what is not on it.

`install.py` renders the list as Roles or ClusterRoles; `api_server.py` calls `check` before each request, so code and list cannot drift
apart. What kopf asks for itself (to list and watch our own kinds) is in the same rows. Discovery paths (`/apis`) are open to every account and
need no rule.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shoal_operator.engine.kinds import (
    CHILDREN,
    EVENT,
    FLAVOR,
    GROUPS,
    LEASE,
    OWN,
    POD,
    ROUTE,
    SCALED_KINDS,
    STORAGE_CLASS,
    WORKLOAD,
    Resource,
)

LEASE_NAME = "shoal-operator"


@dataclass(frozen=True)
class Permission:
    """One row: what may be done to a resource, and why."""

    group: str
    resource: str
    """Plural, with `/subresource` where one is meant."""
    verbs: tuple[str, ...]
    why: str
    resource_names: tuple[str, ...] = ()


def _row(resource: Resource, verbs: tuple[str, ...], why: str, subresource: str = "") -> Permission:
    return Permission(resource.group, resource.plural + subresource, verbs, why)


_CHILD_VERBS = ("list", "watch", "create", "patch", "delete")
"""`delete` for all of them: where the cluster guards ownerReferences, only who may delete an object may put them right."""
_FOREIGN_KINDS = ("ConfigMap", "Secret")
"""Kinds of which objects that are not ours are read: a copied join ConfigMap, store credentials."""

WATCHED: tuple[Permission, ...] = (
    _row(
        OWN["TrainingRun"],
        _CHILD_VERBS,
        "reconciled; deleted when its time after the end is over; a run makes the one that samples for its offline filter",
    ),
    *(_row(OWN[kind], ("get", *_CHILD_VERBS), "a run makes, scales and ends the other kinds") for kind in SCALED_KINDS),
    *(_row(own, ("patch",), "what reconcile found", "/status") for own in OWN.values()),
    *(
        _row(own, ("update",), "blockOwnerDeletion in ownerReferences, where the cluster guards it", "/finalizers")
        for own in OWN.values()
    ),
    *(
        _row(
            child,
            ("get", *_CHILD_VERBS) if kind in _FOREIGN_KINDS else _CHILD_VERBS,
            "made by builders, repaired, replaced",
        )
        for kind, child in CHILDREN.items()
    ),
    _row(POD, ("list", "watch"), "why a workload is not ready"),
    _row(WORKLOAD, _CHILD_VERBS, "asks a run's Kueue queue for its pods"),
    _row(WORKLOAD, ("patch",), "pods are ready, quota is given back, the run has ended", "/status"),
    _row(FLAVOR, ("get",), "labels and tolerations of the nodes that a queue gave; a Role cannot grant it"),
    _row(ROUTE, _CHILD_VERBS, "lets clients outside in through a Gateway"),
    _row(GROUPS, _CHILD_VERBS, "makes engines of several pods where a pool asks for it"),
    _row(EVENT, ("list", "create", "patch"), "why pods were refused; transitions of conditions, counted in series"),
)
"""In each namespace that is served, or in all of them. A create by server-side apply needs `create` and `patch`."""

CLUSTER_WIDE: tuple[Permission, ...] = (
    _row(STORAGE_CLASS, ("list",), "whether a class exists, can grow volumes and serve pods of several nodes"),
)
"""Of what lies in no namespace, where all are served. An operator of some namespaces does without: claims then say themselves what is wrong."""

OPERATOR_NAMESPACE: tuple[Permission, ...] = (
    Permission(LEASE.group, LEASE.plural, ("create",), "the first replica makes the Lease"),
    Permission(LEASE.group, LEASE.plural, ("get", "update"), "one replica leads", (LEASE_NAME,)),
)
"""In the operator's own namespace, whatever it serves."""

_SEEN, _WRITTEN = ("get", "list", "watch"), ("create", "update", "patch", "delete", "deletecollection")
_SCALES = [OWN[kind] for kind in SCALED_KINDS]

VIEWERS: tuple[Permission, ...] = (
    *(_row(own, _SEEN, "runs and how they are; nothing in them is secret") for own in OWN.values()),
    *(_row(own, ("get",), "how they are", "/status") for own in OWN.values()),
    *(_row(own, ("get",), "how many there are", "/scale") for own in _SCALES),
)
"""What people may do who may view a namespace: joined to Kubernetes' roles `view`, `edit` and `admin`."""

EDITORS: tuple[Permission, ...] = (
    *(_row(own, (*_SEEN, *_WRITTEN), "a run is what its namespace's people make") for own in OWN.values()),
    *(_row(own, ("get",), "status is the operator's to write", "/status") for own in OWN.values()),
    *(_row(own, ("get", "update", "patch"), "`kubectl scale`", "/scale") for own in _SCALES),
)
"""What people may do who may edit a namespace: joined to Kubernetes' roles `edit` and `admin`."""

PEOPLE: dict[str, tuple[tuple[Permission, ...], tuple[str, ...]]] = {
    "edit": (EDITORS, ("edit", "admin")),
    "view": (VIEWERS, ("view",)),
}
"""Aggregated ClusterRoles `shoal-<name>`: what they permit, and the roles that they are joined to. `edit` has what `view` has."""

_ALLOWED = {
    (row.group, row.resource, verb) for row in (*WATCHED, *CLUSTER_WIDE, *OPERATOR_NAMESPACE) for verb in row.verbs
}


def check(verb: str, resource: Resource, subresource: str | None) -> None:
    """Raise PermissionError for a request that the list does not name."""
    plural = resource.plural if subresource is None else f"{resource.plural}/{subresource}"
    if (resource.group, plural, verb) not in _ALLOWED:
        raise PermissionError(
            f"{verb} {plural} ({resource.group or 'core'}) is not in engine/permissions.py: add it there with its reason"
        )


def rules(rows: Iterable[Permission]) -> list[dict[str, list[str]]]:
    """RBAC rules: rows with the same group, verbs and names become one rule, in the order of their first row."""
    merged: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for row in rows:
        merged.setdefault((row.group, row.verbs, row.resource_names), []).append(row.resource)
    return [
        {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
        | ({"resourceNames": list(names)} if names else {})
        for (group, verbs, names), resources in merged.items()
    ]
