"""The controllers that one machine needs: StatefulSet, Deployment and Job, each turning an object into pods and pods into its status.

`wanted_pods` is pure. A changed template replaces a pod once the old one is gone (no surge: an address belongs to one pod). A Job's pod is not
started again once the Job is complete, nor after `shoal up` was started again: that is in its status.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal_operator.children.names import COMPONENT_LABEL
from shoal_operator.local.pods import Pod

WORKLOADS = ("StatefulSet", "Deployment", "Job")


@dataclass(frozen=True)
class WantedPod:
    """A pod that should run. `address_key` stays the same over attempts and restarts.

    `final_exits`: of a Job whose controller makes a new pod for one that failed; here the same pod starts its containers again, but not after
    these exit codes. None for others.
    """

    name: str
    owner: str
    component: str
    address_key: str
    template: Mapping[str, Any]
    template_hash: str
    claims: Mapping[str, str]
    final_exits: frozenset[int] | None = None


def template_hash(template: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]


def wanted_pods(workload: Mapping[str, Any]) -> list[WantedPod]:
    """The pods that a StatefulSet, Deployment or Job asks for now."""
    kind, name, spec = workload["kind"], workload["metadata"]["name"], workload["spec"]
    template = spec["template"]
    component = template.get("metadata", {}).get("labels", {}).get(COMPONENT_LABEL, name)
    if kind == "Job":
        if spec.get("suspend") or job_over(workload):
            return []
        replicas = 1
    else:
        replicas = int(spec.get("replicas", 1))
    claim_templates = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])]
    made = []
    for ordinal in range(replicas):
        pod = f"{name}-{ordinal}"
        made.append(
            WantedPod(
                name=pod,
                owner=f"{kind}/{name}",
                component=component,
                address_key=address_key(kind, name, component, ordinal),
                template=template,
                template_hash=template_hash(template),
                claims={claim: f"{claim}-{pod}" for claim in claim_templates},
                final_exits=_final_exits(spec) if kind == "Job" else None,
            )
        )
    return made


def _final_exits(spec: Mapping[str, Any]) -> frozenset[int] | None:
    """Of a Job; None where its pod is tried once, or its own restart policy says what to do."""
    if spec["template"]["spec"].get("restartPolicy") != "Never" or not spec.get("backoffLimit"):
        return None
    rules = spec.get("podFailurePolicy", {}).get("rules", [])
    return frozenset(code for rule in rules if rule["action"] == "FailJob" for code in rule["onExitCodes"]["values"])


def address_key(kind: str, name: str, component: str, ordinal: int) -> str:
    """Attempts of a Job share an address, so that the others need not learn about a new attempt."""
    return f"{component if kind == 'Job' else name}/{ordinal}"


def job_over(job: Mapping[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def workload_status(workload: Mapping[str, Any], pods: Sequence[Pod]) -> dict[str, Any]:
    """The status that the workload's own controller would write, from its pods."""
    if workload["kind"] == "Job":
        return _job_status(workload, pods)
    generation = workload["metadata"]["generation"]
    current = [pod for pod in pods if pod.phase != "Stopping"]
    ready = sum(pod.ready for pod in current)
    hashed = template_hash(workload["spec"]["template"])
    updated = sum(pod.template_hash == hashed for pod in current)
    return {
        "observedGeneration": generation,
        "replicas": len(pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "updatedReplicas": updated,
    }


def _job_status(job: Mapping[str, Any], pods: Sequence[Pod]) -> dict[str, Any]:
    if job_over(job):
        return dict(job["status"])
    for pod in pods:
        if pod.phase == "Succeeded":
            return {
                "succeeded": 1,
                "ready": 0,
                "conditions": [{"type": "Complete", "status": "True", "reason": "Completed"}],
            }
        limit = int(job["spec"].get("backoffLimit", 6))
        if pod.phase == "Failed" or pod.restarts > limit:
            times = max(pod.restarts + (pod.phase == "Failed"), 1)
            message = f"pod {pod.name} failed {times} times, backoffLimit is {limit}: {pod.view().message}"
            return {
                "failed": max(pod.restarts, 1),
                "ready": 0,
                "conditions": [
                    {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": message}
                ],
            }
    return {
        "active": sum(pod.phase in ("Running", "Pending") for pod in pods),
        "ready": sum(pod.ready for pod in pods),
        "failed": sum(pod.restarts for pod in pods),
    }
