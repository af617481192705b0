"""Decides whether a child must be written: pure, from what is wanted and what is live.

A child is written when the hash of our template changed or the live object no longer contains what we want (drift). Nothing is compared that we
did not ask for, so fields that the API server or an autoscaler adds are left alone. Called by `reconcile/common.py`.
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from shoal_operator.api.base import quantity_value
from shoal_operator.engine.cluster import Object

HASH_ANNOTATION = "shoal.dev/template-hash"

IMMUTABLE: dict[str, tuple[tuple[str, ...], ...]] = {
    "Job": (("spec", "template"), ("spec", "completions"), ("spec", "completionMode")),
    "StatefulSet": (
        ("spec", "selector"),
        ("spec", "serviceName"),
        ("spec", "volumeClaimTemplates"),
        ("spec", "podManagementPolicy"),
    ),
    "Deployment": (("spec", "selector"),),
}
"""What the API server refuses to change; a changed object is replaced."""


class Action(Enum):
    """What to do with one child."""

    NOTHING = "nothing"
    APPLY = "apply"
    REPLACE = "replace"


def template_hash(wanted: Object) -> str:
    """A short digest of what we want, without who owns it and the hash itself."""
    kept = copy.deepcopy(wanted)
    metadata = kept.get("metadata", {})
    metadata.pop("ownerReferences", None)
    metadata.get("annotations", {}).pop(HASH_ANNOTATION, None)
    if not metadata.get("annotations", True):
        del metadata["annotations"]
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def with_hash(wanted: Object) -> Object:
    """A copy that carries its template hash as an annotation."""
    marked = copy.deepcopy(wanted)
    marked["metadata"].setdefault("annotations", {})[HASH_ANNOTATION] = template_hash(wanted)
    return marked


def hash_of(live: Object) -> str | None:
    """The template hash that a live object was written with."""
    value = live.get("metadata", {}).get("annotations", {}).get(HASH_ANNOTATION)
    return value if isinstance(value, str) else None


def decide(wanted: Object, live: Object | None) -> Action:
    """What to do so that `live` becomes `wanted`.

    A finished Job is done: it is never written again. An object that is being deleted is left alone until it is gone.
    """
    if live is None:
        return Action.APPLY
    if live["metadata"].get("deletionTimestamp"):
        return Action.NOTHING
    if wanted["kind"] == "Job" and job_state(live) in ("succeeded", "failed"):
        return Action.NOTHING
    if hash_of(live) == template_hash(wanted) and contains(live, wanted):
        return Action.NOTHING
    for path in IMMUTABLE.get(wanted["kind"], ()):
        if not contains(_at(live, path), _at(wanted, path)):
            return Action.REPLACE
    return Action.APPLY


def contains(live: Any, wanted: Any) -> bool:
    """Whether `live` has everything that `wanted` has: maps may have more keys, lists must have the same length, quantities compare by value."""
    if wanted is None:
        return True
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(contains(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not wanted and live is None:
            return True  # an API server drops empty lists
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(contains(have, want) for have, want in zip(live, wanted, strict=True))
        )
    if live == wanted:
        return True
    return isinstance(live, str | int) and isinstance(wanted, str | int) and _same_quantity(live, wanted)


def _same_quantity(one: str | int, other: str | int) -> bool:
    try:
        return (
            not isinstance(one, bool) and not isinstance(other, bool) and quantity_value(one) == quantity_value(other)
        )
    except ValueError:
        return False


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def job_state(job: Object | None) -> str:
    """`absent`, `running`, `succeeded` or `failed`, from the conditions of a Job."""
    if job is None:
        return "absent"
    conditions = {found["type"]: found for found in job.get("status", {}).get("conditions", [])}
    for kind, state in (("Complete", "succeeded"), ("Failed", "failed")):
        if conditions.get(kind, {}).get("status") == "True":
            return state
    return "running"


def job_message(job: Object | None) -> str:
    """What the failed Job's condition says."""
    conditions = (job or {}).get("status", {}).get("conditions", [])
    return next((str(found.get("message", "")) for found in conditions if found["type"] == "Failed"), "")
