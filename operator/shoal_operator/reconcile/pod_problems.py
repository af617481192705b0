"""What keeps pods from being ready, in words: no node, no image, crashes, evictions, lost nodes, and what Events say of volumes and probes.

Used for the message of a component's condition, so that `kubectl describe` of our own kinds says why not. The words are stable: a kubelet that goes
to and fro between `ErrImagePull` and `ImagePullBackOff` must not cause a status write each time. All but `pods_problem` is pure; that may ask about
six objects' Events for each part whose pods stand without a cause in their status: its workload, and five pods.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal_operator.children.names import TEMPLATE_LABEL
from shoal_operator.children.pods import STARTUP_SECONDS
from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.reconcile.decisions import parse_time
from shoal_operator.reconcile.last_words import without_secrets
from shoal_operator.reconcile.refused_pods import refused_pods

IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
CONFIG_REASONS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
CRASHES = 2
"""Restarts after which a container that is not ready counts as crashing: the first may be due to a peer that was not up."""
GROUP_CRASHES = 1
"""The same in a group of a LeaderWorkerSet: at the first restart all of its pods are made again, and none is seen to restart twice."""
CRASHED = re.compile(r"; (pod \S+: container \S+: ended .*?)(?:; of \d+ replicas the run's queue admits \d+)?$")
"""What a condition says of a container that ended."""
MAX_TEXT = 300
PULL_AGAIN = re.compile(
    r'^Back-off pulling image "[^"]*"(?:: (?:[A-Za-z]*(?:ImagePull|ImageNeverPull|Unavailable)[A-Za-z]*: )?)?'
)
"""How a kubelet begins what it said before, between two tries to pull. One older than 1.31 says no more than that."""
WITHOUT_CAUSE = re.compile(r"(image \S+ cannot be pulled)( \(and \d+ more pods with problems\))?$")
FORMER_CAUSE = r"(: .*?)(?: \(and \d+ more pods with problems\))?(?:; of \d+ replicas the run's queue admits \d+)?$"
"""What follows that an image cannot be pulled in a condition, with all that may be said behind it."""
SOURCE_PORT = re.compile(r":\d{1,5}(?=->)")
"""Of a connection that failed: another one at each try."""
LATE = timedelta(seconds=20)
"""After which a pod that waits for a scheduler, for its kubelet or for its end has a problem: each takes a second or two as a rule."""
CLAIMS = re.compile(r"cannot allocate all claims|device class \S+ does not exist|resource ?claim", re.IGNORECASE)
"""How kube-scheduler's plugin DynamicResources says that a pod waits for its ResourceClaims."""
ERROR_AT_END = re.compile(r'"error": ("(?:[^"\\]|\\.)*")\}$')
"""How a line with a traceback ends (`shoal.telemetry.logs`)."""
MOST_ASKED = 5
"""Pods of a part about which Events are read. Those without a container that runs come first: of these only Events tell."""


@dataclass(frozen=True, order=True)
class PodProblem:
    """One pod's problem; the order is the order of reporting."""

    rank: int
    pod: str
    reason: str
    text: str

    def __str__(self) -> str:
        return f"pod {self.pod}: {self.text}"


def pods_problem(
    cluster: Cluster, pods: Sequence[Object], workload: Object | None, former: str = ""
) -> tuple[str, str] | None:
    """Reason and message of the worst problem of some pods that should be ready. Where none has one in its status, the workload says which pods were
    refused, or Warnings about pods that stand say the cause: only Events tell of volumes, networks and probes.

    Args:
        workload: what makes the pods.
        former: message of the condition that says it, as it is now.
    """
    now = cluster.now()
    found = worst_problem(pods, now)
    if found is not None:
        return found[0], with_former_cause(found[1], former)
    said = refused_pods(cluster, workload) or _told_by_events(cluster, pods, now)
    if said is None and workload is not None and workload["kind"] == "LeaderWorkerSet":
        ended = CRASHED.search(former)  # the pod is gone with its group, and so are its words
        return ("CrashLoop", ended[1]) if ended is not None else None
    return said


def with_former_cause(message: str, former: str) -> str:
    """The message with the cause that the former one gives for the same image, where a kubelet between two tries to pull gives none."""
    bare = WITHOUT_CAUSE.search(message)
    said = None if bare is None else re.search(re.escape(bare[1]) + FORMER_CAUSE, former)
    return message if bare is None or said is None else f"{message[: bare.end(1)]}{said[1]}{bare[2] or ''}"


def _told_by_events(cluster: Cluster, pods: Sequence[Object], now: datetime) -> tuple[str, str] | None:
    """What the newest Warning about a pod says, if the pod has not got further since."""
    stand = [pod for pod in pods if _stands(pod, now) and not _loads(pod, now)]
    for pod in sorted(stand, key=_runs)[:MOST_ASKED]:
        reason, note = cluster.warning_about(pod, since=_changed(pod))
        if not reason or (reason == "FailedScheduling" and pod.get("spec", {}).get("nodeName")):
            continue
        return reason, f"pod {pod['metadata']['name']}: {reason}: {_short(note)}"
    return None


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
    grouped = TEMPLATE_LABEL in metadata.get("labels", {})
    states = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    if metadata.get("deletionTimestamp"):
        crashed = [_crash(name, each, GROUP_CRASHES) for each in states if grouped and each.get("lastState")]
        return next((each for each in crashed if each is not None), None) or _stays(pod, now)
    if status.get("phase") == "Succeeded":
        return None
    conditions = {each.get("type"): each for each in status.get("conditions", [])}
    placed = conditions.get("PodScheduled", {})
    if placed.get("status") == "False":
        reason = placed.get("reason") or "Unschedulable"
        return PodProblem(0, name, reason, f"{reason}: {_short(placed.get('message', ''))}{_remedy(placed)}")
    if not placed and not pod.get("spec", {}).get("nodeName") and _is_late(metadata.get("creationTimestamp"), now):
        scheduler = pod.get("spec", {}).get("schedulerName", "default-scheduler")
        text = (
            f"no scheduler has looked at it since {metadata['creationTimestamp']} (schedulerName {scheduler}): start that scheduler, or name"
            " another in podTemplate.schedulerName"
        )
        return PodProblem(0, name, "NotScheduled", text)
    for state in states:
        if (found := _container_problem(name, state, GROUP_CRASHES if grouped else CRASHES)) is not None:
            return found
    if status.get("phase") == "Failed":
        reason = status.get("reason") or "PodFailed"
        said = _short(status.get("message", "")) or _failed_container(states)
        return PodProblem(3, name, reason, f"{reason}: {said}".removesuffix(": "))
    return _lost(pod, conditions)


def _remedy(placed: Object) -> str:
    """What to do about claims of devices that no node can give. A node without a driver looks like one whose devices are taken."""
    if not CLAIMS.search(placed.get("message", "")):
        return ""
    return (
        "; see that the driver of the claims' DeviceClass runs on nodes with free devices (kubectl get deviceclasses,resourceslices); or take the"
        " claims out of gpu.claimTemplate or podTemplate.resourceClaims"
    )


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


def _loads(pod: Object, now: datetime) -> bool:
    """Whether all containers run and one of them started so lately that it may still load a model. Probes that fail are then no cause,
    and their words change: refused, timeout, 503."""
    states = pod.get("status", {}).get("containerStatuses", [])
    if not states or not all(each.get("state", {}).get("running") for each in states):
        return False
    lately = now - timedelta(seconds=STARTUP_SECONDS)
    began = [parse_time(each["state"]["running"].get("startedAt")) for each in states]
    return any(at is not None and at > lately for at in began)


def _runs(pod: Object) -> bool:
    return any("running" in each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses", []))


def _changed(pod: Object) -> datetime | None:
    """When a pod last got further or back: the newest change of a condition, or the newest start of a container."""
    status = pod.get("status", {})
    told = [each.get("lastTransitionTime") for each in status.get("conditions", [])]
    told += [each.get("state", {}).get("running", {}).get("startedAt") for each in status.get("containerStatuses", [])]
    return max((at for each in told if (at := parse_time(each)) is not None), default=None)


def _is_late(since: str | None, now: datetime) -> bool:
    began = parse_time(since)
    return began is not None and now >= began + LATE


def _container_problem(pod: str, state: Object, crashes: int) -> PodProblem | None:
    name = state.get("name", "")
    waiting = state.get("state", {}).get("waiting", {})
    reason = waiting.get("reason", "")
    if reason in IMAGE_REASONS:
        said = _short(PULL_AGAIN.sub("", waiting.get("message", "")))
        text = f"container {name}: image {state.get('image', '')} cannot be pulled: {said}"
        return PodProblem(1, pod, "ImagePull", text.removesuffix(": "))
    if reason in CONFIG_REASONS:
        return PodProblem(1, pod, reason, f"container {name}: {reason}: {_short(waiting.get('message', ''))}")
    return _crash(pod, state, crashes)


def _crash(pod: str, state: Object, crashes: int) -> PodProblem | None:
    restarts, reason = state.get("restartCount", 0), state.get("state", {}).get("waiting", {}).get("reason", "")
    ended = state.get("lastState", {}).get("terminated") or state.get("state", {}).get("terminated") or {}
    often = restarts >= crashes or (crashes == GROUP_CRASHES and ended.get("exitCode"))
    if reason != "CrashLoopBackOff" and (not often or state.get("ready")):
        return None
    times = f"{restarts} times" if restarts != 1 else "once"
    return PodProblem(2, pod, "CrashLoop", f"container {state.get('name', '')}: ended {times}{_ended(ended)}")


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
    line = SOURCE_PORT.sub("", " ".join(without_secrets(text).split()))
    return line if len(line) <= MAX_TEXT else "..." + line[-MAX_TEXT:]
