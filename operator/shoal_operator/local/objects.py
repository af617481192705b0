"""The objects of a run on this machine: a small API server's worth of storage, one JSON file, written atomically.

Keeps `generation` (grows when the spec changes) and `resourceVersion`, because reconcile and status refer to them. Kinds that are not known here
are refused by name.
"""

import base64
import copy
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal_operator.engine.kinds import SCALED_KINDS
from shoal_operator.local.expand import UnsupportedField

KINDS = frozenset(
    {
        "TrainingRun", "InferencePool", "RelayServer", "Validator",
        "ConfigMap", "Secret", "PersistentVolumeClaim", "StatefulSet", "Deployment", "Job",
        # Kept and shown, and nothing comes of them: one machine has addresses instead of names, one user and one node.
        "Service", "Ingress", "HTTPRoute", "NetworkPolicy", "PodDisruptionBudget",
    }
)  # fmt: skip

Object = dict[str, Any]


class Objects:
    """Objects by (kind, name). All of one namespace; the file is readable by its owner only, as it holds secrets."""

    kinds = KINDS

    def __init__(self, path: Path) -> None:
        self._path = path
        self._objects: dict[tuple[str, str], Object] = {}
        self._revision = 0
        if path.is_file():
            saved = json.loads(path.read_text())
            self._revision = saved["revision"]
            self._objects = {(each["kind"], each["metadata"]["name"]): each for each in saved["objects"]}

    def get(self, kind: str, name: str) -> Object | None:
        found = self._objects.get((kind, name))
        return copy.deepcopy(found) if found is not None else None

    def find(self, kind: str, labels: Mapping[str, str] | None = None) -> list[Object]:
        """Objects of a kind that carry all of `labels`, by name."""
        wanted = (labels or {}).items()
        return [
            copy.deepcopy(each)
            for (found, _), each in sorted(self._objects.items())
            if found == kind and wanted <= each["metadata"].get("labels", {}).items()
        ]

    def adopt(self, child: Object) -> None:
        """Give an object the owners that `child` has, where it is still there."""
        live = self.get(child["kind"], child["metadata"]["name"])
        if live is not None:
            owners = {"ownerReferences": child["metadata"]["ownerReferences"]}
            self.apply({**live, "metadata": {**live["metadata"], **owners}})

    def apply(self, wanted: Mapping[str, Any]) -> Object:
        """Create the object or replace everything but its status; returns what is stored."""
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        if kind not in self.kinds:
            raise UnsupportedField(
                f"{kind} {name}: kind {kind} is not available on one machine; known are {sorted(self.kinds)}"
            )
        before = self._objects.get((kind, name))
        new = copy.deepcopy(dict(wanted))
        new.pop("status", None)
        if kind == "Secret" and "stringData" in new:
            # As an API server does: what was written as text is kept, and read, as base64.
            texts = {key: base64.b64encode(value.encode()).decode() for key, value in new.pop("stringData").items()}
            new["data"] = new.get("data", {}) | texts
        if before is not None and kind in SCALED_KINDS and "replicas" not in new["spec"]:
            # As an API server does where another field manager owns the number.
            new["spec"] |= {key: before["spec"][key] for key in ("replicas",) if key in before["spec"]}
        metadata = new["metadata"]
        if before is None:
            metadata["uid"] = str(uuid.uuid4())
            metadata["generation"] = 1
        else:
            old = before["metadata"]
            metadata["uid"] = old["uid"]
            changed = _content(before) != _content(new)
            metadata["generation"] = old["generation"] + int(changed)
            if "status" in before:
                new["status"] = before["status"]
            if (
                not changed
                and metadata.get("labels") == old.get("labels")
                and metadata.get("annotations") == old.get("annotations")
                and metadata.get("ownerReferences") == old.get("ownerReferences")
            ):
                return copy.deepcopy(before)
        return self._store(new)

    def set_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        """Replace the status; nothing is written when it is the same, and a deleted object is left deleted."""
        found = self._objects.get((kind, name))
        if found is not None and found.get("status") != status:
            self._store({**found, "status": copy.deepcopy(dict(status))})

    def mark_deleted(self, kind: str, name: str, when: str) -> None:
        """Begin a foreground deletion: the object, and all that it owns, carry `deletionTimestamp` until `remove`."""
        found = self._objects.get((kind, name))
        if found is None or "deletionTimestamp" in found["metadata"]:
            return
        self._store({**found, "metadata": {**found["metadata"], "deletionTimestamp": when}})
        for key in self.owned(kind, name):
            self.mark_deleted(*key, when)

    def owned(self, kind: str, name: str) -> list[tuple[str, str]]:
        """(kind, name) of the objects that name this one as their owner."""
        uid = self._objects[(kind, name)]["metadata"]["uid"]
        return [
            key
            for key, each in self._objects.items()
            if any(owner.get("uid") == uid for owner in each["metadata"].get("ownerReferences", []))
        ]

    def deleting(self) -> list[Object]:
        """Objects whose deletion has begun."""
        return [copy.deepcopy(each) for each in self._objects.values() if "deletionTimestamp" in each["metadata"]]

    def remove(self, kind: str, name: str) -> None:
        """Forget an object; one that is not there is fine."""
        if self._objects.pop((kind, name), None) is not None:
            self._revision += 1
            self._save()

    def _store(self, new: Object) -> Object:
        self._revision += 1
        new["metadata"]["resourceVersion"] = str(self._revision)
        self._objects[(new["kind"], new["metadata"]["name"])] = new
        self._save()
        return copy.deepcopy(new)

    def _save(self) -> None:
        partial = self._path.with_suffix(".partial")
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        # `json.dump` would encode in Python, ten times as slowly as `dumps` does.
        text = json.dumps({"revision": self._revision, "objects": list(self._objects.values())})
        with os.fdopen(handle, "w") as file:
            file.write(text)
        partial.replace(self._path)


def _content(each: Mapping[str, Any]) -> dict[str, Any]:
    """What a generation counts: everything but metadata and status."""
    return {key: value for key, value in each.items() if key not in ("metadata", "status")}
