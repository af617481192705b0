"""Decides whether a child must be written: pure, from the desired and the live object.

A child is written when the hash of our template changed or the live object no longer contains the desired state (drift). Fields
that the template does not set are not compared: so fields that the API server or an autoscaler adds are left alone. Called by `reconcile/common.py`.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import orjson

from shoal_operator.api.base import quantity_value
from shoal_operator.children.names import RELEASE_ANNOTATION
from shoal_operator.engine.cluster import Object

HASH_ANNOTATION = "shoal.dev/template-hash"
NOT_TEMPLATE = (HASH_ANNOTATION, RELEASE_ANNOTATION)
"""Annotations that are no part of the desired state: what two releases make alike is alike."""

IMMUTABLE: dict[str, tuple[tuple[str, ...], ...]] = {
    "Job": (("spec", "template"), ("spec", "completions"), ("spec", "completionMode"), ("spec", "podFailurePolicy")),
    "StatefulSet": (
        ("spec", "selector"),
        ("spec", "serviceName"),
        ("spec", "volumeClaimTemplates"),
        ("spec", "podManagementPolicy"),
    ),
    "Deployment": (("spec", "selector"),),
    "Service": (("spec", "loadBalancerClass"),),
}
"""What the API server refuses to change; a changed object is replaced."""

KEPT: dict[str, tuple[tuple[str, ...], ...]] = {
    "LeaderWorkerSet": (("spec", "leaderWorkerTemplate", "volumeClaimTemplates"),)
}
"""What stays as it was made: LeaderWorkerSet's controller makes StatefulSets of it that cannot change it, and the claims themselves are children."""

QUANTITIES, QUANTITIES_BY_NAME = frozenset({"sizeLimit", "divisor"}), frozenset({"requests", "limits", "overhead"})
"""Fields that are a quantity, and maps of them by a resource's name."""
KUBERNETES_QUANTITY = r"[+-]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*"
"""What an API server reads (apimachinery, `resource.Quantity`): more than `api.base.QUANTITY_PATTERN`, which is for people."""

NOT_HASHED: dict[str, tuple[tuple[str, ...], ...]] = dict.fromkeys(
    ("InferencePool", "RelayServer", "Validator"), (("spec", "replicas"),)
)
"""Fields that may differ from the template without a drift: `kubectl scale` and autoscalers own the replicas of our own kinds (children/scale.py)."""


class Action(Enum):
    """What to do with one child."""

    NOTHING = "nothing"
    APPLY = "apply"
    REPLACE = "replace"


def template_hash(wanted: Object) -> str:
    """A short digest of the desired state, without who owns it, the hash itself, and what others own."""
    kept = without(wanted, NOT_HASHED)
    metadata = {key: value for key, value in kept.get("metadata", {}).items() if key != "ownerReferences"}
    annotations = {key: value for key, value in metadata.pop("annotations", {}).items() if key not in NOT_TEMPLATE}
    if annotations:
        metadata["annotations"] = annotations
    text = orjson.dumps({**kept, "metadata": metadata}, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:16]


def without(wanted: Object, paths: Mapping[str, tuple[tuple[str, ...], ...]]) -> Object:
    """The object without the fields that `paths` names for its kind. Only what changes is copied: this runs for each child at each reconcile."""
    for path in paths.get(wanted["kind"], ()):
        wanted = _without(wanted, path)
    return wanted


def _without(value: Object, path: tuple[str, ...]) -> Object:
    first, *rest = path
    if not rest:
        return {key: kept for key, kept in value.items() if key != first}
    inner = value.get(first)
    return {**value, first: _without(inner, tuple(rest))} if isinstance(inner, dict) else value


def with_hash(wanted: Object) -> Object:
    """The object with its template hash as an annotation; what does not change is shared with the one given."""
    metadata = wanted["metadata"]
    annotations = {**metadata.get("annotations", {}), HASH_ANNOTATION: template_hash(wanted)}
    return {**wanted, "metadata": {**metadata, "annotations": annotations}}


def hash_of(live: Object) -> str | None:
    """The template hash that a live object was written with."""
    value = live.get("metadata", {}).get("annotations", {}).get(HASH_ANNOTATION)
    return value if isinstance(value, str) else None


def kept(wanted: Object, live: Object) -> Object:
    """The desired object with what is never changed once it was made."""
    return _settled(wanted, live, KEPT.get(wanted["kind"], ()))


def decide(wanted: Object, live: Object | None) -> Action:
    """The action that makes `live` equal to `wanted`.

    A finished Job is done: it is never written again. An object that is being deleted is left alone until it is gone.
    """
    if live is None:
        return Action.APPLY
    if live["metadata"].get("deletionTimestamp"):
        return Action.NOTHING
    if wanted["kind"] == "Job" and job_state(live) in ("succeeded", "failed"):
        return Action.NOTHING
    immutable = IMMUTABLE.get(wanted["kind"], ())
    if hash_of(live) == template_hash(wanted):
        if contains(live, wanted):
            return Action.NOTHING
        # What cannot change has not drifted: it was changed on its way in, by an admission webhook, and would be again. To replace
        # a trainer's Job for that would end the trainer at each reconcile.
        if contains(live, _settled(wanted, live, immutable)):
            return Action.NOTHING
    elif wanted["kind"] == "Job":
        # A field that is wanted no longer does not show in the comparison, and to take it out of a Job's template is refused too.
        return Action.REPLACE
    for path in immutable:
        if not contains(value_at(live, path), value_at(wanted, path)):
            return Action.REPLACE
    if _class_taken_back(wanted, live):
        return Action.REPLACE
    return Action.APPLY


def _settled(wanted: Object, live: Object, immutable: tuple[tuple[str, ...], ...]) -> Object:
    """The desired object with immutable fields as they are, and without those that the live one lacks."""
    for path in immutable:
        if value_at(wanted, path) is None:
            continue
        there = value_at(live, path)
        wanted = _without(wanted, path) if there is None else with_value(wanted, path, there)
    return wanted


def _class_taken_back(wanted: Object, live: Object) -> bool:
    """Whether a Service would lose its load balancer's class; that is allowed only together with its type."""
    path = ("spec", "loadBalancerClass")
    types = {value_at(each, ("spec", "type")) for each in (wanted, live)}
    given, asked = value_at(live, path), value_at(wanted, path)
    return types == {"LoadBalancer"} and given is not None and asked is None and hash_of(live) != template_hash(wanted)


def contains(live: Any, wanted: Any) -> bool:
    """Whether `live` has everything that `wanted` has: maps may have more keys, lists must have the same length, quantities compare by value."""
    if wanted is None or live == wanted:
        return True
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(contains(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not wanted and live is None:
            return True  # an API server drops empty lists
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(contains(have, want) for have, want in zip(live, wanted, strict=True))
        )
    return isinstance(live, str | int) and isinstance(wanted, str | int) and _same_quantity(live, wanted)


def removal_of_strangers(live: Object, wanted: Mapping[str, Any]) -> Object:
    """A merge patch that takes out what somebody else wrote into `live`: None for each field that `wanted` lacks, in maps at any depth.

    A list that has another item, or in an item another field, is written whole: a merge patch knows no items. Their order is not looked at.
    Empty if there is none. Server-side apply leaves such fields and items where they are, since another manager owns them.
    """
    patch: Object = {}
    for key, value in live.items():
        if key not in wanted:
            patch[key] = None
        elif isinstance(value, list):
            if any(item not in wanted[key] for item in value):
                patch[key] = wanted[key]
        elif (
            isinstance(value, dict)
            and isinstance(wanted[key], Mapping)
            and (inner := removal_of_strangers(value, wanted[key]))
        ):
            patch[key] = inner
    return patch


def not_quantities(body: Any, path: str = "") -> Iterator[str]:
    """Path and value of what the API server reads as a quantity and cannot: its refusal names neither."""
    if isinstance(body, list):
        for number, each in enumerate(body):
            yield from not_quantities(each, f"{path}[{number}]")
    elif isinstance(body, dict):
        for key, value in body.items():
            here = f"{path}.{key}".removeprefix(".")
            if key in QUANTITIES_BY_NAME and isinstance(value, dict):
                yield from (f"{here}.{name}: {each!r}" for name, each in value.items() if _cannot_be_read(each))
            elif key in QUANTITIES and _cannot_be_read(value):
                yield f"{here}: {value!r}"
            else:
                yield from not_quantities(value, here)


def _cannot_be_read(value: Any) -> bool:
    return not isinstance(value, str | int) or re.fullmatch(KUBERNETES_QUANTITY, str(value)) is None


def _same_quantity(one: str | int, other: str | int) -> bool:
    try:
        return (
            not isinstance(one, bool) and not isinstance(other, bool) and quantity_value(one) == quantity_value(other)
        )
    except ValueError:
        return False


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """The value at a path, or None."""
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def with_value(wanted: Object, path: tuple[str, ...], value: Any) -> Object:
    """The object with another value at a path; what does not change is shared with the one given."""
    first, *rest = path
    return {**wanted, first: with_value(wanted.get(first, {}), tuple(rest), value) if rest else value}


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
    """The message of the failed Job's condition."""
    conditions = (job or {}).get("status", {}).get("conditions", [])
    return next((str(found.get("message", "")) for found in conditions if found["type"] == "Failed"), "")
