"""A node without a kubelet: takes every pod of a namespace, and gives it the status that the test asks for.

A thread watches pods. Each pod gets the first of the test's plays whose name pattern fits (the newest play first), or is Ready. Pods that are being
deleted go at once, as their containers would end. What comes of it (ready counts, finished Jobs) is the work of the real controllers.
"""

import fnmatch
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
from kube_client import Kube, Object, Refused

NODE = "hollow"
Play = Callable[[Object], Object | None]
"""From a pod to its status; None leaves it unscheduled and without one."""

_SINCE = "2026-01-01T00:00:00Z"


def _containers(pod: Object, key: str, state: Object, *, ready: bool, restarts: int = 0) -> list[Object]:
    return [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "",
            "ready": ready,
            "started": ready,
            "restartCount": restarts,
            "state": state,
        }
        for each in pod["spec"].get(key, [])
    ]


def _status(pod: Object, phase: str, state: Object, *, ready: bool, restarts: int = 0, **more: Any) -> Object:
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Initialized", "status": "True"},
        {"type": "ContainersReady", "status": str(ready)},
        {"type": "Ready", "status": str(ready)},
    ]
    status: Object = {
        "phase": phase,
        "podIP": "10.0.0.1",
        "startTime": _SINCE,
        "conditions": conditions,
        "containerStatuses": _containers(pod, "containers", state, ready=ready, restarts=restarts),
    }
    if "initContainers" in pod["spec"]:
        status["initContainerStatuses"] = _containers(pod, "initContainers", {"running": {}}, ready=ready)
    return status | more


def ready(pod: Object) -> Object:
    """Running, all probes pass."""
    return _status(pod, "Running", {"running": {"startedAt": _SINCE}}, ready=True)


def not_ready(pod: Object) -> Object:
    """Running, but the readiness probe fails."""
    return _status(pod, "Running", {"running": {"startedAt": _SINCE}}, ready=False)


def succeeded(pod: Object) -> Object:
    """All containers ended with 0."""
    return _ended(pod, "Succeeded", 0, "")


def failed(message: str = "it broke", exit_code: int = 1, reason: str = "Error") -> Play:
    """All containers ended with `exit_code`."""
    return lambda pod: _ended(pod, "Failed", exit_code, message, reason)


def _ended(pod: Object, phase: str, exit_code: int, message: str, reason: str = "Completed") -> Object:
    state = {
        "terminated": {
            "exitCode": exit_code,
            "reason": reason,
            "message": message,
            "startedAt": _SINCE,
            "finishedAt": "2026-01-01T00:01:00Z",
        }
    }
    return _status(pod, phase, state, ready=False)


def waiting(reason: str, message: str, restarts: int = 0) -> Play:
    """Containers cannot start: `ImagePullBackOff`, `CrashLoopBackOff`, `CreateContainerConfigError` ..."""
    state = {"waiting": {"reason": reason, "message": message}}
    return lambda pod: _status(pod, "Pending", state, ready=False, restarts=restarts)


def crashed(reason: str, message: str = "", exit_code: int = 1, restarts: int = 4) -> Play:
    """The container ends at each start; its last end is in the status."""
    ended = {"reason": reason, "exitCode": exit_code, "message": message, "startedAt": _SINCE, "finishedAt": _SINCE}
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}

    def play(pod: Object) -> Object:
        status = _status(pod, "Running", state, ready=False, restarts=restarts)
        for each in status["containerStatuses"]:
            each["lastState"] = {"terminated": ended}
        return status

    return play


def evicted(reason: str, message: str) -> Play:
    """The kubelet ends or refuses the first pod as a whole; containers of those in its place do not come to start."""
    first: list[str] = []
    later = waiting("ContainerCreating", "")

    def play(pod: Object) -> Object | None:
        uid = pod["metadata"]["uid"]
        first[:] = first or [uid]
        ended: Object = {"phase": "Failed", "reason": reason, "message": message, "conditions": []}
        return ended if first == [uid] else later(pod)

    return play


def lost(pod: Object) -> Object:
    """Its node does not answer: the controller of nodes says that the pod is not ready, and all else stays as the kubelet said it last."""
    status = ready(pod)
    for each in status["conditions"]:
        if each["type"] == "Ready":
            each |= {"status": "False", "lastTransitionTime": "2026-01-01T00:02:00Z"}
    return status


def unschedulable(message: str, reason: str = "Unschedulable") -> Play:
    """No node fits; what the scheduler says of it."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return lambda pod: {"phase": "Pending", "conditions": [condition]}


def pending(pod: Object) -> None:
    """The scheduler has not come to it yet."""
    return None


@dataclass(frozen=True)
class _Scene:
    namespace: str
    pattern: str
    play: Play


class HollowNode:
    """`start`, then `play(namespace, pattern, play)` as often as the story goes on, `close` at the end."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self._scenes: list[_Scene] = []
        self._lock = threading.Lock()
        self._given: dict[str, Object] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hollow node", daemon=True)

    def start(self) -> None:
        """Register the node and take pods."""
        self.kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self._thread.start()

    def close(self) -> None:
        """Take no more pods. The thread ends with its watch; it is a daemon."""
        self._stop.set()

    def play(self, namespace: str, pattern: str, play: Play) -> None:
        """From now on pods whose names fit the pattern (`sums-trainer-*`) get this status; those that are there, too."""
        with self._lock:
            self._scenes.insert(0, _Scene(namespace, pattern, play))
        for pod in self.kube.list("Pod", namespace):
            self._treat(pod)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                listed = self.kube.call("GET", "/api/v1/pods")
                for pod in listed["items"]:
                    self._treat(pod)
                for event in self.kube.watch("Pod", listed["metadata"]["resourceVersion"], seconds=30):
                    if self._stop.is_set():
                        return
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._treat(event["object"])
                    elif event["type"] == "ERROR":
                        break
            except (httpx.HTTPError, Refused, ValueError, RuntimeError):
                self._stop.wait(0.2)  # the API server is away: it will be back, or the test is over

    def _treat(self, pod: Object) -> None:
        metadata = pod["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        try:
            if metadata.get("deletionTimestamp"):
                self._given.pop(uid, None)
                if pod["spec"].get("nodeName"):
                    self.kube.delete("Pod", name, namespace, now=True)
                return
            with self._lock:
                scene = next(
                    (s for s in self._scenes if s.namespace == namespace and fnmatch.fnmatch(name, s.pattern)), None
                )
            if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                return
            status = (scene.play if scene else ready)(pod)
            if status is None or self._given.get(uid) == status:
                return
            placed = any(each["type"] == "PodScheduled" and each["status"] == "False" for each in status["conditions"])
            if not placed and not pod["spec"].get("nodeName"):
                self._bind(namespace, name)
            self.kube.merge("Pod", name, namespace, {"status": status}, sub="status", manager="hollow")
            self._given[uid] = status
        except Refused as refused:
            if refused.status not in (404, 409):
                raise

    def _bind(self, namespace: str, name: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.kube.call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)
