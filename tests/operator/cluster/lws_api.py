"""LeaderWorkerSet on an API server for tests: its CRD with the documented shape, and a thread that does what its controller documents.

The CRD's pod templates have the fields that the API server itself has, as the published CRD has those of its release: an undeclared field is refused.
The thread makes the documented StatefulSets, and the real controllers their pods. Left out: subgroups, exclusive topologies, partitions, `Hash`.
What the webhook adds to each pod (labels, `LWS_LEADER_ADDRESS`, `LWS_GROUP_SIZE`, `LWS_WORKER_INDEX`) is in the templates here.
"""

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from foreign_kinds import CONDITION, definition, fields, is_installed, served
from kube_client import LWS, Kube, Object, Refused

from shoal_operator.engine.conditions import condition, is_true, merge
from shoal_operator.reconcile.decisions import parse_time

LOOK_SECONDS = 0.1
LABEL = "leaderworkerset.sigs.k8s.io/"
NAME, INDEX, WORKER, SIZE = f"{LABEL}name", f"{LABEL}group-index", f"{LABEL}worker-index", f"{LABEL}size"
EMBEDDED: Object = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
"""All that metadata has within a CRD."""

SCHEMA = {
    "type", "format", "required", "enum", "default",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type",
}  # fmt: skip
"""What is taken over of a schema beside what lies below it. Of defaults, those that are Go's empty value and no value of the enum are left out."""


def _number(least: int, **more: Any) -> Object:
    return {"type": "integer", "format": "int32", "minimum": least, **more}


def _one_of(*values: str) -> Object:
    return {"type": "string", "enum": list(values)}


def _structural(found: Any, known: Object) -> Any:
    """A schema of the API server's as a CRD may have it: no references, and metadata as far as it is embedded."""
    if isinstance(found, list):
        return [_structural(each, known) for each in found]
    if not isinstance(found, dict):
        return found
    reference = found.get("$ref") or (found["allOf"][0]["$ref"] if "allOf" in found else None)
    if reference is not None:
        name = reference.rpartition("/")[2]
        match name.rpartition(".")[2]:
            case "ObjectMeta":
                return EMBEDDED
            case "Quantity" | "IntOrString":
                return {"x-kubernetes-int-or-string": True}
            case "Time":
                return {"type": "string", "format": "date-time"}
        return _structural(known[name], known)
    kept = {key: value for key, value in found.items() if key in SCHEMA and not isinstance(value, dict)}
    for key in ("items", "additionalProperties"):
        if key in found:
            kept[key] = _structural(found[key], known)
    if "properties" in found:
        kept["properties"] = {key: _structural(each, known) for key, each in found["properties"].items()}
    if kept.get("default") == "" and "enum" in kept:
        del kept["default"]
    return kept


def crd(kube: Kube) -> Object:
    """What v1 documents of a LeaderWorkerSet 0.8, https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/."""
    known = kube.call("GET", "/openapi/v3/apis/apps/v1")["components"]["schemas"]
    template = _structural(known["io.k8s.api.core.v1.PodTemplateSpec"], known)
    claim = _structural(known["io.k8s.api.core.v1.PersistentVolumeClaim"], known)
    amount = {"x-kubernetes-int-or-string": True}
    keep = _one_of("Retain", "Delete")
    group = {
        "type": "object",
        "required": ["workerTemplate"],
        "properties": {
            "leaderTemplate": template,
            "workerTemplate": template,
            "size": _number(1, default=1),
            "restartPolicy": _one_of("Default", "RecreateGroupOnPodRestart", "None")
            | {"default": "RecreateGroupOnPodRestart"},
            "volumeClaimTemplates": {"type": "array", "items": claim, "x-kubernetes-list-type": "atomic"},
            "persistentVolumeClaimRetentionPolicy": {
                "type": "object",
                "properties": {"whenDeleted": keep, "whenScaled": keep},
            },
        },
    }
    rolling = {
        "type": "object",
        "properties": {
            "maxUnavailable": amount | {"default": 1},
            "maxSurge": amount | {"default": 0},
            "partition": _number(0, default=0),
        },
    }
    spec = {
        "type": "object",
        "required": ["leaderWorkerTemplate"],
        "properties": {
            "replicas": _number(0, default=1),
            "leaderWorkerTemplate": group,
            "startupPolicy": _one_of("LeaderCreated", "LeaderReady") | {"default": "LeaderCreated"},
            "networkConfig": {
                "type": "object",
                "required": ["subdomainPolicy"],
                "properties": {"subdomainPolicy": _one_of("Shared", "UniquePerReplica")},
            },
            "rolloutStrategy": {
                "type": "object",
                "required": ["type"],
                "properties": {
                    "type": _one_of("RollingUpdate") | {"default": "RollingUpdate"},
                    "rollingUpdateConfiguration": rolling,
                },
            },
        },
    }
    counts = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), _number(0))
    status = {
        "type": "object",
        "properties": {
            **counts,
            "observedGeneration": {"type": "integer", "format": "int64"},
            "hpaPodSelector": {"type": "string"},
            "conditions": {"type": "array", "items": CONDITION},
        },
    }
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.hpaPodSelector",
    }
    schema = fields([], spec=spec, status=status)
    note = "https://github.com/kubernetes-sigs/lws"
    return definition(LWS, "LeaderWorkerSet", schema, scale=scale, approved=note)


@contextmanager
def leader_worker_sets(kube: Kube, *, controller: bool = True, says_generation: bool = True) -> Iterator[None]:
    """The kind is served, and its controller runs; both go again, unless the cluster has its own."""
    if is_installed(kube, "LeaderWorkerSet"):
        yield
        return
    with served(kube, crd(kube)):
        groups = Groups(kube, says_generation=says_generation)
        if controller:
            groups.start()
        try:
            yield
        finally:
            groups.close()


class Groups:
    """The controller: `start`, and `close` at the end."""

    def __init__(self, kube: Kube, *, says_generation: bool = True) -> None:
        """`says_generation`: whether the status says of which spec it is; not all releases do."""
        self.kube = kube
        self.says_generation = says_generation
        self._members: dict[str, dict[str, str]] = {}
        """Uids of the pods of a group by name, by the uid of its leader."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader worker sets", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                for live in self.kube.list("LeaderWorkerSet"):
                    if "deletionTimestamp" not in live["metadata"]:
                        self._look(live)
            except (Refused, httpx.HTTPError):
                pass  # written by another meanwhile, or gone: looked at again

    def _look(self, live: Object) -> None:
        name, namespace = live["metadata"]["name"], live["metadata"]["namespace"]
        pods = self.kube.list("Pod", namespace, f"{NAME}={name}")
        size = live["spec"]["leaderWorkerTemplate"]["size"]
        self._service(live)
        self._apply(self._stateful_set(live, name, live, {WORKER: "0"}, live["spec"]["replicas"], first=0))
        ready = 0
        leaders = [pod for pod in pods if pod["metadata"]["labels"].get(WORKER) == "0"]
        for leader in leaders:
            metadata = leader["metadata"]
            group = metadata["name"].rpartition("-")[2]
            if "deletionTimestamp" in metadata:
                continue
            if metadata["labels"].get(INDEX) != group:
                self.kube.merge("Pod", metadata["name"], namespace, {"metadata": {"labels": {INDEX: group}}})
            of = {INDEX: group, f"{LABEL}group-key": metadata["uid"]}
            members = [pod for pod in pods if pod["metadata"]["labels"].get(f"{LABEL}group-key") == metadata["uid"]]
            if self._restarted(leader, members):
                self.kube.delete("Pod", metadata["name"], namespace, propagation="Foreground")
                continue
            self._apply(self._stateful_set(live, metadata["name"], leader, of, size - 1, first=1))
            ready += is_true(leader, "Ready") and sum(is_true(each, "Ready") for each in members) == size - 1
        self._say(live, len(leaders), ready)

    def _restarted(self, leader: Object, members: list[Object]) -> bool:
        """Whether a container of the group was started again, or a pod of it is gone or going: its restart policy then ends the leader."""
        every = (leader, *members)
        seen = self._members.setdefault(leader["metadata"]["uid"], {})
        now = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in members}
        gone = any(now.get(name) != uid for name, uid in seen.items())
        seen |= now
        counts = [each.get("restartCount", 0) for pod in every for each in pod["status"].get("containerStatuses", ())]
        return gone or any(counts) or any("deletionTimestamp" in pod["metadata"] for pod in members)

    def _service(self, live: Object) -> None:
        """The headless Service of the set's name, unless there is one."""
        name, namespace = live["metadata"]["name"], live["metadata"]["namespace"]
        if self.kube.get("Service", name, namespace) is None:
            metadata = {"name": name, "namespace": namespace, "ownerReferences": [_owner(live)]}
            spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {NAME: name}}
            self.kube.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})

    def _stateful_set(
        self, live: Object, name: str, owner: Object, labels: dict[str, str], replicas: int, *, first: int
    ) -> Object:
        """That of all leaders, or that of the further pods of one group, which ends with its leader."""
        group, of = live["spec"]["leaderWorkerTemplate"], {NAME: live["metadata"]["name"], **labels}
        template = copy.deepcopy(group["workerTemplate"])
        metadata = template.setdefault("metadata", {})
        metadata["labels"] = {**metadata.get("labels", {}), **of}
        metadata["annotations"] = {**metadata.get("annotations", {}), SIZE: str(group["size"])}
        leader = (
            f"{name}.{of[NAME]}.{live['metadata']['namespace']}"
            if first
            else f"$(LWS_POD).{of[NAME]}.{live['metadata']['namespace']}"
        )
        given = [
            {"name": "LWS_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "LWS_LEADER_ADDRESS", "value": leader},
            {"name": "LWS_GROUP_SIZE", "value": str(group["size"])},
            {
                "name": "LWS_WORKER_INDEX",
                **(
                    {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}}
                    if first
                    else {"value": "0"}
                ),
            },
        ]
        for container in (*template["spec"]["containers"], *template["spec"].get("initContainers", ())):
            container["env"] = [*given, *container.get("env", ())]
        claims = [
            {"metadata": {"name": each["metadata"]["name"]}, "spec": each["spec"]}
            for each in group.get("volumeClaimTemplates", ())
        ]
        spec: Object = {
            "replicas": replicas,
            "serviceName": of[NAME],
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": of},
            "template": template,
            "volumeClaimTemplates": claims,
            **({"ordinals": {"start": first}} if first else {}),
        }
        kept = group.get("persistentVolumeClaimRetentionPolicy")
        return {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {
                "name": name,
                "namespace": live["metadata"]["namespace"],
                "labels": of,
                "ownerReferences": [_owner(owner)],
            },
            "spec": spec | ({"persistentVolumeClaimRetentionPolicy": kept} if kept else {}),
        }

    def _apply(self, wanted: Object) -> None:
        found = self.kube.get("StatefulSet", wanted["metadata"]["name"], wanted["metadata"]["namespace"])
        owners = [each["uid"] for each in wanted["metadata"]["ownerReferences"]]
        if found is not None and [each["uid"] for each in found["metadata"].get("ownerReferences", ())] != owners:
            return  # of a leader that is gone: it is collected first
        self.kube.apply(wanted, manager="lws", force=True)

    def _say(self, live: Object, groups: int, ready: int) -> None:
        wanted = live["spec"]["replicas"]
        now = parse_time("2026-11-27T12:00:00Z")
        assert now is not None
        said = condition("Available", ready == wanted, "AllGroupsReady" if ready == wanted else "GroupsNotReady", "")
        status = {
            "replicas": groups,
            "readyReplicas": ready,
            "updatedReplicas": groups,
            "observedGeneration": live["metadata"]["generation"],
            "hpaPodSelector": f"{NAME}={live['metadata']['name']},{WORKER}=0",
            "conditions": merge([said], live, now),
        }
        if not self.says_generation:
            del status["observedGeneration"]
        if live.get("status") != status:
            self.kube.merge(
                "LeaderWorkerSet",
                live["metadata"]["name"],
                live["metadata"]["namespace"],
                {"status": status},
                sub="status",
                manager="lws",
            )


def _owner(found: Object) -> Object:
    metadata = found["metadata"]
    return {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def environ(pod: Object, container: str) -> dict[str, str]:
    """The environment of a pod's container, as a kubelet makes it of values, names and labels."""
    made: dict[str, str] = {}
    own = next(each for each in pod["spec"]["containers"] if each["name"] == container)
    for each in own["env"]:
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        if path.startswith("metadata.labels["):
            made[each["name"]] = pod["metadata"]["labels"][path.split("'")[1]]
        elif path == "metadata.name":
            made[each["name"]] = pod["metadata"]["name"]
        elif "value" in each:
            made[each["name"]] = each["value"].replace("$(LWS_POD)", made.get("LWS_POD", ""))
    return made
