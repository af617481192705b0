"""`KubernetesCluster`: the `Cluster` of one reconcile on an API server. Reads come from the cache, writes are server-side applies.

Made for each key that is reconciled, from the parts that all share. What a write returned is in the cache before the next read. Deletions are
seen when the watch tells of them.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from shoal.contracts.protocol import RunProgress
from shoal.contracts.run import Addresses
from shoal_operator.children.names import cluster_addresses
from shoal_operator.children.site import Site, at_site, with_digests
from shoal_operator.engine.api_server import APPLY_PATCH, MERGE_PATCH, ApiError, ApiServer
from shoal_operator.engine.apply import not_quantities, removal_of_strangers
from shoal_operator.engine.cache import Cache, Controller, is_applied
from shoal_operator.engine.cluster import ClusterError, NotHeard, Object, Result
from shoal_operator.engine.events import EventRecorder
from shoal_operator.engine.kinds import CACHED, CLUSTER_SCOPED, SCALED_KINDS, Key, Resource
from shoal_operator.engine.last_heard import LastHeard
from shoal_operator.engine.progress import RunProgressReader
from shoal_operator.engine.storage_classes import StorageClasses
from shoal_operator.engine.unchanged import Reads, Unchanged, as_kept
from shoal_operator.engine.warning_events import WarningEvents

FIELD_MANAGER = "shoal-operator"
SCALE_MANAGER = "shoal-operator-scale"
"""Owns `spec.replicas` of objects that are scaled. Apart from the main manager, because server-side apply removes a field that its only owner leaves
out: when a run stops asking for a number, the one that is there must stay, for an autoscaler to change."""

ADOPT_MANAGER = "shoal-operator-adopt"
"""Owns the owner of what an earlier run left. Apart from the main manager, which may not leave out the rest of an object."""

FOREIGN_SECONDS = 10.0
"""A foreign object that was found is not asked for again so soon: a thousand pools may read the same one."""

MAX_FOREIGN = 1000
"""Foreign objects that are remembered at once; beyond it all are asked for again."""


@dataclass
class Foreign:
    """Foreign objects that were read a moment ago, with the time, by key."""

    clock: Callable[[], float] = time.monotonic
    found: dict[Key, tuple[float, Object]] = field(default_factory=dict)


@dataclass(frozen=True)
class Parts:
    """What the clusters of all keys share."""

    api: ApiServer
    cache: Cache
    progress: RunProgressReader
    events: EventRecorder
    classes: StorageClasses
    warnings: WarningEvents
    kept: Unchanged
    foreign: Foreign = field(default_factory=Foreign)
    site: Site = field(default_factory=Site)
    home: str = ""
    """The operator's own namespace; empty outside a cluster."""
    missing: Callable[[str, str], bool] = lambda kind, namespace: False
    """Whether the cluster lacks a kind, or its objects in a namespace may not be seen."""
    heard: LastHeard = field(default_factory=LastHeard)


class KubernetesCluster:
    """The cluster as the reconcile of one key sees it."""

    enforces_volumes = True
    has_images = True

    def __init__(self, parts: Parts, key: Key) -> None:
        self._api, self._cache, self._key, self._parts = parts.api, parts.cache, key, parts
        self._reads: Reads | None = None
        """Of the work whose result may be kept."""
        self.namespace, self.heard = key.namespace, parts.heard

    def serves(self, kind: str) -> bool:
        self._not_kept()
        return not self._parts.missing(kind, self.namespace)

    def at_site(self, child: Object) -> Object:
        return at_site(child, self._parts.site, self._parts.home)

    def with_digests(self, child: Object) -> Object:
        return with_digests(child, self._parts.site)

    def get(self, kind: str, name: str) -> Object | None:
        _known(kind)
        if self._reads is not None:
            # Before the object itself: should a newer one come in between, the work is done again.
            self._reads.objects.setdefault((kind, name), self._parts.kept.version(Key(kind, self.namespace, name)))
        found = self._cache.get(Key(kind, self.namespace, name))
        return found if found is None or self._reads is None else as_kept(found)

    def read_foreign(self, kind: str, name: str) -> Object | None:
        self._not_kept()
        namespace = None if kind in CLUSTER_SCOPED else self.namespace
        key, foreign = Key(kind, namespace or "", name), self._parts.foreign
        now = foreign.clock()
        read_at, found = foreign.found.get(key, (float("-inf"), None))
        if found is not None and now - read_at < FOREIGN_SECONDS:
            return found
        foreign.found.pop(key, None)
        try:
            fresh = self._api.call("get", CLUSTER_SCOPED.get(kind) or _known(kind), namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        if len(foreign.found) > MAX_FOREIGN:
            foreign.found.clear()
        foreign.found[key] = (now, fresh)
        return fresh

    def storage_classes(self) -> Mapping[str, Object] | None:
        self._not_kept()
        return self._parts.classes.read()

    def warning_about(self, about: Object, reason: str = "", since: datetime | None = None) -> tuple[str, str]:
        self._not_kept()
        return self._parts.warnings.about(self.namespace, about, reason, since)

    def failed_pods(self, run: str) -> list[Object]:
        self._not_kept()
        return self._cache.failed_pods(self.namespace, run)

    def _list(self, kind: str, labels: Mapping[str, str], controller: Controller) -> list[Object]:
        _known(kind)
        if self._reads is not None:
            selection = kind, tuple(sorted(labels.items())), controller
            self._reads.lists.setdefault(selection, self._parts.kept.versions(self.namespace, selection))
        found = self._cache.find(kind, self.namespace, labels, controller)
        return found if self._reads is None else [as_kept(each) for each in found]

    def list(self, kind: str, labels: Mapping[str, str]) -> list[Object]:
        return self._list(kind, labels, ())

    def controlled(self, kind: str, labels: Mapping[str, str], by: Object | None) -> Sequence[Object]:
        return self._list(
            kind, labels, (None if by is None else Key(by["kind"], self.namespace, by["metadata"]["name"]),)
        )

    def serving(self, kind: str, run: str) -> Sequence[str]:
        self._not_kept()
        return self._cache.serving(kind, self.namespace, run)

    def apply(self, wanted: Object) -> Object:
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        if kind in SCALED_KINDS:
            return self._apply_scaled(wanted)
        return self._patch(kind, name, wanted)

    def adopt(self, child: Object) -> None:
        self._patch(child["kind"], child["metadata"]["name"], child, manager=ADOPT_MANAGER)

    def delete(self, kind: str, name: str, *, orphan: bool = False) -> None:
        self._not_kept()
        entry = self._cache.entry(Key(kind, self.namespace, name))
        if entry is None:
            return
        # The uid keeps a successor of the same name safe, should this one be gone already.
        options = {"propagationPolicy": "Orphan" if orphan else "Foreground", "preconditions": {"uid": entry.uid}}
        try:
            found = self._api.call("delete", _known(kind), self.namespace, name, body=options)
        except ApiError as error:
            if error.status in (404, 409):
                return
            raise
        if found.get("kind") == kind:
            self._cache.wrote(found, self._key)

    def apply_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        self._not_kept()
        key = Key(kind, self.namespace, name)
        entry, before = self._cache.entry(key), self._cache.get(key)
        if entry is None or before is None:
            return
        resource = CACHED[kind]
        body = {
            "apiVersion": resource.api_version,
            "kind": kind,
            # With the uid a status is never written to another object of the same name.
            "metadata": {"name": name, "uid": entry.uid},
            "status": dict(status),
        }
        try:
            found = self._patch(kind, name, body, subresource="status")
            if strangers := removal_of_strangers(found.get("status", {}), status):
                self.merge_status(found, strangers)
        except ApiError as error:
            if error.status == 404:
                return  # deleted meanwhile; the watch will say so
            raise
        self._parts.events.transitions(found, before.get("status", {}), status)

    def merge_status(self, live: Object, status: Mapping[str, Any]) -> None:
        self._not_kept()
        kind, metadata = live["kind"], live["metadata"]
        found = self._api.call(
            "patch",
            _known(kind),
            self.namespace,
            metadata["name"],
            subresource="status",
            query={"fieldManager": FIELD_MANAGER},
            body={"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": dict(status)},
            content_type=MERGE_PATCH,
        )
        self._cache.wrote(found, self._key)

    def addresses(
        self, run: str, relays: int, relay_server: str | None = None, runners: int = 0, *, islands: bool = False
    ) -> Addresses:
        return cluster_addresses(run, self.namespace, relays, relay_server, runners, islands=islands)

    def run_progress(self, orchestrator_url: str) -> RunProgress | NotHeard | None:
        self._not_kept()
        run = self._cache.get(self._key)
        if run is None:
            return self._parts.progress.progress(orchestrator_url, self._key)
        uid = run["metadata"]["uid"]
        return self._parts.progress.progress(orchestrator_url, self._key, uid, edited=not is_applied(run))

    def now(self) -> datetime:
        self._not_kept()
        return datetime.now(UTC)

    def unchanged(self, what: str, inputs: Hashable, do: Callable[[], Result]) -> Result:
        if self._reads is not None:
            return do()  # part of other work, which rests on what it reads
        kept = self._parts.kept.find(self._key, what, inputs)
        if kept is not None:
            found: Result = kept.result
            return found
        self._reads = reads = Reads()
        try:
            made = do()
        finally:
            self._reads = None
        self._parts.kept.keep(self._key, what, inputs, reads, made)
        return made

    def _not_kept(self) -> None:
        """What is done now is more than a look at the cache."""
        if self._reads is not None:
            self._reads.pure = False

    def _apply_scaled(self, wanted: Object) -> Object:
        """Apply an object of which others may own the replicas: these have a manager of their own, which applies only what a run asks for."""
        self._not_kept()
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        asked: int | None = wanted["spec"].get("replicas")
        rest = {**wanted, "spec": {key: value for key, value in wanted["spec"].items() if key != "replicas"}}
        try:
            live = self._api.call("get", _known(kind), self.namespace, name)
        except ApiError as error:
            if error.status != 404 or asked is None:
                raise  # without a number nothing is made: whoever asks finds out that it is gone, and says one
            # The first apply creates it with its number; that the main manager owns it for now does no harm, as the next apply finds out.
            self._patch(kind, name, wanted)
            return self._scale(kind, name, asked)
        if asked is None and owns_replicas(live, FIELD_MANAGER) and not owns_replicas(live, SCALE_MANAGER):
            asked = live["spec"].get("replicas")
        if asked is not None:
            self._scale(kind, name, asked)
        return self._patch(kind, name, rest)

    def _scale(self, kind: str, name: str, replicas: int) -> Object:
        body = {
            "apiVersion": CACHED[kind].api_version,
            "kind": kind,
            "metadata": {"name": name},
            "spec": {"replicas": replicas},
        }
        return self._patch(kind, name, body, manager=SCALE_MANAGER)

    def _patch(
        self, kind: str, name: str, body: Object, *, subresource: str | None = None, manager: str = FIELD_MANAGER
    ) -> Object:
        self._not_kept()
        try:
            found = self._api.call(
                "patch",
                _known(kind),
                self.namespace,
                name,
                subresource=subresource,
                query={"fieldManager": manager, "force": "true"},
                body=body,
                content_type=APPLY_PATCH,
            )
        except ApiError as error:
            if "quantities" in str(error) and (wrong := ", ".join(not_quantities(body))):
                raise error.with_cause(f"no quantity is {wrong}") from error
            raise
        self._cache.wrote(found, self._key)
        return found


def owns_replicas(live: Object, manager: str) -> bool:
    """Whether a field manager applies `spec.replicas` of an object, by its `managedFields`."""
    return any(
        entry.get("manager") == manager
        and entry.get("operation") == "Apply"
        and "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
        for entry in live["metadata"].get("managedFields", ())
    )


def _known(kind: str) -> Resource:
    resource = CACHED.get(kind)
    if resource is None:
        raise ClusterError(f"kind {kind} is not available; known are {sorted(CACHED)}")
    return resource
