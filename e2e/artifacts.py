"""What is kept of a failed test (logs, descriptions, events, our own objects) in one folder; and the first thing that went wrong, in a line.

Secrets are never read. `first_error` and `pod_errors` are pure; `collect` asks kubectl, and goes on when one question fails.
"""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Object = dict[str, Any]
Kubectl = Callable[..., str]

DESCRIBED = "pods,services,statefulsets,deployments,jobs,networkpolicies,persistentvolumeclaims,poddisruptionbudgets"
OWN = "trainingruns,inferencepools,relayservers,validators"
COMPLAINT = re.compile(r"\b(error|fatal|critical|panic|traceback|exception)\b", re.IGNORECASE)
LINE_CHARACTERS = 400


def first_error(events: list[Object], pods: list[Object], logs: dict[str, str]) -> str:
    """The earliest sign of trouble, in this order: a container that ended badly or cannot start, a warning, a line of a log that complains.

    `logs` are texts by `pod/container`. Empty when nothing looks wrong.
    """
    wrong = [text for pod in pods for text in pod_errors(pod)]
    warnings = sorted((each for each in events if each.get("type") == "Warning"), key=_when)
    if wrong:
        return wrong[0]
    if warnings:
        about = warnings[0].get("involvedObject") or warnings[0].get("regarding") or {}
        text = warnings[0].get("message") or warnings[0].get("note") or ""
        return f"{about.get('kind')} {about.get('name')}: {warnings[0].get('reason')}: {text}"[:LINE_CHARACTERS]
    for name, text in sorted(logs.items()):
        for line in text.splitlines():
            if COMPLAINT.search(line):
                return f"{name}: {line.strip()}"[:LINE_CHARACTERS]
    return ""


def pod_errors(pod: Object) -> list[str]:
    """What is wrong with the containers of a pod, those that ended first."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    ended, waiting = [], []
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        for state in (container.get("lastState") or {}, container.get("state") or {}):
            over = state.get("terminated")
            if over and over.get("exitCode"):
                said = f": {over['message'].strip()}" if over.get("message") else ""
                text = f"pod {name}, container {container['name']} ended with {over['exitCode']} ({over.get('reason')}){said}"
                ended.append(text[:LINE_CHARACTERS])
            held = state.get("waiting")
            if held and held.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                text = f"pod {name}, container {container['name']} waits: {held['reason']}: {held.get('message', '')}"
                waiting.append(text[:LINE_CHARACTERS])
    unscheduled = [
        f"pod {name} is not scheduled: {each.get('message')}"
        for each in status.get("conditions") or []
        if each["type"] == "PodScheduled" and each["status"] == "False"
    ]
    return ended + waiting + unscheduled


def collect(kubectl: Kubectl, namespaces: list[str], folder: Path) -> str:
    """Write everything about these namespaces below `folder`. Returns the first error, or an empty text."""
    folder.mkdir(parents=True, exist_ok=True)
    first = ""
    for namespace in namespaces:
        place = folder / namespace
        place.mkdir(exist_ok=True)

        def ask(name: str, *arguments: str, place: Path = place, namespace: str = namespace) -> str:
            try:
                said = kubectl("--namespace", namespace, *arguments)
            except (subprocess.SubprocessError, RuntimeError, AssertionError) as error:
                said = ""
                (place / f"{name}.failed").write_text(str(error))
            if said:
                (place / name).write_text(said)
            return said

        ask("describe.txt", "describe", DESCRIBED)
        ask("events.txt", "get", "events", "--sort-by=.metadata.creationTimestamp", "-o", "wide")
        ask("runs.yaml", "get", OWN, "-o", "yaml")
        events = json.loads(ask("events.json", "get", "events", "-o", "json") or '{"items": []}')["items"]
        pods = json.loads(ask("pods.json", "get", "pods", "-o", "json") or '{"items": []}')["items"]
        logs = {}
        for pod in pods:
            name = pod["metadata"]["name"]
            containers = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
            for container in (each["name"] for each in containers):
                logs[f"{name}/{container}"] = ask(f"{name}.{container}.log", "logs", name, "-c", container)
                if _restarts(pod, container):
                    ask(f"{name}.{container}.previous.log", "logs", name, "-c", container, "--previous")
        first = first or first_error(events, pods, logs)
    return first


def _restarts(pod: Object, container: str) -> int:
    status = pod.get("status") or {}
    # Sidecars are init containers that stay.
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return sum(each.get("restartCount", 0) for each in statuses if each["name"] == container)


def _when(event: Object) -> str:
    return str(event.get("firstTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])
