"""What keeps pods from being ready, in words, from their status: no node, no image, crashes, evictions. Pure.

Used for the message of a component's condition, so that `kubectl describe` of our own kinds says why not. The words are stable: a kubelet that goes
to and fro between `ErrImagePull` and `ImagePullBackOff` must not cause a status write each time.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from shoal_operator.engine.cluster import Object
from shoal_operator.reconcile.last_words import without_secrets

IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
CONFIG_REASONS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
CRASHES = 2
"""Restarts after which a container that is not ready counts as crashing: the first may be due to a peer that was not up."""
MAX_TEXT = 300
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


def worst_problem(pods: Iterable[Object]) -> tuple[str, str] | None:
    """Reason and message of the worst problem of some pods, and how many pods have one; None when nothing is wrong."""
    found = sorted(problem for pod in pods if (problem := pod_problem(pod)) is not None)
    if not found:
        return None
    more = f" (and {len(found) - 1} more pods with problems)" if len(found) > 1 else ""
    return found[0].reason, f"{found[0]}{more}"


def pod_problem(pod: Object) -> PodProblem | None:
    """What is wrong with a pod, or None. Pods that are being deleted have no problem."""
    metadata, status = pod["metadata"], pod.get("status", {})
    name = metadata["name"]
    if metadata.get("deletionTimestamp") or status.get("phase") == "Succeeded":
        return None
    for condition in status.get("conditions", []):
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            reason = condition.get("reason") or "Unschedulable"
            return PodProblem(0, name, reason, f"{reason}: {_short(condition.get('message', ''))}")
    for state in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if (found := _container_problem(name, state)) is not None:
            return found
    if status.get("phase") == "Failed":
        reason = status.get("reason") or "PodFailed"
        said = _short(status.get("message", "")) or _failed_container(status.get("containerStatuses", []))
        return PodProblem(3, name, reason, f"{reason}: {said}".removesuffix(": "))
    return None


def _container_problem(pod: str, state: Object) -> PodProblem | None:
    name = state.get("name", "")
    waiting = state.get("state", {}).get("waiting", {})
    reason = waiting.get("reason", "")
    if reason in IMAGE_REASONS:
        return PodProblem(1, pod, "ImagePull", f"container {name}: image {state.get('image', '')} cannot be pulled")
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
