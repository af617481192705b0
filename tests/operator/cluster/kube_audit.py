"""Reads the audit log of the control plane: who asked for what, and what was answered. For tests of "no writes" and "these verbs and no others"."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal_operator.engine.permissions import Permission

WRITES = {"create", "update", "patch", "delete", "deletecollection"}


@dataclass(frozen=True)
class Request:
    """One request of a service account.

    Attributes:
        user: `system:serviceaccount:<namespace>:<name>`.
        verb: Kubernetes' verb: get, list, watch, create, patch ...
        resource: plural with group and subresource, `trainingruns.shoal.dev/status`; the path for what is no resource.
        namespace: empty for what is cluster-wide.
        name: of the object, where it was given.
        status: of the answer.
    """

    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    status: int

    @property
    def writes(self) -> bool:
        return self.verb in WRITES


class AuditLog:
    """`requests()` gives what came since `mark()`; from the beginning when there was none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = 0

    def mark(self) -> None:
        """Forget what is there."""
        self._start = self.path.stat().st_size if self.path.exists() else 0

    def requests(self, user: str = "") -> list[Request]:
        """Finished requests, and watches that have begun, of users whose name ends in `user`."""
        return [request for request in self._read() if request.user.endswith(user)]

    def writes(self, user: str = "") -> list[Request]:
        """Requests that change something, without those to Leases and Events."""
        return [
            request
            for request in self.requests(user)
            if request.writes and request.resource.split(".")[0] not in ("leases", "events")
        ]

    def _read(self) -> Iterator[Request]:
        with self.path.open("rb") as log:
            log.seek(self._start)
            for line in log:
                if not line.endswith(b"\n"):
                    return  # being written
                event = json.loads(line)
                if event["verb"] == "watch" and event["stage"] != "ResponseStarted":
                    continue  # counted when it began
                where = event.get("objectRef")
                resource = event["requestURI"]
                if where and "resource" in where:
                    group, sub = where.get("apiGroup"), where.get("subresource")
                    resource = where["resource"] + (f".{group}" if group else "") + (f"/{sub}" if sub else "")
                yield Request(
                    event["user"]["username"],
                    event["verb"],
                    resource,
                    (where or {}).get("namespace", ""),
                    (where or {}).get("name", ""),
                    event.get("responseStatus", {}).get("code", 0),
                )


def used(audit: AuditLog, user: str) -> set[tuple[str, str]]:
    """(resource, verb) of what was asked; a patch that made the object is a create, too."""
    asked = audit.requests(user)
    verbs = {(request.resource, request.verb) for request in asked}
    return verbs | {
        (request.resource, "create") for request in asked if request.verb == "patch" and request.status == 201
    }


def named(row: Permission) -> str:
    plural, _, sub = row.resource.partition("/")
    return plural + (f".{row.group}" if row.group else "") + (f"/{sub}" if sub else "")
