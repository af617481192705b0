"""Conditions as `metav1.Condition`: built here, and merged so that `lastTransitionTime` changes only when the status does. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from shoal_operator.engine.cluster import Object

Condition = dict[str, Any]


def condition(kind: str, holds: bool | None, reason: str, message: str = "") -> Condition:
    """One condition; `holds=None` is Unknown."""
    status = {True: "True", False: "False", None: "Unknown"}[holds]
    return {"type": kind, "status": status, "reason": reason, "message": message}


def merge(wanted: Iterable[Condition], live: Object, now: datetime) -> list[Condition]:
    """The wanted conditions with the object's generation, and transition times kept where the status is as it was."""
    before = {found["type"]: found for found in live.get("status", {}).get("conditions", [])}
    generation = live["metadata"].get("generation", 1)
    merged = []
    for one in wanted:
        old = before.get(one["type"], {})
        since = old.get("lastTransitionTime") if old.get("status") == one["status"] else None
        merged.append(
            {**one, "observedGeneration": generation, "lastTransitionTime": since or now.strftime("%Y-%m-%dT%H:%M:%SZ")}
        )
    return merged


def message_of(live: Object, kind: str) -> str:
    """What an object's condition of this type says; empty for none."""
    conditions = live.get("status", {}).get("conditions", [])
    return str(next((found.get("message") or "" for found in conditions if found["type"] == kind), ""))


def is_true(live: Object | None, kind: str) -> bool:
    """Whether an object's condition of this type is True."""
    conditions = (live or {}).get("status", {}).get("conditions", [])
    return any(found["type"] == kind and found["status"] == "True" for found in conditions)
