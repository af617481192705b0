"""Containers and pods as dicts. Every builder uses these, so that security context, probes, environment and labels are written once. What is used
here and in `workloads.py` is the whole list of fields that the cluster on one machine must understand. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.contracts.base import SpecModel
from shoal_operator.api.base import Resources
from shoal_operator.api.pods import Gpus, ImagePull, NodeRequirement, OutwardTemplate, PodTemplate, PodWithVariables
from shoal_operator.children import names
from shoal_operator.children.claims import VolumeClaim
from shoal_operator.children.overlay import overlay
from shoal_operator.engine.cluster import Object

HOME = "/shoal"
USER_ID = 10001
"""Any fixed id that is not root; images give it no name, and volumes get it as their group."""

GPU_RESOURCE = "nvidia.com/gpu"
GPU_TYPE_LABEL = "nvidia.com/gpu.product"
"""What NVIDIA's GPU feature discovery labels nodes with."""
GPU_CLAIM = "gpu"
"""Claim of the pod's GPUs where they come by dynamic resource allocation."""
SHARED_MEMORY = "shm"
TEMPORARY = "tmp"

PASSED_ON = (
    "nodeSelector", "affinity", "tolerations", "priorityClassName", "runtimeClassName", "schedulerName", "topologySpreadConstraints",
    "resourceClaims", "serviceAccountName", "imagePullSecrets", "securityContext", "hostNetwork", "hostAliases", "dnsConfig", "volumes",
    "containers",
)  # fmt: skip
"""Fields of a podTemplate that are a pod's own, as they are there."""
ORDER = {name: number for number, name in enumerate(PASSED_ON)}

TOKEN_SECONDS = 3600
"""Life of a service account's token; its kubelet renews it when four fifths are over."""

STARTUP_SECONDS = 1800
"""A large model takes many minutes to load; until the start-up probe has passed no liveness probe runs."""

LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6}
"""A minute without an answer, each waited for ten seconds: a node with ten times its load answers late, and killing what is slow makes it slower."""


@dataclass(frozen=True)
class Mount:
    """A volume and where it lies below `/shoal`."""

    path: str
    source: Mapping[str, Any] | None
    """Volume source, or None for a claim template of the StatefulSet."""
    name: str = ""
    """Name of the volume; the path where it is not given."""
    read_only: bool = False
    service_account: str = ""
    """Whose token lies in the volume: the pod runs as it."""

    @property
    def volume(self) -> str:
        return self.name or self.path


def config_map(name: str, *further: str, optional: str | None = None) -> Mount:
    """The ConfigMap at `config/`; with further ones, all their files in one projected volume. A pod starts without the `optional` one, whose files
    come when it does."""
    if not further and optional is None:
        return Mount("config", {"configMap": {"name": name}}, read_only=True)
    sources: list[dict[str, Any]] = [{"configMap": {"name": each}} for each in (name, *further)]
    if optional is not None:
        sources.append({"configMap": {"name": optional, "optional": True}})
    return Mount("config", {"projected": {"sources": sources}}, read_only=True)


@dataclass(frozen=True)
class StoreAccess:
    """What a part reaches an S3-compatible store with: a Secret of keys, or the token of a service account."""

    secret: str = ""
    service_account: str = ""
    audience: str = ""

    def source(self, folder: str = "") -> Object:
        """The source of a projected volume; its files lie below `folder`."""
        if self.secret:
            items = [{"key": key, "path": f"{folder}{key}"} for key in ("accessKey", "secretKey")]
            return {"secret": {"name": self.secret, "items": items}}
        token = {"audience": self.audience, "expirationSeconds": TOKEN_SECONDS, "path": f"{folder}token"}
        return {"serviceAccountToken": token}


def secrets(role_secret: str, access: StoreAccess | None = None, *further: str) -> Mount:
    """The role's Secret at `secrets/`, further ones beside it, and what it reaches the store with at `secrets/store/` where there is any.

    Several become one projected volume, as nothing can be mounted below a read-only volume.
    """
    if access is None and not further:
        return Mount("secrets", {"secret": {"secretName": role_secret, "defaultMode": 0o440}}, read_only=True)
    sources: list[dict[str, Any]] = [{"secret": {"name": name}} for name in (role_secret, *further)]
    if access is not None:
        sources.append(access.source("store/"))
    account = access.service_account if access is not None else ""
    projected = {"projected": {"sources": sources, "defaultMode": 0o440}}
    return Mount("secrets", projected, read_only=True, service_account=account)


def ticket(secret: str) -> Mount:
    """A pool's ticket. A pool in another cluster than its run has none: its pods join as strangers do."""
    return Mount("secrets", {"secret": {"secretName": secret, "defaultMode": 0o440, "optional": True}}, read_only=True)


def store_credentials(access: StoreAccess) -> Mount:
    """Only what the store is reached with, for a part that has no key of its own."""
    source: Object = {"secret": {"secretName": access.secret, "defaultMode": 0o440}}
    if not access.secret:
        source = {"projected": {"sources": [access.source()], "defaultMode": 0o440}}
    return Mount("secrets/store", source, "store-credentials", True, access.service_account)


def certificate(secret: str) -> Mount:
    """A certificate that an admin gave (`tls.crt`, `tls.key`). Without the Secret the pod starts and has no listener for outside yet."""
    source = {"secret": {"secretName": secret, "defaultMode": 0o440, "optional": True}}
    return Mount("secrets/tls", source, "certificate", read_only=True)


def outward_mounts(template: OutwardTemplate) -> tuple[Mount, ...]:
    """Certificates of authorities beside the system's, at `ca/ca.crt`: what a part that speaks to the outside trusts (`transport.authorities`)."""
    if template.ca_secret is None:
        return ()
    items = [{"key": "ca.crt", "path": "ca.crt"}]
    return (
        Mount(
            "ca", {"projected": {"sources": [{"secret": {"name": template.ca_secret, "items": items}}]}}, read_only=True
        ),
    )


def claim(path: str, claim_name: str) -> Mount:
    return Mount(path, {"persistentVolumeClaim": {"claimName": claim_name}})


def claim_template(path: str) -> Mount:
    """A volume that outlives its pod: each pod of the StatefulSet has its own."""
    return Mount(path, None)


def ephemeral(path: str, claim: VolumeClaim) -> Mount:
    """A volume from the cluster's storage that lives as long as its pod."""
    return Mount(path, {"ephemeral": {"volumeClaimTemplate": {"spec": claim.spec()}}})


def empty(path: str) -> Mount:
    return Mount(path, {"emptyDir": {}})


def http_probes(port: int) -> dict[str, Any]:
    """`/healthz` is "progress is made", `/readyz` is "can serve"; telemetry answers both on the container's own port."""
    health = {"httpGet": {"path": "/healthz", "port": port}, "timeoutSeconds": 5}
    ready = {"httpGet": {"path": "/readyz", "port": port}, "timeoutSeconds": 5}
    return {
        "startupProbe": health | {"periodSeconds": 2, "failureThreshold": STARTUP_SECONDS // 2},
        "readinessProbe": ready | {"periodSeconds": 2, "failureThreshold": 3},
        "livenessProbe": health | LIVENESS,
    }


def tcp_probes(port: int) -> dict[str, Any]:
    """For nginx and Redis, which have no health page of ours."""
    check = {"tcpSocket": {"port": port}, "timeoutSeconds": 5}
    return {
        "startupProbe": check | {"periodSeconds": 1, "failureThreshold": 120},
        "readinessProbe": check | {"periodSeconds": 2, "failureThreshold": 3},
        "livenessProbe": check | LIVENESS,
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
    gpu: Gpus = field(default_factory=Gpus)
    """What it is promised, and checks as it starts."""
    shared_memory: bool = False
    """Needs a `/dev/shm` larger than the 64 MiB that a container has: NCCL and vLLM exchange tensors there. Its pages count as the container's
    memory, and its memory limit bounds them."""
    sidecar: bool = False
    """Runs beside the others and does not keep a Job from being complete."""
    variables: PodWithVariables | None = None
    """Whose environment the container gets, beside what every container has."""

    def to_object(self) -> Object:
        made: Object = {"name": self.name, "image": self.image, "command": self.command}
        if self.args:
            made["args"] = self.args
        # Ours come last and win: of one name Kubernetes takes the last, and `env` before `envFrom`.
        variables = self.variables or PodWithVariables()
        made["env"] = [*said(variables.env or ()), *environment(self.role, self.gpu)]
        if variables.env_from:
            made["envFrom"] = said(variables.env_from)
        if self.port is not None:
            made["ports"] = [{"name": self.name, "containerPort": self.port}]
        given = self.resources.model_dump(mode="json", exclude_none=True) if self.resources else {}
        if self.gpu.count and self.gpu.claim_template is not None:
            given["claims"] = [{"name": GPU_CLAIM}]
        elif self.gpu.count:
            given["limits"] = given.get("limits", {}) | {self.gpu.resource or GPU_RESOURCE: self.gpu.count}
        if kept := {key: value for key, value in given.items() if value}:
            made["resources"] = kept
        made |= self.probes
        made["volumeMounts"] = [
            {"name": mount.volume, "mountPath": f"{HOME}/{mount.path}"}
            | ({"readOnly": True} if mount.read_only else {})
            for mount in self.all_mounts
        ]
        if self.shared_memory:
            made["volumeMounts"].append({"name": SHARED_MEMORY, "mountPath": "/dev/shm"})  # noqa: S108 - the mount point
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
        return (*self.mounts, empty(TEMPORARY))


def environment(role: str, gpu: Gpus) -> list[Object]:
    """All that a container finds in its environment; everything else is in `config/`. What it is promised of GPUs is read by `accelerators`."""
    promised = {"SHOAL_GPUS": gpu.count, "SHOAL_GPU_TYPE": gpu.type, "SHOAL_GPU_MEMORY_GIB": gpu.memory_gib}
    return [
        {"name": "SHOAL_HOME", "value": HOME},
        {"name": "SHOAL_BIND", "value": "0.0.0.0"},  # noqa: S104 - a pod's addresses are its own
        {"name": "SHOAL_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "SHOAL_ROLE", "value": role},
        # The root file system is read-only: what libraries want to write goes to the pod's own folder.
        {"name": "HOME", "value": "$(SHOAL_HOME)/tmp"},
        {"name": "TMPDIR", "value": "$(SHOAL_HOME)/tmp"},
        *({"name": name, "value": str(value)} for name, value in promised.items() if gpu.count and value is not None),
    ]


def image_of(part: str, images: ImagePull, gpu: Gpus | None = None) -> str:
    """Image of a part: what the author chose, or the release's, of the variant for GPUs where the pod has any."""
    chosen: str | None = getattr(images, part, None)
    return chosen or (names.IMAGES[part] + names.ON_GPUS if gpu is not None and gpu.count else names.IMAGES[part])


def pod_template(
    run: str,
    component: str,
    containers: Iterable[Container],
    *,
    grace_seconds: int,
    placement: PodTemplate,
    images: ImagePull,
    gpu: Gpus | None = None,
    restart_policy: str = "Always",
    config_hash: str | None = None,
    temporary: VolumeClaim | None = None,
) -> Object:
    """A pod template under the restricted pod security standard.

    Args:
        placement: what the author says about the pods; our own labels win.
        images: how images are pulled.
        gpu: kind of GPU that the node must have, where the containers ask for any.
        config_hash: digest of the configuration: pods restart when it changes.
        temporary: claim of the containers' temporary files; None: the node's disk.
    """
    listed = list(containers)
    volumes: dict[str, Object] = {}
    for container in listed:
        for mount in container.all_mounts:
            if mount.source is not None:
                volumes[mount.volume] = {"name": mount.volume, **mount.source}
    if temporary is not None:
        volumes[TEMPORARY] = {"name": TEMPORARY, **(ephemeral(TEMPORARY, temporary).source or {})}
    if any(container.shared_memory for container in listed):
        volumes[SHARED_MEMORY] = {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}
    metadata: Object = {"labels": placement.labels | names.labels(run, component)}
    annotations = dict(placement.annotations)
    if config_hash is not None:
        annotations[names.CONFIG_HASH_ANNOTATION] = config_hash
    if annotations:
        metadata["annotations"] = annotations
    made = [(container.sidecar, container.to_object()) for container in listed]
    for _, each in made:
        if images.pull_policy is not None:
            each["imagePullPolicy"] = images.pull_policy
    spec: Object = {}
    if sidecars := [each for sidecar, each in made if sidecar]:
        spec["initContainers"] = sidecars
    spec |= {
        "containers": [each for sidecar, each in made if not sidecar],
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
    accounts = {mount.service_account for container in listed for mount in container.all_mounts}
    if account := max(accounts, default=""):
        spec["serviceAccountName"] = account
    if images.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in images.pull_secrets]
    return {"metadata": metadata, "spec": overlay(spec, _laid_over(placement, gpu))}


def _laid_over(placement: PodTemplate, gpu: Gpus | None) -> Object:
    """The author's fields, and those that follow from the GPUs, as a partial pod spec."""
    given = placement.model_dump(mode="json", by_alias=True, exclude_none=True)
    spec: Object = {name: given[name] for name in PASSED_ON if given.get(name)}
    for each in spec.get("containers", ()):
        each |= {name: _without_empty(each[name]) for name in ("env", "envFrom") if name in each}
        if "resources" in each:
            each["resources"] = {name: value for name, value in each["resources"].items() if value}
    if "imagePullSecrets" in spec:
        spec["imagePullSecrets"] = [{"name": each["name"]} for each in spec["imagePullSecrets"]]
    if gpu is not None and gpu.type is not None:
        spec["nodeSelector"] = spec.get("nodeSelector", {}) | {gpu.type_label or GPU_TYPE_LABEL: gpu.type}
    if gpu is not None and gpu.count and gpu.claim_template is not None:
        claim = {"name": GPU_CLAIM, "resourceClaimTemplateName": gpu.claim_template}
        spec["resourceClaims"] = [*spec.get("resourceClaims", []), claim]
    if placement.node_affinity:
        term = {"matchExpressions": [_expression(each) for each in placement.node_affinity]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec["affinity"] = spec.get("affinity", {}) | {"nodeAffinity": required}
    if placement.tolerations:
        spec["tolerations"] = said(placement.tolerations)
    if placement.host_network:
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"  # the names of our Services, too
    return dict(sorted(spec.items(), key=lambda item: ORDER.get(item[0], len(ORDER))))


def said(fields: Iterable[SpecModel]) -> list[Object]:
    """Fields that are Kubernetes' own, as they are there. An API server leaves out what is empty: with it a pod would never be as it was applied."""
    return _without_empty(each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in fields)


def _without_empty(fields: Iterable[Object]) -> list[Object]:
    return [{name: value for name, value in each.items() if value != ""} for each in fields]


def _expression(requirement: NodeRequirement) -> Object:
    values = {"values": requirement.values} if requirement.values else {}
    return {"key": requirement.key, "operator": requirement.operator, **values}
