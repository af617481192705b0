"""The kinds around pods, as dicts: workloads, Services, claims, disruption budgets. Every builder uses these. Pure."""

import hashlib
from collections.abc import Mapping
from typing import Any

from shoal_operator.api.volumes import ClaimRetention
from shoal_operator.children import names
from shoal_operator.children.claims import VolumeClaim
from shoal_operator.engine.cluster import CHILD_KINDS, Object


def child(kind: str, name: str, run: str, component: str, content: Mapping[str, Any]) -> Object:
    """An object of one of the child kinds, labelled."""
    metadata = {"name": name, "labels": names.labels(run, component)}
    return {"apiVersion": CHILD_KINDS[kind], "kind": kind, "metadata": metadata, **content}


def deployment(name: str, run: str, component: str, replicas: int, template: Object, *, single: bool) -> Object:
    """A Deployment. With `single`, an old pod is gone before a new one starts: two would both think that they are the one."""
    selector = set_selector(name, run, component)
    template["metadata"]["labels"] |= selector
    spec: Object = {"replicas": replicas, "selector": {"matchLabels": selector}}
    if single:
        spec["strategy"] = {"type": "Recreate"}
    return child("Deployment", name, run, component, {"spec": spec | {"template": template}})


def stateful_set(
    name: str,
    run: str,
    component: str,
    replicas: int,
    template: Object,
    *,
    claims: Mapping[str, VolumeClaim],
    retention: ClaimRetention | None = None,
) -> Object:
    """A StatefulSet whose pods start in parallel. `claims`: those of each pod, by the name of their volume."""
    kept = retention or ClaimRetention()
    selector = set_selector(name, run, component)
    template["metadata"]["labels"] |= selector
    spec: Object = {
        "replicas": replicas,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector},
        "template": template,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": kept.when_deleted, "whenScaled": kept.when_scaled},
        "volumeClaimTemplates": [
            {
                # Labelled like our other claims, so that they are seen and can be made larger.
                "metadata": {"name": volume, "labels": names.labels(run, component)},
                "spec": claim.spec(),
            }
            for volume, claim in claims.items()
        ],
    }
    return child("StatefulSet", name, run, component, {"spec": spec})


def job(
    name: str,
    run: str,
    component: str,
    template: Object,
    *,
    backoff_limit: int,
    pods: int = 1,
    final_exit_code: int | None = None,
) -> Object:
    """An Indexed Job whose pods run at the same time.

    `final_exit_code`: of a container that no further try would help; its template must have `restartPolicy: Never`. Pods that a node's drain
    or a preemption ended are then no failures.
    """
    spec = {
        "backoffLimit": backoff_limit,
        "completions": pods,
        "parallelism": pods,
        "completionMode": "Indexed",
        "template": template,
    }
    if final_exit_code is not None:
        spec["podFailurePolicy"] = {
            "rules": [
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [final_exit_code]}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        }
    return child("Job", name, run, component, {"spec": spec})


def headless_service(
    name: str,
    run: str,
    component: str,
    ports: Mapping[str, int],
    selector: Mapping[str, str] | None = None,
) -> Object:
    """Names pods; it balances nothing. Pods are named before they are ready, so that parts may start in any order.

    `selector` narrows the pods of the component down further.
    """
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.selector(run, component) | dict(selector or {}),
        "ports": [{"name": port, "port": number} for port, number in ports.items()],
    }
    return child("Service", name, run, component, {"spec": spec})


def disruption_budget(name: str, run: str, component: str, selector: Mapping[str, str]) -> Object:
    """Lets a drain take one pod at a time. Parts of one pod have none: it could only block the drain for as long as the run lasts."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": dict(selector)}}
    return child("PodDisruptionBudget", name, run, component, {"spec": spec})


def set_selector(name: str, run: str, component: str) -> dict[str, str]:
    """The labels that find the pods of one StatefulSet or Deployment: a run may have several pools. They can never change."""
    return names.selector(run, component) | {names.SET_LABEL: name}


def volume_claim(name: str, run: str, component: str, claim: VolumeClaim) -> Object:
    return child("PersistentVolumeClaim", name, run, component, {"spec": claim.spec()})


def digest(data: bytes) -> str:
    """A short digest of a configuration, for the annotation that makes its pods restart when it changes."""
    return hashlib.sha256(data).hexdigest()[:16]
