"""A pod of this machine as Kubernetes would show it, as far as reconcile reads it: labels, phase, and what each container waits for. Pure."""

from collections.abc import Mapping
from typing import Any

from shoal_operator.local.containers import ContainerView
from shoal_operator.local.pods import PodView

Object = dict[str, Any]


def pod_object(view: PodView, labels: Mapping[str, str]) -> Object:
    """The pod with its status. One that waits for a volume is Pending, and says for which in a condition."""
    phase = {"Stopping": "Running"}.get(view.phase, view.phase)
    status: Object = {"phase": phase, "containerStatuses": [_container(each) for each in view.containers]}
    if view.phase == "Pending":
        status["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "VolumesMissing", "message": view.message}
        ]
    metadata: Object = {"name": view.name, "labels": dict(labels)}
    if view.phase == "Stopping":
        metadata["deletionTimestamp"] = "now"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}


def _container(view: ContainerView) -> Object:
    status: Object = {"name": view.name, "ready": view.ready, "restartCount": view.restarts, "state": {}}
    if view.state == "Running":
        status["state"] = {"running": {}}
    elif view.state == "Waiting" and view.restarts:
        status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    elif view.state == "Exited":
        status["state"] = {"terminated": {"exitCode": view.last_exit}}
    if view.last_exit is not None:
        status["lastState"] = {"terminated": {"exitCode": view.last_exit}}
    return status
