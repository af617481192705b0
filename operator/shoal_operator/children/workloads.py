"""The kinds around pods, as dicts: workloads, Services, claims, disruption budgets. Every builder uses these. Pure."""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from shoal.contracts.hosts import GROUPED
from shoal_operator.api.volumes import ClaimRetention
from shoal_operator.children import names
from shoal_operator.children.claims import VolumeClaim
from shoal_operator.engine.cluster import CHILD_KINDS, MAYBE_KINDS, Object


def child(kind: str, name: str, run: str, component: str, content: Mapping[str, Any]) -> Object:
    """An object of one of the child kinds, labelled."""
    metadata = {"name": name, "labels": names.labels(run, component)}
    return {"apiVersion": (CHILD_KINDS | MAYBE_KINDS)[kind], "kind": kind, "metadata": metadata, **content}


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


WITH_PODS = ("Deployment", "StatefulSet", "Job", "LeaderWorkerSet")
"""Kinds of children that make pods."""


def leader_worker_set(
    name: str, run: str, component: str, groups: int, size: int, template: Object, *, claims: Mapping[str, VolumeClaim]
) -> Object:
    """A LeaderWorkerSet: `groups` times `size` pods, of which a group starts again together (https://lws.sigs.k8s.io/docs/).

    Each group's further pods are a StatefulSet that ends with the group's first pod. So claims must outlive it, and are made beside it
    (`group_claims`); the templates here name them.
    """
    template["metadata"]["labels"] |= set_selector(name, run, component)
    for each in template["spec"]["containers"]:
        each["env"] = [*each["env"], {"name": GROUPED, "value": "true"}]
    group: Object = {
        "size": size,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "workerTemplate": template,
        "volumeClaimTemplates": [
            {"metadata": {"name": volume}, "spec": claim.spec()} for volume, claim in claims.items()
        ],
    }
    spec: Object = {
        "replicas": groups,
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
        },
        "networkConfig": {"subdomainPolicy": "Shared"},
        "leaderWorkerTemplate": group,
    }
    return child("LeaderWorkerSet", name, run, component, {"spec": spec})


def group_claims(
    name: str,
    run: str,
    component: str,
    groups: int,
    size: int,
    claims: Mapping[str, VolumeClaim],
    retention: ClaimRetention | None,
) -> list[Object]:
    """The claims of a LeaderWorkerSet's pods: `<volume>-<set>-<group>` of a group's first, with `-<number>` behind it of the others."""
    retained = (retention or ClaimRetention()).when_deleted == "Retain"
    made = []
    for volume, claim in claims.items():
        for number in range(groups * size):
            group, place = divmod(number, size)
            pod = f"{name}-{group}-{place}" if place else f"{name}-{group}"
            each = volume_claim(f"{volume}-{pod}", run, component, claim)
            each["metadata"]["labels"] |= {names.SET_LABEL: name}
            if retained:
                each["metadata"]["annotations"] = {names.RETAIN_ANNOTATION: "true"}
            made.append(each)
    return made


def stamped(made: Object) -> Object:
    """A LeaderWorkerSet whose pods are labelled with a digest of their template and number: what says that a pod is new, whatever a status says.

    All other kinds stay as they are. Called when all else is in the template, the admin's defaults too.
    """
    if made["kind"] != "LeaderWorkerSet":
        return made
    template, size = template_of(made), made["spec"]["leaderWorkerTemplate"]["size"]
    stamp = digest(orjson.dumps([size, template], option=orjson.OPT_SORT_KEYS))
    metadata = template["metadata"]
    labels = {**metadata["labels"], names.TEMPLATE_LABEL: stamp}
    return with_template(made, {**template, "metadata": {**metadata, "labels": labels}})


def template_of(made: Object) -> Object:
    """The pod template of a child that makes pods."""
    spec = made["spec"]
    of_group = made["kind"] == "LeaderWorkerSet"
    template: Object = spec["leaderWorkerTemplate"]["workerTemplate"] if of_group else spec["template"]
    return template


def with_template(made: Object, template: Object) -> Object:
    """The child with another pod template; the one given stays as it is."""
    spec = made["spec"]
    if made["kind"] == "LeaderWorkerSet":
        changed = {"leaderWorkerTemplate": {**spec["leaderWorkerTemplate"], "workerTemplate": template}}
    else:
        changed = {"template": template}
    return {**made, "spec": {**spec, **changed}}


def claim_templates_of(made: Object) -> list[Object]:
    """Claims of each pod of a child that makes pods; none of one that cannot have any."""
    found: list[Object] = made["spec"].get("leaderWorkerTemplate", made["spec"]).get("volumeClaimTemplates", [])
    return found


def with_claim_templates(made: Object, claims: list[Object]) -> Object:
    """The child with other claims of each pod; the one given stays as it is."""
    spec = made["spec"]
    changed: Object = {"volumeClaimTemplates": claims}
    if made["kind"] == "LeaderWorkerSet":
        changed = {"leaderWorkerTemplate": {**spec["leaderWorkerTemplate"], **changed}}
    return {**made, "spec": {**spec, **changed}}


def selector_of(workload: Object) -> dict[str, str]:
    """The labels that find a workload's pods. A LeaderWorkerSet has no selector: its pods have the labels of its template."""
    if workload["kind"] != "LeaderWorkerSet":
        found: dict[str, str] = workload["spec"].get("selector", {}).get("matchLabels", {})
        return found
    labels = template_of(workload)["metadata"]["labels"]
    return set_selector(workload["metadata"]["name"], labels[names.RUN_LABEL], labels[names.COMPONENT_LABEL])


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
