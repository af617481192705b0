"""A `Cluster` whose pods are played by the test: objects are stored as on one machine, workloads become ready when the test says so."""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

from shoal.contracts.protocol import RunProgress
from shoal.contracts.run import Addresses
from shoal_operator.children import names
from shoal_operator.children.site import Site, at_site, with_digests
from shoal_operator.children.workloads import with_claim_templates
from shoal_operator.engine.cluster import ClusterError, Object, Result, controlled_by
from shoal_operator.engine.kinds import OWN_KINDS
from shoal_operator.engine.last_heard import LastHeard
from shoal_operator.engine.unchanged import as_kept
from shoal_operator.local.objects import Objects
from shoal_operator.reconcile import reconcile


def _without_null(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    assert all(value is not None for _, value in fields), f"null in a status: {fields}"
    return dict(fields)


class ClusterObjects(Objects):
    """What a cluster with Kueue and LeaderWorkerSet stores."""

    kinds = Objects.kinds | {"Workload", "LocalQueue", "ClusterQueue", "ResourceFlavor", "LeaderWorkerSet"}

    def _save(self) -> None:
        """Nothing is kept: a file of everything at each write is most of a test's time."""

    def all(self) -> list[Object]:
        """Everything, in the order of creation."""
        return list(self._objects.values())


class MemoryCluster:
    """`settle` reconciles until nothing changes; `writes` counts what was applied."""

    namespace = "default"
    enforces_volumes = True
    has_images = True

    def __init__(self, folder: Path) -> None:
        self.objects = ClusterObjects(folder / "objects.json")
        self.progress: RunProgress | None = None
        self.heard = LastHeard()
        self.pods: dict[str, Object] = {}
        self.asked: list[str] = []
        self.writes: list[str] = []
        self.refuses: dict[str, ClusterError] = {}
        """What is said to applies of objects, by `<kind>/<name>`."""
        self.warnings: dict[str, tuple[str, str]] = {}
        """Reason and words of the newest Warning about a workload or a pod, by its name."""
        self.warned_at: dict[str, datetime] = {}
        """When it was said, by the name; none: just now."""
        self.asked_about: list[str] = []
        """Names of what Events were read about."""
        self.classes: dict[str, Object] | None = None
        """StorageClasses by name; None: not to be known."""
        self.site: Site | None = None
        """What the admin says about all runs; None: nothing, and nothing is refused."""
        self.lacks: set[str] = set()
        """Kinds that are not served."""
        self.groups_say_generation = True
        """Whether LeaderWorkerSet's controller says of which spec its status is; not all of its releases do."""
        self.prunes_claim_templates = False
        """Whether the LeaderWorkerSet installed is older than its claim templates."""
        self.status_writes = 0
        self.time = datetime(2026, 11, 21, tzinfo=UTC)
        self._reads: dict[Hashable, tuple[Callable[[], Any], Any]] | None = None
        """Of work that may be kept; None for none, and once it did more than read."""
        self._keeping = False
        """Whether such work is done now, whatever it did so far."""
        self._kept: dict[Hashable, tuple[Sequence[tuple[Callable[[], Any], Any]], Any]] = {}

    def serves(self, kind: str) -> bool:
        self._not_kept()
        return kind not in self.lacks

    def at_site(self, child: Object) -> Object:
        return at_site(child, self.site) if self.site is not None else child

    def with_digests(self, child: Object) -> Object:
        return with_digests(child, self.site) if self.site is not None else child

    def get(self, kind: str, name: str) -> Object | None:
        def read() -> Object | None:
            found = self.objects.get(kind, name)
            return as_kept(found) if found is not None and self._keeping else found

        found: Object | None = self._read((kind, name), read)
        return found

    def read_foreign(self, kind: str, name: str) -> Object | None:
        self._not_kept()
        return self.objects.get(kind, name)

    def storage_classes(self) -> Mapping[str, Object] | None:
        self._not_kept()
        return self.classes

    def warning_about(self, about: Object, reason: str = "", since: datetime | None = None) -> tuple[str, str]:
        self._not_kept()
        name = about["metadata"]["name"]
        self.asked_about.append(name)
        known = about["kind"] != "LeaderWorkerSet"  # nobody writes Events about one: its StatefulSets' pods are refused
        found, at = self.warnings.get(name, ("", "")) if known else ("", ""), self.warned_at.get(name)
        old = since is not None and at is not None and at < since
        return ("", "") if old or reason not in ("", found[0]) else found

    def _find(self, kind: str, labels: Mapping[str, str]) -> list[Object]:
        if kind == "Pod":
            return [pod for _, pod in sorted(self.pods.items()) if labels.items() <= pod["metadata"]["labels"].items()]
        return self.objects.find(kind, labels)

    def failed_pods(self, run: str) -> list[Object]:
        return []

    def list(self, kind: str, labels: Mapping[str, str]) -> list[Object]:
        def read() -> list[Object]:
            found = self._find(kind, labels)
            return [as_kept(each) for each in found] if self._keeping else found

        found: list[Object] = self._read((kind, *sorted(labels.items())), read)
        return found

    def controlled(self, kind: str, labels: Mapping[str, str], by: Object | None) -> Sequence[Object]:
        return controlled_by(self.list(kind, labels), by)

    def serving(self, kind: str, run: str) -> Sequence[str]:
        return [each["metadata"]["name"] for each in self.list(kind, {}) if each["spec"].get("run") == run]

    def apply(self, wanted: Object) -> Object:
        self._not_kept()
        self.writes.append(f"{wanted['kind']}/{wanted['metadata']['name']}")
        if (refusal := self.refuses.get(self.writes[-1])) is not None:
            raise refusal
        if self.prunes_claim_templates and wanted["kind"] == "LeaderWorkerSet":
            wanted = with_claim_templates(wanted, [])
            del wanted["spec"]["leaderWorkerTemplate"]["volumeClaimTemplates"]
        return self.objects.apply(wanted)

    def adopt(self, child: Object) -> None:
        self._not_kept()
        self.objects.adopt(child)

    def delete(self, kind: str, name: str, *, orphan: bool = False) -> None:
        self._not_kept()
        if orphan:
            self.objects.remove(kind, name)
        else:
            self.objects.mark_deleted(kind, name, self.time.isoformat())

    def apply_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        self._not_kept()
        self.status_writes += 1
        json.loads(json.dumps(dict(status)), object_pairs_hook=_without_null)  # an API server refuses null, too
        self.objects.set_status(kind, name, status)

    def merge_status(self, live: Object, status: Mapping[str, Any]) -> None:
        self._not_kept()
        self.status_writes += 1
        kind, name = live["kind"], live["metadata"]["name"]
        merged = {**(self.objects.get(kind, name) or {}).get("status", {}), **status}
        self.objects.set_status(kind, name, {key: value for key, value in merged.items() if value is not None})

    def addresses(
        self, run: str, relays: int, relay_server: str | None = None, runners: int = 0, *, islands: bool = False
    ) -> Addresses:
        return names.cluster_addresses(run, self.namespace, relays, relay_server, runners, islands=islands)

    def run_progress(self, orchestrator_url: str) -> RunProgress | None:
        self._not_kept()
        self.asked.append(orchestrator_url)
        return self.progress

    def now(self) -> datetime:
        self._not_kept()
        self.time += timedelta(seconds=1)
        return self.time

    def unchanged(self, what: str, inputs: Hashable, do: Callable[[], Result]) -> Result:
        """Does the work each time, and checks what an operator rests on that does not: inputs and reads as before give what was given before, and
        nothing is written."""
        at, self._reads, self._keeping = (what, inputs), {}, True
        if any(read() != found for read, found in self._kept.get(at, ((), None))[0]):
            del self._kept[at]
        try:
            made = do()
        finally:
            reads, self._reads, self._keeping = self._reads, None, False
        if at in self._kept:
            assert reads is not None, f"{what} wrote or asked something, though nothing that it rests on had changed"
            assert made == self._kept[at][1], f"{what} rests on more than its inputs and reads"
        elif reads is not None:
            self._kept[at] = list(reads.values()), made
        return made

    def _read(self, what: Hashable, read: Callable[[], Any]) -> Any:
        if self._reads is not None:
            self._reads.setdefault(what, (read, read()))
        return read()

    def _not_kept(self) -> None:
        self._reads = None

    # What the test plays.

    def reconcile_all(self) -> None:
        """Reconcile every object of our kinds once, owners before what they own, so that one call sees a new run through."""
        for kind in OWN_KINDS:
            for found in self.list(kind, {}):
                reconcile(self, kind, found["metadata"]["name"])

    def settle(self, rounds: int = 6) -> None:
        """Reconcile until it has nothing left to write."""
        for _ in range(rounds):
            before = len(self.writes), self.status_writes, len(self.objects.deleting())
            self.reconcile_all()
            if before == (len(self.writes), self.status_writes, len(self.objects.deleting())):
                return
        raise AssertionError(f"reconcile does not settle; last writes: {self.writes[-5:]}")

    def pods_start(self) -> None:
        """Every workload gets the pods that it asks for, all ready; what is being deleted goes."""
        self.pods_end()
        for kind in ("StatefulSet", "Deployment", "LeaderWorkerSet"):
            for found in self.objects.find(kind):
                count = found["spec"]["replicas"]
                status = {
                    "replicas": count,
                    "readyReplicas": count,
                    "updatedReplicas": count,
                    "observedGeneration": found["metadata"]["generation"],
                }
                if kind == "LeaderWorkerSet":
                    self._groups_start(found)
                    if not self.groups_say_generation:
                        del status["observedGeneration"]
                self.objects.set_status(kind, found["metadata"]["name"], status)
        for job in self.objects.find("Job"):
            if not job.get("status", {}).get("conditions"):
                self.objects.set_status("Job", job["metadata"]["name"], {"active": 1, "ready": 1})

    def pods_end(self) -> None:
        """Deletions that have begun are finished."""
        for found in self.objects.deleting():
            self.objects.remove(found["kind"], found["metadata"]["name"])
            if found["kind"] == "LeaderWorkerSet":
                self._groups_end(found["metadata"]["name"])

    def _groups_start(self, live: Object) -> None:
        """The pods of a LeaderWorkerSet's groups, all ready, and no others."""
        name, group = live["metadata"]["name"], live["spec"]["leaderWorkerTemplate"]
        self._groups_end(name)
        for number, place in product(range(live["spec"]["replicas"]), range(group["size"])):
            pod = f"{name}-{number}-{place}" if place else f"{name}-{number}"
            self.pods[pod] = {
                "kind": "Pod",
                "metadata": {"name": pod, "labels": dict(group["workerTemplate"]["metadata"]["labels"])},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }

    def _groups_end(self, name: str) -> None:
        for pod in [pod for pod, each in self.pods.items() if each["metadata"]["labels"].get(names.SET_LABEL) == name]:
            del self.pods[pod]

    def job_ends(self, name: str, condition: str, message: str = "") -> None:
        """A Job is `Complete` or `Failed`."""
        status = {"conditions": [{"type": condition, "status": "True", "reason": "Test", "message": message}]}
        self.objects.set_status("Job", name, status)

    def names(self, kind: str) -> Sequence[str]:
        return [found["metadata"]["name"] for found in self.objects.find(kind)]
