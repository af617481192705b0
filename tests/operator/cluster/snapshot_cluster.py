"""An oracle: what the pure reconcilers think of the state of a namespace, without the engine. One look at the API server, then nothing is written.

`unsettled` lists what reconcile would still write, and what lies there that no reconcile asked for. An empty list means that the cluster is what the
specs say.
"""

import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster_story import Story
from kube_client import Kube, Object
from operator_process import OPERATOR_NAMESPACE
from orchestrators import Orchestrators

from shoal.contracts.protocol import RunProgress
from shoal.contracts.run import Addresses
from shoal_operator.children import names
from shoal_operator.children.names import SET_LABEL
from shoal_operator.children.site import Site, at_site
from shoal_operator.engine.cluster import CHILD_KINDS, Result, controlled_by
from shoal_operator.engine.kinds import MAYBE_SERVED, OWN_KINDS
from shoal_operator.engine.last_heard import LastHeard
from shoal_operator.reconcile import reconcile

MANAGED = "app.kubernetes.io/managed-by=shoal-operator"

RUN_KEY = re.compile(r".+-run-key(-\d+)?")
"""Secrets that are read only when a key is changed."""


class SnapshotCluster:
    """A `Cluster` of what was there once; writes are noted, not made."""

    enforces_volumes = True
    has_images = True

    def __init__(self, kube: Kube, namespace: str, orchestrators: Orchestrators) -> None:
        self.namespace, self.heard = namespace, LastHeard()
        self.would_write: list[str] = []
        self.asked: set[tuple[str, str]] = set()
        self._orchestrators, self._kube = orchestrators, kube
        self._served = [
            each
            for each in MAYBE_SERVED
            if kube.get("CustomResourceDefinition", f"{each.plural}.{each.group}") is not None
        ]
        self._classes = {found["metadata"]["name"]: found for found in kube.list("StorageClass", None)}
        self._objects = {
            (kind, found["metadata"]["name"]): found
            for kind in (*OWN_KINDS, *CHILD_KINDS, *(each.kind for each in self._served))
            for found in kube.list(kind, namespace)
        }

        # Of a group: all others are counted by their workload's status.
        self._pods = [
            each for each in kube.list("Pod", namespace) if names.TEMPLATE_LABEL in each["metadata"].get("labels", {})
        ]

    def serves(self, kind: str) -> bool:
        return any(each.kind == kind for each in self._served)

    def at_site(self, child: Object) -> Object:
        return at_site(child, Site(), OPERATOR_NAMESPACE)

    def with_digests(self, child: Object) -> Object:
        return child

    def get(self, kind: str, name: str) -> Object | None:
        self.asked.add((kind, name))
        return self._objects.get((kind, name))

    def read_foreign(self, kind: str, name: str) -> Object | None:
        if kind == "ResourceFlavor":
            return self._kube.get(kind, name)
        return self._objects.get((kind, name))

    def storage_classes(self) -> Mapping[str, Object]:
        return self._classes

    def warning_about(self, about: Object, reason: str = "", since: datetime | None = None) -> tuple[str, str]:
        return "", ""

    def failed_pods(self, run: str) -> list[Object]:
        return []

    def list(self, kind: str, labels: Mapping[str, str]) -> list[Object]:
        found = [
            each
            for of, each in (
                *((of, each) for (of, _), each in self._objects.items()),
                *(("Pod", pod) for pod in self._pods),
            )
            if of == kind and labels.items() <= each["metadata"].get("labels", {}).items()
        ]
        return sorted(found, key=lambda each: each["metadata"]["name"])

    def controlled(self, kind: str, labels: Mapping[str, str], by: Object | None) -> Sequence[Object]:
        return controlled_by(self.list(kind, labels), by)

    def serving(self, kind: str, run: str) -> Sequence[str]:
        return [each["metadata"]["name"] for each in self.list(kind, {}) if each["spec"].get("run") == run]

    def adopt(self, child: Object) -> None:
        self.would_write.append(f"adopt {child['kind']}/{child['metadata']['name']}")

    def apply(self, wanted: Object) -> Object:
        self.would_write.append(f"apply {wanted['kind']}/{wanted['metadata']['name']}")
        return wanted

    def delete(self, kind: str, name: str, *, orphan: bool = False) -> None:
        self.would_write.append(f"delete {kind}/{name}")

    def apply_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        live = (self._objects.get((kind, name)) or {}).get("status", {})
        changed = {key for key in {*live, *status} if live.get(key) != status.get(key)}
        self.would_write.append(f"status of {kind}/{name}: {', '.join(sorted(changed))}")

    def merge_status(self, live: Object, status: Mapping[str, Any]) -> None:
        self.would_write.append(f"status of {live['kind']}/{live['metadata']['name']}: {', '.join(sorted(status))}")

    def addresses(
        self, run: str, relays: int, relay_server: str | None = None, runners: int = 0, *, islands: bool = False
    ) -> Addresses:
        return names.cluster_addresses(run, self.namespace, relays, relay_server, runners, islands=islands)

    def run_progress(self, orchestrator_url: str) -> RunProgress | None:
        return self._orchestrators.said(orchestrator_url)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def unchanged(self, what: str, inputs: Hashable, do: Callable[[], Result]) -> Result:
        return do()

    def stale(self) -> Sequence[str]:
        """Managed objects that no reconciler asked for, or whose owner is gone."""
        alive = {found["metadata"]["uid"] for found in self._objects.values()}
        wrong = []
        for (kind, name), found in self._objects.items():
            metadata = found["metadata"]
            if kind in OWN_KINDS or metadata.get("labels", {}).get("app.kubernetes.io/managed-by") != "shoal-operator":
                continue
            owners = [owner["uid"] for owner in metadata.get("ownerReferences", [])]
            if kind == "PersistentVolumeClaim" and SET_LABEL in metadata["labels"]:
                continue  # of a StatefulSet's template: Kubernetes keeps it as long as that says
            if not owners or not alive.issuperset(owners):
                wrong.append(f"{kind}/{name} has no living owner")
            elif (kind, name) not in self.asked and not (kind == "Secret" and RUN_KEY.fullmatch(name)):
                wrong.append(f"{kind}/{name} belongs to nothing that the specs say")
        return wrong


def unsettled(story: Story) -> list[str]:
    """What the cluster lacks or has too much of, by the pure reconcilers; empty when it is settled."""
    cluster = SnapshotCluster(story.kube, story.namespace, story.orchestrators)
    for kind in OWN_KINDS:
        for found in cluster.list(kind, {}):
            reconcile(cluster, kind, found["metadata"]["name"])
    return [*cluster.would_write, *cluster.stale()]


def wait_settled(story: Story, seconds: float = 60.0) -> None:
    """Wait until nothing is unsettled; fails with what is."""
    end = time.monotonic() + seconds
    while left := unsettled(story):
        if time.monotonic() > end:
            pytest.fail(f"after {seconds:.0f} s still not what the specs say: {left[:20]}", pytrace=False)
        time.sleep(0.5)
