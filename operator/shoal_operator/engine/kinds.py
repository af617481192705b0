"""Names of the kinds that the engine talks about: their API groups, plurals and paths, and the key by which work is queued. Pure.

Used by everything that speaks to an API server; reconcile and builders know kinds by name alone.
"""

from dataclasses import dataclass
from typing import NamedTuple

from shoal_operator.api.base import API_VERSION
from shoal_operator.engine.cluster import CHILD_KINDS, KUEUE, MAYBE_KINDS

OWN_KINDS = ("TrainingRun", "InferencePool", "RelayServer", "Validator")
"""Kinds that are reconciled, owners before what they own."""

SCALED_KINDS = ("InferencePool", "RelayServer", "Validator")
"""Our kinds with a scale subresource: `kubectl scale` and autoscalers write their `spec.replicas`."""

STATUS_APART = ("StatefulSet", "Deployment", "LeaderWorkerSet", "InferencePool", "Validator")
"""Kinds whose status is most of their news, and that work which need not be done again (`unchanged.py`) reads without it."""

MANAGED_SELECTOR = "app.kubernetes.io/managed-by=shoal-operator"
"""What `children.names.labels` puts on every child and pod; one list and one watch a kind see all of them."""


class Key(NamedTuple):
    """One object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True)
class Resource:
    """How a kind is called in paths and in RBAC."""

    kind: str
    api_version: str
    plural: str

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Path on the API server; without a namespace that of all namespaces."""
        parts = ["apis" if self.group else "api", self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part is not None]
        return "/" + "/".join(parts)


_PLURALS = {
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "StatefulSet": "statefulsets",
    "Deployment": "deployments",
    "Job": "jobs",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Ingress": "ingresses",
    "TrainingRun": "trainingruns",
    "InferencePool": "inferencepools",
    "RelayServer": "relayservers",
    "Validator": "validators",
}

POD = Resource("Pod", "v1", "pods")
LEASE = Resource("Lease", "coordination.k8s.io/v1", "leases")
EVENT = Resource("Event", "events.k8s.io/v1", "events")

CHILDREN = {kind: Resource(kind, version, _PLURALS[kind]) for kind, version in CHILD_KINDS.items() if kind != "Pod"}
"""Kinds that builders make."""

STORAGE_CLASS = Resource("StorageClass", "storage.k8s.io/v1", "storageclasses")

OWN = {kind: Resource(kind, API_VERSION, _PLURALS[kind]) for kind in OWN_KINDS}

WORKLOAD = Resource("Workload", KUEUE, "workloads")
"""Kueue's, one a run with `spec.queueName`. Clusters without Kueue do not serve it."""
FLAVOR = Resource("ResourceFlavor", KUEUE, "resourceflavors")
"""Kueue's, without a namespace: labels and tolerations of the nodes that a queue gave."""

ROUTE = Resource("HTTPRoute", MAYBE_KINDS["HTTPRoute"], "httproutes")
"""The Gateway API's: how clients outside come to a pod. Clusters without its CRDs do not serve it."""

GROUPS = Resource("LeaderWorkerSet", MAYBE_KINDS["LeaderWorkerSet"], "leaderworkersets")
"""Groups of pods that start again together: engines over several hosts. Clusters without its CRD do not serve it."""

MAYBE_SERVED = (WORKLOAD, ROUTE, GROUPS)
"""Kinds that are watched where they are served, and looked for elsewhere."""

CACHED: dict[str, Resource] = {**OWN, **CHILDREN, "Pod": POD, **{each.kind: each for each in MAYBE_SERVED}}
"""Kinds that are watched, our own first. Pods are not written by us, but say why a workload is not ready."""
CLUSTER_SCOPED: dict[str, Resource] = {"ResourceFlavor": FLAVOR}
"""Kinds without a namespace that are read."""
