"""In place of controllers and nodes: each workload that the operator makes is at work at once, except the part that crashes in a tenth of the runs.

Statuses are patched, there are no pods but those that crash, whose kubelet counts another restart each 20 s. What it takes is not the operator's.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from benchmarks.operator.cluster import Kube, Object, Refused, waiting
from benchmarks.operator.orchestrators import FAILING, run_name

KINDS = ("Job", "Deployment", "StatefulSet")
CRASHING = "discovery"
"""Part of a failing run that crashes: its orchestrator answers, so that all the rest is as in a healthy one."""
RESTART_SECONDS = 20.0
SINCE = "2026-01-01T00:00:00Z"
PATCHES = 4
"""At the same time."""


class Controllers:
    """Plays until `close`."""

    def __init__(self, bench_kube: Kube, failing: dict[str, str]) -> None:
        """`failing`: namespace by name of the run."""
        self._kube, self._failing = Kube(bench_kube.kubeconfig), failing
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(PATCHES)
        self._crashed: dict[str, Object] = {}
        self._threads = [threading.Thread(target=self._follow, args=(kind,), daemon=True) for kind in KINDS]
        self._threads.append(threading.Thread(target=self._restart, daemon=True))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._kube.close()

    def _follow(self, kind: str) -> None:
        while not self._stopped.is_set():
            try:
                listed = self._kube.call("GET", f"/apis/{'batch' if kind == 'Job' else 'apps'}/v1/{kind.lower()}s")
                for found in listed["items"]:
                    self._pool.submit(self._play, {**found, "kind": kind})
                for event in self._kube.watch(kind, listed["metadata"]["resourceVersion"], seconds=3600):
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._pool.submit(self._play, {**event["object"], "kind": kind})
            except (httpx.HTTPError, RuntimeError):
                self._stopped.wait(0.2)  # its end, or a watch that broke

    def _play(self, found: Object) -> None:
        status, metadata = found.get("status", {}), found["metadata"]
        if found["kind"] == "Job":
            wanted = _job(found) if not status.get("conditions") and not status.get("ready") else None
        else:
            behind = status.get("observedGeneration") != metadata["generation"]
            wanted = self._workload(found) if behind else None
        if wanted is not None:
            try:
                self._kube.merge(
                    found["kind"], metadata["name"], metadata["namespace"], {"status": wanted}, sub="status"
                )
            except (httpx.HTTPError, Refused):
                pass  # changed or deleted meanwhile: the watch says so

    def _workload(self, found: Object) -> Object:
        metadata, replicas = found["metadata"], found["spec"].get("replicas", 1)
        run, _, part = metadata["name"].partition("-")
        status = {"observedGeneration": metadata["generation"], "replicas": replicas, "updatedReplicas": replicas}
        if part == CRASHING and run in self._failing:
            self._crash(found)
            return status
        return {**status, "readyReplicas": replicas, "availableReplicas": replicas}

    def _crash(self, deployment: Object) -> None:
        """The pod of a Deployment, whose container ends again and again."""
        metadata, template = deployment["metadata"], deployment["spec"]["template"]
        if metadata["name"] in self._crashed:
            return
        owner = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": f"{metadata['name']}-1",
            "uid": metadata["uid"],
            "controller": True,
        }
        labels, name = template["metadata"]["labels"], f"{metadata['name']}-1-1"
        where = {"name": name, "namespace": metadata["namespace"], "labels": labels, "ownerReferences": [owner]}
        made: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": where,
            "spec": {**template["spec"], "nodeName": "hollow"},
        }
        self._crashed[metadata["name"]] = self._kube.create(made)

    def _restart(self) -> None:
        restarts = 0
        while not self._stopped.wait(1.0):
            restarts += 1
            for pod in list(self._crashed.values()):
                if self._stopped.wait(RESTART_SECONDS / max(1, len(self._crashed))):
                    return
                status = waiting("CrashLoopBackOff", f"back-off {restarts} s restarting failed container", restarts)(
                    pod
                )
                metadata = pod["metadata"]
                try:
                    self._kube.merge("Pod", metadata["name"], metadata["namespace"], {"status": status}, sub="status")
                except (httpx.HTTPError, RuntimeError):
                    self._stopped.wait(0.2)


def _job(job: Object) -> Object:
    """Prepare has succeeded; all others work."""
    if not job["metadata"]["name"].endswith("-prepare"):
        count = job["spec"].get("parallelism", 1)
        return {"active": count, "ready": count, "startTime": SINCE}
    ended = {"status": "True", "lastTransitionTime": SINCE, "lastProbeTime": SINCE}
    conditions = [{"type": kind, **ended} for kind in ("SuccessCriteriaMet", "Complete")]
    return {"startTime": SINCE, "completionTime": SINCE, "succeeded": 1, "conditions": conditions}


def failing_runs(runs: int, namespace_of: dict[str, str]) -> dict[str, str]:
    """Namespaces of the runs with a part that crashes, by name."""
    names = (run_name(number) for number in range(runs) if number % 10 == FAILING)
    return {name: namespace_of[name] for name in names}
