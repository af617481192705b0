"""Containers, pods and the few kinds around them, as dicts. Every builder uses these, so that security context, probes, environment and labels are
written once. What is used here is the whole list of fields that the cluster on one machine must understand. Pure.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal_operator.api.base import Resources
from shoal_operator.children import names
from shoal_operator.engine.cluster import CHILD_KINDS, Object

HOME = "/shoal"
USER_ID = 10001
"""Any fixed id that is not root; images give it no name, and volumes get it as their group."""

STARTUP_SECONDS = 1800
"""A large model takes many minutes to load; until the start-up probe has passed no liveness probe runs."""


@dataclass(frozen=True)
class Mount:
    """A volume and where it lies below `/shoal`."""

    path: str
    source: Mapping[str, Any] | None
    """Volume source, or None for a claim template of the StatefulSet."""
    name: str = ""
    """Name of the volume; the path where it is not given."""
    read_only: bool = False

    @property
    def volume(self) -> str:
        return self.name or self.path


def config_map(name: str) -> Mount:
    return Mount("config", {"configMap": {"name": name}}, read_only=True)


def secrets(role_secret: str, credentials_secret: str | None = None) -> Mount:
    """The role's Secret at `secrets/`, with the store's credentials at `secrets/store/` where there are any.

    The two become one projected volume, as nothing can be mounted below a read-only volume.
    """
    if credentials_secret is None:
        return Mount("secrets", {"secret": {"secretName": role_secret, "defaultMode": 0o440}}, read_only=True)
    items = [{"key": key, "path": f"store/{key}"} for key in ("accessKey", "secretKey")]
    sources = [{"secret": {"name": role_secret}}, {"secret": {"name": credentials_secret, "items": items}}]
    return Mount("secrets", {"projected": {"sources": sources, "defaultMode": 0o440}}, read_only=True)


def store_credentials(credentials_secret: str) -> Mount:
    """Only the store's credentials, for a part that has no key of its own."""
    return Mount(
        "secrets/store", {"secret": {"secretName": credentials_secret, "defaultMode": 0o440}}, "store-credentials", True
    )


def claim(path: str, claim_name: str) -> Mount:
    return Mount(path, {"persistentVolumeClaim": {"claimName": claim_name}})


def claim_template(path: str) -> Mount:
    """A volume that outlives its pod: each pod of the StatefulSet has its own."""
    return Mount(path, None)


def empty(path: str) -> Mount:
    return Mount(path, {"emptyDir": {}})


def http_probes(port: int) -> dict[str, Any]:
    """`/healthz` is "progress is made", `/readyz` is "can serve"; telemetry answers both on the container's own port."""
    health = {"httpGet": {"path": "/healthz", "port": port}, "timeoutSeconds": 5}
    ready = {"httpGet": {"path": "/readyz", "port": port}, "timeoutSeconds": 5}
    return {
        "startupProbe": health | {"periodSeconds": 2, "failureThreshold": STARTUP_SECONDS // 2},
        "readinessProbe": ready | {"periodSeconds": 2, "failureThreshold": 3},
        "livenessProbe": health | {"periodSeconds": 10, "failureThreshold": 3},
    }


def tcp_probes(port: int) -> dict[str, Any]:
    """For nginx and Redis, which have no health page of ours."""
    check = {"tcpSocket": {"port": port}, "timeoutSeconds": 5}
    return {
        "startupProbe": check | {"periodSeconds": 1, "failureThreshold": 120},
        "readinessProbe": check | {"periodSeconds": 2, "failureThreshold": 3},
        "livenessProbe": check | {"periodSeconds": 10, "failureThreshold": 3},
    }


@dataclass(frozen=True)
class Container:
    """One container of a pod. `role` is `SHOAL_ROLE`."""

    name: str
    image: str
    command: list[str]
    role: str
    mounts: tuple[Mount, ...] = ()
    args: list[str] = field(default_factory=list)
    port: int | None = None
    probes: Mapping[str, Any] = field(default_factory=dict)
    resources: Resources | None = None
    sidecar: bool = False
    """Runs beside the others and does not keep a Job from being complete."""

    def to_object(self) -> Object:
        made: Object = {"name": self.name, "image": self.image, "command": self.command}
        if self.args:
            made["args"] = self.args
        made["env"] = environment(self.role)
        if self.port is not None:
            made["ports"] = [{"name": self.name, "containerPort": self.port}]
        given = self.resources.model_dump(mode="json", exclude_none=True) if self.resources else {}
        if kept := {key: value for key, value in given.items() if value}:
            made["resources"] = kept
        made |= self.probes
        made["volumeMounts"] = [
            {"name": mount.volume, "mountPath": f"{HOME}/{mount.path}"}
            | ({"readOnly": True} if mount.read_only else {})
            for mount in self.all_mounts
        ]
        made["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        # The last lines of the log go into the pod's status, so that a failure explains itself without the log.
        made["terminationMessagePolicy"] = "FallbackToLogsOnError"
        if self.sidecar:
            made["restartPolicy"] = "Always"
        return made

    @property
    def all_mounts(self) -> tuple[Mount, ...]:
        """The container's mounts, and the folder for temporary files that every container has."""
        return (*self.mounts, empty("tmp"))


def environment(role: str) -> list[Object]:
    """All that a container finds in its environment; everything else is in `config/`."""
    return [
        {"name": "SHOAL_HOME", "value": HOME},
        {"name": "SHOAL_BIND", "value": "0.0.0.0"},  # noqa: S104 - a pod's addresses are its own
        {"name": "SHOAL_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "SHOAL_ROLE", "value": role},
        # The root file system is read-only: what libraries want to write goes to the pod's own folder.
        {"name": "HOME", "value": "$(SHOAL_HOME)/tmp"},
        {"name": "TMPDIR", "value": "$(SHOAL_HOME)/tmp"},
    ]


def pod_template(
    run: str,
    component: str,
    containers: Iterable[Container],
    *,
    grace_seconds: int,
    restart_policy: str = "Always",
    config_hash: str | None = None,
) -> Object:
    """A pod template under the restricted pod security standard."""
    listed = list(containers)
    volumes: dict[str, Object] = {}
    for container in listed:
        for mount in container.all_mounts:
            if mount.source is not None:
                volumes[mount.volume] = {"name": mount.volume, **mount.source}
    metadata: Object = {"labels": names.labels(run, component)}
    if config_hash is not None:
        metadata["annotations"] = {names.CONFIG_HASH_ANNOTATION: config_hash}
    spec: Object = {}
    if sidecars := [container.to_object() for container in listed if container.sidecar]:
        spec["initContainers"] = sidecars
    spec |= {
        "containers": [container.to_object() for container in listed if not container.sidecar],
        "volumes": list(volumes.values()),
        "restartPolicy": restart_policy,
        "terminationGracePeriodSeconds": grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {"metadata": metadata, "spec": spec}


def child(kind: str, name: str, run: str, component: str, content: Mapping[str, Any]) -> Object:
    """An object of one of the child kinds, labelled."""
    metadata = {"name": name, "labels": names.labels(run, component)}
    return {"apiVersion": CHILD_KINDS[kind], "kind": kind, "metadata": metadata, **content}


def deployment(name: str, run: str, component: str, replicas: int, template: Object, *, single: bool) -> Object:
    """A Deployment. With `single`, an old pod is gone before a new one starts: two would both think that they are the one."""
    spec: Object = {"replicas": replicas, "selector": {"matchLabels": names.selector(run, component)}}
    if single:
        spec["strategy"] = {"type": "Recreate"}
    return child("Deployment", name, run, component, {"spec": spec | {"template": template}})


def stateful_set(
    name: str, run: str, component: str, replicas: int, template: Object, *, claims: Mapping[str, str | int]
) -> Object:
    """A StatefulSet whose pods start in parallel. `claims`: size of the volume of each pod, by name."""
    spec: Object = {
        "replicas": replicas,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": _pods_of(name, run, component, template)},
        "template": template,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
        "volumeClaimTemplates": [
            {"metadata": {"name": volume}, "spec": claim_spec(size, "ReadWriteOnce")} for volume, size in claims.items()
        ],
    }
    return child("StatefulSet", name, run, component, {"spec": spec})


def _pods_of(name: str, run: str, component: str, template: Object) -> dict[str, str]:
    """Selector of a StatefulSet: a run may have several pools, so its own name is part of it."""
    own = {names.SET_LABEL: name}
    template["metadata"]["labels"] |= own
    return names.selector(run, component) | own


def job(name: str, run: str, component: str, template: Object, *, backoff_limit: int) -> Object:
    spec = {"backoffLimit": backoff_limit, "completions": 1, "completionMode": "Indexed", "template": template}
    return child("Job", name, run, component, {"spec": spec})


def headless_service(name: str, run: str, component: str, ports: Mapping[str, int]) -> Object:
    """Names pods; it balances nothing. Pods are named before they are ready, so that parts may start in any order."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.selector(run, component),
        "ports": [{"name": port, "port": number} for port, number in ports.items()],
    }
    return child("Service", name, run, component, {"spec": spec})


def volume_claim(name: str, run: str, component: str, size: str | int, access: str) -> Object:
    return child("PersistentVolumeClaim", name, run, component, {"spec": claim_spec(size, access)})


def claim_spec(size: str | int, access: str) -> Object:
    return {"accessModes": [access], "resources": {"requests": {"storage": size}}}


def digest(data: bytes) -> str:
    """A short digest of a configuration, for the annotation that makes its pods start anew when it changes."""
    return hashlib.sha256(data).hexdigest()[:16]
