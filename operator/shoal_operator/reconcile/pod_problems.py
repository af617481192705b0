"""What keeps pods from being ready, in words: no node, no image, crashes, evictions, lost nodes, and what Events say of volumes and probes.

Used for the message of a component's condition, so that `kubectl describe` of our own kinds says why not. The words are stable: a kubelet that goes
to and fro between `ErrImagePull` and `ImagePullBackOff` must not cause a status write each time. All but `pods_problem` is pure; that may cost one
request for Events in 20 s for each part whose pods stand without a cause in their status.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.reconcile.decisions import parse_time
from shoal_operator.reconcile.last_words import without_secrets

IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
CONFIG_REASONS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
CRASHES = 2
"""Restarts after which a container that is not ready counts as crashing: the first may be due to a peer that was not up."""
MAX_TEXT = 300
PULL_AGAIN = re.compile(
    r'^Back-off pulling image "[^"]*"(?:: (?:[A-Za-z]*(?:ImagePull|ImageNeverPull|Unavailable)[A-Za-z]*: )?)?'
)
"""How a kubelet begins what it said before, between two tries to pull."""
LATE = timedelta(seconds=20)
"""After which a pod that waits for a scheduler, for its kubelet or for its end has a problem: each takes a second or two as a rule."""
ERROR_AT_END = re.compile(r'"error": ("(?:[^"\\]|\\.)*")\}$')
"""How a line with a traceback ends (`shoal.telemetry.logs`)."""


@dataclass(frozen=True, order=True)
class PodProblem:
    """One pod's problem; the order is the order of reporting."""

    rank: int
    pod: str
    reason: str
    text: str

    def __str__(self) -> str:
        return f"pod {self.pod}: {self.text}"


def pods_problem(cluster: Cluster, pods: Sequence[Object]) -> tuple[str, str] | None:
    """Reason and message of the worst problem of some pods that should be ready. Where none has one in its status, the newest Warning about the
    first that stands says it: only Events tell of volumes, networks and probes."""
    now = cluster.now()
    found = worst_problem(pods, now)
    stands = next((pod for pod in pods if found is None and _stands(pod, now)), None)
    if stands is None:
        return found
    reason, note = cluster.warning_about(stands)
    if not reason:
        return None
    return reason, f"pod {stands['metadata']['name']}: {reason}: {_short(note)}"


def worst_problem(pods: Iterable[Object], now: datetime) -> tuple[str, str] | None:
    """Reason and message of the worst problem of some pods, and how many pods have one; None when nothing is wrong."""
    found = sorted(problem for pod in pods if (problem := pod_problem(pod, now)) is not None)
    if not found:
        return None
    more = f" (and {len(found) - 1} more pods with problems)" if len(found) > 1 else ""
    return found[0].reason, f"{found[0]}{more}"


def pod_problem(pod: Object, now: datetime) -> PodProblem | None:
    """What is wrong with a pod, or None. Pods that are being deleted have no problem while they may still end."""
    metadata, status = pod["metadata"], pod.get("status", {})
    name = metadata["name"]
    if metadata.get("deletionTimestamp"):
        return _stays(pod, now)
    if status.get("phase") == "Succeeded":
        return None
    conditions = {each.get("type"): each for each in status.get("conditions", [])}
    placed = conditions.get("PodScheduled", {})
    if placed.get("status") == "False":
        reason = placed.get("reason") or "Unschedulable"
        return PodProblem(0, name, reason, f"{reason}: {_short(placed.get('message', ''))}")
    if not placed and not pod.get("spec", {}).get("nodeName") and _is_late(metadata.get("creationTimestamp"), now):
        scheduler = pod.get("spec", {}).get("schedulerName", "default-scheduler")
        text = f"no scheduler has looked at it since {metadata['creationTimestamp']} (schedulerName {scheduler})"
        return PodProblem(0, name, "NotScheduled", text)
    for state in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if (found := _container_problem(name, state)) is not None:
            return found
    if status.get("phase") == "Failed":
        reason = status.get("reason") or "PodFailed"
        containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
        said = _short(status.get("message", "")) or _failed_container(containers)
        return PodProblem(3, name, reason, f"{reason}: {said}".removesuffix(": "))
    return _lost(pod, conditions)


def _stays(pod: Object, now: datetime) -> PodProblem | None:
    """A pod that is still there although its time to end is over."""
    metadata = pod["metadata"]
    if not _is_late(metadata["deletionTimestamp"], now):
        return None
    held = ", ".join(metadata.get("finalizers", ()))
    node = pod.get("spec", {}).get("nodeName", "")
    why = (
        f"finalizer {held} holds it"
        if held
        else f"node {node} does not end it: bring the node back, or delete the Node"
    )
    return PodProblem(2, metadata["name"], "PodCannotGo", f"was to be gone at {metadata['deletionTimestamp']}; {why}")


def _lost(pod: Object, conditions: dict[str, Object]) -> PodProblem | None:
    """A pod whose containers were ready when its kubelet spoke last, and which the controller of nodes calls not ready."""
    ready, spec = conditions.get("Ready", {}), pod.get("spec", {})
    containers = conditions.get("ContainersReady", {})
    if (ready.get("status"), containers.get("status")) != ("False", "True") or spec.get("readinessGates"):
        return None
    since = f" since {ready['lastTransitionTime']}" if ready.get("lastTransitionTime") else ""
    text = f"node {spec.get('nodeName', '')} does not answer{since}: bring it back, or delete the Node so that the pod is made elsewhere"
    return PodProblem(1, pod["metadata"]["name"], "NodeLost", text)


def _stands(pod: Object, now: datetime) -> bool:
    """Whether a pod should have been ready for a while."""
    metadata, status = pod["metadata"], pod.get("status", {})
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in status.get("conditions", []))
    ended = metadata.get("deletionTimestamp") or status.get("phase") in ("Succeeded", "Failed")
    return not ready and not ended and _is_late(metadata.get("creationTimestamp"), now)


def _is_late(since: str | None, now: datetime) -> bool:
    began = parse_time(since)
    return began is not None and now >= began + LATE


def _container_problem(pod: str, state: Object) -> PodProblem | None:
    name = state.get("name", "")
    waiting = state.get("state", {}).get("waiting", {})
    reason = waiting.get("reason", "")
    if reason in IMAGE_REASONS:
        said = _short(PULL_AGAIN.sub("", waiting.get("message", "")))
        text = f"container {name}: image {state.get('image', '')} cannot be pulled: {said}"
        return PodProblem(1, pod, "ImagePull", text.removesuffix(": "))
    if reason in CONFIG_REASONS:
        return PodProblem(1, pod, reason, f"container {name}: {reason}: {_short(waiting.get('message', ''))}")
    restarts = state.get("restartCount", 0)
    if reason == "CrashLoopBackOff" or (restarts >= CRASHES and not state.get("ready")):
        ended = state.get("lastState", {}).get("terminated") or state.get("state", {}).get("terminated") or {}
        why = _ended(ended)
        return PodProblem(2, pod, "CrashLoop", f"container {name}: ended {restarts} times{why}")
    return None


def _failed_container(states: Iterable[Object]) -> str:
    """The last words of the container that made its pod fail, where none is started again."""
    for state in states:
        ended = state.get("state", {}).get("terminated") or {}
        if ended.get("exitCode"):
            return f"container {state.get('name', '')}: ended{_ended(ended)}"
    return ""


def _ended(terminated: Object) -> str:
    if not terminated:
        return ""
    reason, message = terminated.get("reason", ""), _short(_last_words(terminated.get("message", "")))
    code = f"exit code {terminated.get('exitCode')}" if "exitCode" in terminated else ""
    said = ", ".join(part for part in (reason if reason not in ("", "Error") else "", code) if part)
    return f", last: {said}{f': {message}' if message else ''}"


def _last_words(text: str) -> str:
    """The
    message at the end of a log. A structured line, possibly truncated at its start, is reduced to its `error` or event: its time differs after each
    crash."""
    last = text.strip().rsplit("\n", 1)[-1]
    try:
        if found := ERROR_AT_END.search(last):
            return str(json.loads(found[1]))
        line = json.loads(last)
    except (ValueError, RecursionError):
        return text
    return str(line["event"]) if isinstance(line, dict) and "event" in line else text


def _short(text: str) -> str:
    """The end of a text in one line: a log ends with what went wrong."""
    line = " ".join(without_secrets(text).split())
    return line if len(line) <= MAX_TEXT else "..." + line[-MAX_TEXT:]
