"""`LocalCluster`: the `Cluster` that reconcile talks to, on this machine, and the supervision of its pods.

Reconcile calls the methods of `engine.cluster.Cluster`; the driver (`run.py`) calls `tick` a few times a second, and `stop` or `kill` at the end.
All from one thread. Objects, volumes, logs and addresses lie in the run's folder and outlive it; pods do not.
"""

import http.client
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shoal.contracts.newer import from_newer_json
from shoal.contracts.protocol import RunProgress
from shoal.contracts.run import Addresses
from shoal_operator.children import names
from shoal_operator.engine.cluster import Object, Result, controlled_by
from shoal_operator.engine.last_heard import LastHeard
from shoal_operator.local.addresses import AddressBook, Subnet
from shoal_operator.local.controllers import WORKLOADS, WantedPod, address_key, wanted_pods, workload_status
from shoal_operator.local.neighbours import Neighbours
from shoal_operator.local.objects import Objects
from shoal_operator.local.pod_objects import pod_object
from shoal_operator.local.pods import Pod, PodPlace, PodView, check_pod
from shoal_operator.local.processes import ProcessTable

PROBE_THREADS = 8
PROGRESS_TIMEOUT_SECONDS = 1.0
MAX_PROGRESS_BYTES = 1 << 20

STOP_ORDER = (
    "pool",
    "validator",
    "prepare",
    "trainer",
    "island",
    "lighthouse",
    "relay",
    "orchestrator",
    "discovery",
    "redis",
)
"""Components in the order in which they are stopped: each before those that it talks to. Unknown ones go first."""


class LocalCluster:
    """One namespace with one run in it, in `folder`, on the addresses of `subnet`."""

    namespace = "local"
    enforces_volumes = False
    has_images = False

    def __init__(self, folder: Path, subnet: Subnet, table: ProcessTable) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.objects = Objects(folder / "objects.json")
        self.heard = LastHeard()
        self._addresses = AddressBook(subnet, folder / "addresses.json")
        self._executor = ThreadPoolExecutor(PROBE_THREADS, thread_name_prefix="probe")
        self._neighbours = Neighbours(folder)
        self._place = PodPlace(folder, table, self._executor, self.get)
        self._pods: dict[str, Pod] = {}
        self._orphans: set[str] = set()

    # What reconcile asks (engine.cluster.Cluster).

    def serves(self, kind: str) -> bool:
        return kind in self.objects.kinds  # one machine has no queue

    def at_site(self, child: Object) -> Object:
        return child

    def with_digests(self, child: Object) -> Object:
        return child

    def get(self, kind: str, name: str) -> Object | None:
        found = self.objects.get(kind, name)
        return found if found is not None else self._neighbours.get(kind, name)

    def read_foreign(self, kind: str, name: str) -> Object | None:
        return self.objects.get(kind, name)

    def storage_classes(self) -> None:
        return None

    def warning_about(self, about: Object, reason: str = "", since: datetime | None = None) -> tuple[str, str]:
        return "", ""

    def failed_pods(self, run: str) -> list[Object]:
        return []  # a process that failed is listed until it is started again

    def list(self, kind: str, labels: Mapping[str, str]) -> list[Object]:
        if kind == "Pod":
            return [
                pod_object(pod.view(), pod.labels)
                for _, pod in sorted(self._pods.items())
                if labels.items() <= pod.labels.items()
            ]
        return self.objects.find(kind, labels)

    def controlled(self, kind: str, labels: Mapping[str, str], by: Object | None) -> Sequence[Object]:
        return controlled_by(self.list(kind, labels), by)

    def serving(self, kind: str, run: str) -> Sequence[str]:
        return [each["metadata"]["name"] for each in self.list(kind, {}) if each["spec"].get("run") == run]

    def apply(self, wanted: Object) -> Object:
        if wanted["kind"] in WORKLOADS:
            check_pod(wanted["spec"]["template"]["spec"], f"{wanted['kind']} {wanted['metadata']['name']}")
        self._orphans.discard(_owner(wanted["kind"], wanted["metadata"]["name"]))
        return self.objects.apply(wanted)

    def adopt(self, child: Object) -> None:
        self.objects.adopt(child)

    def delete(self, kind: str, name: str, *, orphan: bool = False) -> None:
        if orphan:
            self._orphans.add(_owner(kind, name))
            self.objects.remove(kind, name)
        else:
            self.objects.mark_deleted(kind, name, self.now().isoformat())

    def apply_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        self.objects.set_status(kind, name, status)

    def merge_status(self, live: Object, status: Mapping[str, Any]) -> None:
        self.objects.set_status(live["kind"], live["metadata"]["name"], status)

    def addresses(
        self, run: str, relays: int, relay_server: str | None = None, runners: int = 0, *, islands: bool = False
    ) -> Addresses:
        def host(kind: str, name: str, component: str, ordinal: int = 0) -> str:
            return self._addresses.address(address_key(kind, name, component, ordinal))

        relay = relay_server or names.relay(run)
        return Addresses(
            discovery=f"http://{host('Deployment', names.discovery(run), 'discovery')}:{names.PORTS['discovery']}",
            orchestrator=f"http://{host('Deployment', names.orchestrator(run), 'orchestrator')}:{names.PORTS['orchestrator']}",
            origin=f"http://{host('Job', names.trainer(run), 'trainer')}:{names.PORTS['nginx']}",
            relays=[f"http://{host('StatefulSet', relay, 'relay', i)}:{names.PORTS['nginx']}" for i in range(relays)],
            redis=f"redis://{host('StatefulSet', names.redis(run), 'redis')}:{names.PORTS['redis']}/0",
            runners=[
                f"http://{host('StatefulSet', names.runner(run), 'runner', i)}:{names.PORTS['runner']}"
                for i in range(runners)
            ],
            lighthouse=f"http://{host('StatefulSet', names.lighthouse(run), 'lighthouse')}:{names.PORTS['lighthouse']}"
            if islands
            else None,
        )

    def run_progress(self, orchestrator_url: str) -> RunProgress | None:
        place = urlsplit(orchestrator_url)
        connection = http.client.HTTPConnection(
            place.hostname or "", place.port or 80, timeout=PROGRESS_TIMEOUT_SECONDS
        )
        try:
            connection.request("GET", "/v1/run")
            answer = connection.getresponse()
            if answer.status != 200:
                return None
            return from_newer_json(RunProgress, answer.read(MAX_PROGRESS_BYTES))
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def unchanged(self, what: str, inputs: Hashable, do: Callable[[], Result]) -> Result:
        return do()

    # Supervision.

    def tick(self) -> None:
        """Reconcile pods with objects, once; never blocks."""
        now = time.monotonic()
        workloads = [each for kind in WORKLOADS for each in self.objects.find(kind)]
        wanted = {
            pod.name: pod
            for each in workloads
            if "deletionTimestamp" not in each["metadata"]
            for pod in wanted_pods(each)
        }
        for name, pod in list(self._pods.items()):
            self._keep_or_stop(name, pod, wanted.get(name), now)
        for name, want in wanted.items():
            if name not in self._pods:
                self._pods[name] = self._make(want)
        for pod in self._pods.values():
            pod.tick(now)
        for each in workloads:
            self._write_status(each)
        self._finish_deletions()

    def pods(self) -> Sequence[PodView]:
        """The state of every pod, by name."""
        return [pod.view() for _, pod in sorted(self._pods.items())]

    def pid_of(self, pod: str, container: str) -> int | None:
        """Process id of a container; raises KeyError for a pod or container that does not exist."""
        return self._pods[pod].pid(container)

    def stop(self) -> None:
        """Stop all pods, each component before those that it talks to, and wait for their end (each has its grace period)."""
        ranks: dict[int, set[Pod]] = {}
        for pod in self._pods.values():
            rank = STOP_ORDER.index(pod.component) if pod.component in STOP_ORDER else -1
            ranks.setdefault(rank, set()).add(pod)
        for _, pods in sorted(ranks.items()):
            for pod in pods:
                pod.stop(time.monotonic())
            while not all(pod.gone() for pod in pods):
                for pod in pods:
                    pod.tick(time.monotonic())
                time.sleep(0.05)
        self._pods.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def kill(self) -> None:
        """End every process at once."""
        for pod in self._pods.values():
            pod.kill()

    def _keep_or_stop(self, name: str, pod: Pod, want: WantedPod | None, now: float) -> None:
        if want is not None and want.template_hash == pod.template_hash and pod.phase != "Stopping":
            return
        if want is None and pod.owner in self._orphans:
            return
        if want is None and pod.phase in ("Succeeded", "Failed") and self._exists(pod.owner):
            return  # a finished Job's pod stays to be looked at, as on a cluster; it ends its sidecars by itself
        pod.stop(now)
        if pod.gone():
            del self._pods[name]

    def _exists(self, owner: str) -> bool:
        kind, name = owner.split("/")
        found = self.objects.get(kind, name)
        return found is not None and "deletionTimestamp" not in found["metadata"]

    def _make(self, want: WantedPod) -> Pod:
        return Pod(
            name=want.name,
            owner=want.owner,
            component=want.component,
            template=want.template,
            template_hash=want.template_hash,
            address=self._addresses.address(want.address_key),
            claims=want.claims,
            final_exits=want.final_exits,
            place=self._place,
        )

    def _write_status(self, workload: Object) -> None:
        kind, name = workload["kind"], workload["metadata"]["name"]
        pods = [pod for pod in self._pods.values() if pod.owner == _owner(kind, name)]
        self.objects.set_status(kind, name, workload_status(workload, pods))

    def _finish_deletions(self) -> None:
        """Forget deleted objects once their pods and all that they own are gone."""
        for each in self.objects.deleting():
            kind, name = each["kind"], each["metadata"]["name"]
            if any(pod.owner == _owner(kind, name) for pod in self._pods.values()):
                continue
            if not self.objects.owned(kind, name):
                self.objects.remove(kind, name)


def _owner(kind: str, name: str) -> str:
    return f"{kind}/{name}"
