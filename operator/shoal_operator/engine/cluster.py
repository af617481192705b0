"""The one interface between reconcile and where objects live: an API server, or this machine.

A `Cluster` speaks for one namespace. Objects are plain dicts as Kubernetes writes them (`apiVersion`, `kind`, `metadata`, `spec`, `status`).
Calls block; each raises `ClusterError` when the other side does not answer in time, and reconcile is then tried again later: it is level-triggered,
so a call that was lost is made again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from shoal.contracts.protocol import RunProgress
from shoal.contracts.run import Addresses

Object = dict[str, Any]
"""A Kubernetes object."""

CHILD_KINDS = {
    "ConfigMap": "v1",
    "Secret": "v1",
    "Service": "v1",
    "PersistentVolumeClaim": "v1",
    "StatefulSet": "apps/v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "Ingress": "networking.k8s.io/v1",
}
"""Kinds that builders use beside our own four, with their API versions. A `Cluster` refuses others."""


class ClusterError(RuntimeError):
    """The cluster did not answer, or refused; the text says what and why."""

    passing = False
    """Whether the next attempt may succeed without a change; otherwise the object's status reports the error."""
    condition = "ReconcileFailed"
    """Reason of the Ready condition that reports it."""


class Cluster(Protocol):
    """Get, list, apply and delete in one namespace; and what else reconcile must know."""

    @property
    def namespace(self) -> str:
        """The namespace that all names below are in."""

    @property
    def enforces_volumes(self) -> bool:
        """Whether a volume may be as small as it was asked for; otherwise volumes are plain folders, and sizes only words."""

    def get(self, kind: str, name: str) -> Object | None:
        """The live object with its status, or None. An object that is being deleted is still there, with `metadata.deletionTimestamp`."""

    def read_foreign(self, kind: str, name: str) -> Object | None:
        """An object that we did not make: a credentials Secret, or a ConfigMap that an admin copied. It may carry no label of ours. None: there is
        none.

        It costs a request, while `get` answers from the cache. No event reports its changes: reconcile must ask again later.
        """

    def pods_refused(self, workload: Object) -> str:
        """What was said last to the controller of a StatefulSet, Deployment or Job whose pods could not be made; empty: nothing is known.

        It may cost a request. Ask only for a workload that lacks pods.
        """

    def list(self, kind: str, labels: Mapping[str, str]) -> list[Object]:
        """Live objects of a kind that carry all these labels, by name; kind `Pod` too, which nobody applies."""

    def apply(self, wanted: Object) -> Object:
        """Create the object, or make the live one contain it, keeping fields that others own; the status is left alone.

        Sets `metadata.uid` and `metadata.generation` (which grows when the spec changes).
        """

    def adopt(self, child: Object) -> None:
        """Add the `metadata.ownerReferences` of `child` to the live object of its kind, name and uid, and change nothing else of it."""

    def delete(self, kind: str, name: str, *, orphan: bool = False) -> None:
        """Delete in the foreground: the object stays visible until everything that it owns is gone. With `orphan`, its pods stay."""

    def apply_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        """Replace the status of one of our own objects."""

    def addresses(
        self, run: str, relays: int, relay_server: str | None = None, runners: int = 0, *, islands: bool = False
    ) -> Addresses:
        """Where the parts of a run are or will be; the same answer every time. `relay_server`: object with the relays, if it is not the run's own;
        `islands`: whether the run serves a lighthouse, at which islands meet."""

    def run_progress(self, orchestrator_url: str) -> RunProgress | None:
        """`GET /v1/run` of a run's orchestrator, within a second or two; None when it does not answer."""

    def now(self) -> datetime:
        """The time, with its zone, for transition times in conditions."""
