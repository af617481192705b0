"""A `Cluster` whose pods are played by the test: objects are stored as on one machine, workloads become ready when the test says so."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shoal.contracts.protocol import RunProgress
from shoal.contracts.run import Addresses
from shoal_operator.children import names
from shoal_operator.engine.cluster import ClusterError, Object
from shoal_operator.local.objects import Objects
from shoal_operator.reconcile import reconcile_all


def _without_null(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    assert all(value is not None for _, value in fields), f"null in a status: {fields}"
    return dict(fields)


class MemoryCluster:
    """`settle` reconciles until nothing changes; `writes` counts what was applied."""

    namespace = "default"
    enforces_volumes = True

    def __init__(self, folder: Path) -> None:
        self.objects = Objects(folder / "objects.json")
        self.progress: RunProgress | None = None
        self.pods: dict[str, Object] = {}
        self.asked: list[str] = []
        self.writes: list[str] = []
        self.refuses: dict[str, ClusterError] = {}
        """What is said to applies of objects, by `<kind>/<name>`."""
        self.refuses_pods: dict[str, str] = {}
        """What the controller of a workload is told when it makes pods, by the workload's name."""
        self.status_writes = 0
        self.time = datetime(2026, 11, 21, tzinfo=UTC)

    def get(self, kind: str, name: str) -> Object | None:
        return self.objects.get(kind, name)

    def read_foreign(self, kind: str, name: str) -> Object | None:
        return self.objects.get(kind, name)

    def pods_refused(self, workload: Object) -> str:
        return self.refuses_pods.get(workload["metadata"]["name"], "")

    def list(self, kind: str, labels: Mapping[str, str]) -> list[Object]:
        if kind == "Pod":
            return [pod for _, pod in sorted(self.pods.items()) if labels.items() <= pod["metadata"]["labels"].items()]
        return self.objects.find(kind, labels)

    def apply(self, wanted: Object) -> Object:
        self.writes.append(f"{wanted['kind']}/{wanted['metadata']['name']}")
        if (refusal := self.refuses.get(self.writes[-1])) is not None:
            raise refusal
        return self.objects.apply(wanted)

    def adopt(self, child: Object) -> None:
        self.objects.adopt(child)

    def delete(self, kind: str, name: str, *, orphan: bool = False) -> None:
        if orphan:
            self.objects.remove(kind, name)
        else:
            self.objects.mark_deleted(kind, name, self.time.isoformat())

    def apply_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        self.status_writes += 1
        json.loads(json.dumps(dict(status)), object_pairs_hook=_without_null)  # an API server refuses null, too
        self.objects.set_status(kind, name, status)

    def addresses(
        self, run: str, relays: int, relay_server: str | None = None, runners: int = 0, *, islands: bool = False
    ) -> Addresses:
        return names.cluster_addresses(run, self.namespace, relays, relay_server, runners, islands=islands)

    def run_progress(self, orchestrator_url: str) -> RunProgress | None:
        self.asked.append(orchestrator_url)
        return self.progress

    def now(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time

    # What the test plays.

    def settle(self, rounds: int = 6) -> None:
        """Reconcile until it has nothing left to write."""
        for _ in range(rounds):
            before = len(self.writes), self.status_writes, len(self.objects.deleting())
            reconcile_all(self)
            if before == (len(self.writes), self.status_writes, len(self.objects.deleting())):
                return
        raise AssertionError(f"reconcile does not settle; last writes: {self.writes[-5:]}")

    def pods_start(self) -> None:
        """Every workload gets the pods that it asks for, all ready; what is being deleted goes."""
        self.pods_end()
        for kind in ("StatefulSet", "Deployment"):
            for found in self.objects.find(kind):
                count = found["spec"]["replicas"]
                status = {
                    "replicas": count,
                    "readyReplicas": count,
                    "observedGeneration": found["metadata"]["generation"],
                }
                self.objects.set_status(kind, found["metadata"]["name"], status)
        for job in self.objects.find("Job"):
            if not job.get("status", {}).get("conditions"):
                self.objects.set_status("Job", job["metadata"]["name"], {"active": 1, "ready": 1})

    def pods_end(self) -> None:
        """Deletions that have begun are finished."""
        for found in self.objects.deleting():
            self.objects.remove(found["kind"], found["metadata"]["name"])

    def job_ends(self, name: str, condition: str, message: str = "") -> None:
        """A Job is `Complete` or `Failed`."""
        status = {"conditions": [{"type": condition, "status": "True", "reason": "Test", "message": message}]}
        self.objects.set_status("Job", name, status)

    def names(self, kind: str) -> Sequence[str]:
        return [found["metadata"]["name"] for found in self.objects.find(kind)]
