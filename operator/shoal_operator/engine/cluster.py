"""The one interface between reconcile and where objects live: an API server, or this machine.

A `Cluster` speaks for one namespace. Objects are plain dicts as Kubernetes writes them (`apiVersion`, `kind`, `metadata`, `spec`, `status`).
Calls block; each raises `ClusterError` when the other side does not answer in time, and reconcile is then tried again later: it is level-triggered,
so a call that was lost is made again.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from shoal.contracts.protocol import RunProgress
from shoal.contracts.run import Addresses
from shoal_operator.engine.last_heard import LastHeard

Object = dict[str, Any]
"""A Kubernetes object."""

Result = TypeVar("Result")

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

MAYBE_KINDS = {"HTTPRoute": "gateway.networking.k8s.io/v1", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1"}
"""Further ones that many clusters do not serve. Their objects are made where they are served."""

KUEUE = "kueue.x-k8s.io/v1beta2"
"""API version of Kueue's kinds, which many clusters lack."""


class NotHeard:
    """Instead of an answer: it is being asked for, and nobody knows it yet."""


NOT_HEARD = NotHeard()


TOO_DEEP: Object = {"tooDeep": True}
"""What the cache keeps instead of a spec with more levels than `orjson` writes, 250. A field of a pod has about ten."""


class ClusterError(RuntimeError):
    """The cluster did not answer, or refused; the text says what and why."""

    passing = False
    """Whether the next attempt may succeed without a change; otherwise the object's status reports the error."""
    condition = "ReconcileFailed"
    """Reason of the Ready condition that reports it."""


def controller_of(live: Object) -> dict[str, Any] | None:
    """The reference to what controls an object, or None."""
    return next((each for each in live["metadata"].get("ownerReferences", ()) if each.get("controller")), None)


def controlled_by(found: Iterable[Object], by: Object | None) -> list[Object]:
    """What `Cluster.controlled` gives, from what `Cluster.list` gives."""
    wanted = None if by is None else (by["kind"], by["metadata"]["name"])
    return [
        each
        for each in found
        if (None if (reference := controller_of(each)) is None else (reference["kind"], reference["name"])) == wanted
    ]


class Cluster(Protocol):
    """Get, list, apply and delete in one namespace; and what else reconcile must know."""

    @property
    def namespace(self) -> str:
        """The namespace that all names below are in."""

    @property
    def heard(self) -> LastHeard:
        """What the orchestrators of runs said last, in this process's life."""

    @property
    def enforces_volumes(self) -> bool:
        """Whether a volume may be as small as it was asked for; otherwise volumes are plain folders, and sizes only words."""

    @property
    def has_images(self) -> bool:
        """Whether pods run images, of any release; otherwise the code that is installed."""

    def serves(self, kind: str) -> bool:
        """Whether a kind that clusters may lack, such as Kueue's Workload, is there and can be seen."""

    def at_site(self, child: Object) -> Object:
        """The child with what the cluster's admin says about all runs; raises ClusterError where it asks for what is not allowed."""

    def with_digests(self, child: Object) -> Object:
        """The child with the digests of its release's images, where the cluster's admin gives them."""

    def get(self, kind: str, name: str) -> Object | None:
        """The live object with its status, or None. An object that is being deleted is still there, with `metadata.deletionTimestamp`."""

    def read_foreign(self, kind: str, name: str) -> Object | None:
        """An object that we did not make: a credentials Secret, or a ConfigMap that an admin copied. It may carry no label of ours. None: there is
        none.

        It costs a request, while `get` answers from the cache. No event reports its changes: reconcile must ask again later.
        """

    def storage_classes(self) -> Mapping[str, Object] | None:
        """The StorageClasses of the cluster, by name; None: this operator may not know them, or there are none here.

        It may cost a request.
        """

    def warning_about(self, about: Object, reason: str = "", since: datetime | None = None) -> tuple[str, str]:
        """Reason and words of the newest Warning Event about an object, of one reason where that is given; empty: nothing is known, or nothing
        `since` a time.

        `about` needs a kind and a name, and where it was read a uid.
        It may cost a request. Ask only about what is not well: a workload that lacks pods, a pod that does not become ready.
        """

    def failed_pods(self, run: str) -> list[Object]:
        """Pods of a run that failed and were replaced since this operator looks: the last few, as they were last."""

    def list(self, kind: str, labels: Mapping[str, str]) -> list[Object]:
        """Live objects of a kind that carry all these labels, by name; kind `Pod` too, which nobody applies."""

    def controlled(self, kind: str, labels: Mapping[str, str], by: Object | None) -> Sequence[Object]:
        """Those of `list` that an object called as `by` controls, or that nothing controls where it is None.

        Cheaper than `list` where most belong to others: a run's label is on all children of its pools.
        """

    def serving(self, kind: str, run: str) -> Sequence[str]:
        """Names of objects of one of our kinds whose `spec.run` is this run, by name; whoever made them."""

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

    def merge_status(self, live: Object, status: Mapping[str, Any]) -> None:
        """Merge into the status of an object that others write too; None removes a field. Refused if it changed since `live` was read."""

    def addresses(
        self, run: str, relays: int, relay_server: str | None = None, runners: int = 0, *, islands: bool = False
    ) -> Addresses:
        """Where the parts of a run are or will be; the same answer every time. `relay_server`: object with the relays, if it is not the run's own;
        `islands`: whether the run serves a lighthouse, at which islands meet."""

    def run_progress(self, orchestrator_url: str) -> RunProgress | NotHeard | None:
        """What `GET /v1/run` of a run's orchestrator said last; None when it does not answer. Where nobody knows yet, reconcile is called again when
        somebody does."""

    def now(self) -> datetime:
        """The time, with its zone, for transition times in conditions."""

    def unchanged(self, what: str, inputs: Hashable, do: Callable[[], Result]) -> Result:
        """What `do` gives, which depends on `inputs` and on what it reads here. It may be what the last call of this name gave, if that only read
        objects, and neither these nor the inputs have changed: then it would do nothing again.
        """
