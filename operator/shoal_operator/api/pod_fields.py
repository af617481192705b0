"""Fields of a Kubernetes pod that a `podTemplate` passes on (ADR 0093): typed where a guarantee of ours could break, else as they are there.

What is not checked here an API server checks when the workload is written: it knows each field of a pod, and the run's Ready condition has its words.
The rules between these fields are in `pod_rules`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel, unset
from shoal_operator.api.base import Resources

LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]
ObjectRef = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
"""Name of an object that an admin made, such as a priority class or a Secret."""
VariableName = Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Key = Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z0-9._-]+$")]
VolumeName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
AsInAPod = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""A value that the API server alone reads."""
MOUNT_PATH = r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$"
"""Absolute, and no part of it goes upward."""
UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""Not 0: no container of a run is root."""


class KeyRef(SpecModel):
    """One key of a Secret in the run's namespace."""

    name: ObjectRef = Field(..., description="Name of the Secret.")
    key: Key = Field(..., description="Key in it.")
    optional: bool = Field(False, description="Start without the variable where Secret or key does not exist.")


class VariableSource(SpecModel):
    """Where a variable has its value from."""

    secret_key_ref: KeyRef = Field(..., description="A key of a Secret.")


class Variable(SpecModel):
    """An environment variable, as in a Kubernetes container."""

    name: VariableName = Field(..., description="Name; those that the operator sets itself are refused.")
    value: Annotated[str, StringConstraints(max_length=4096)] | None = Field(
        None, description="Value, which anybody may read in the run's objects: nothing secret."
    )
    value_from: VariableSource | None = Field(None, description="A Secret's key as its value.")


class ObjectSource(SpecModel):
    """A Secret or ConfigMap in the run's namespace."""

    name: ObjectRef = Field(..., description="Name of the object.")
    optional: bool = Field(False, description="Start without it where it does not exist.")


class VariablesSource(SpecModel):
    """Every key of one object as a variable, as in a Kubernetes container. Variables that the operator sets win."""

    prefix: VariableName | None = Field(None, description="What is put before each key; absent: nothing.")
    secret_ref: ObjectSource | None = Field(None, description="A Secret.")
    config_map_ref: ObjectSource | None = Field(None, description="A ConfigMap.")


class ResourceClaimUse(SpecModel):
    """A device claim that a container uses."""

    name: VolumeName = Field(..., description="Name in the pod's resourceClaims.")
    request: VolumeName | None = Field(None, description="One request of the claim; absent: all.")


class ContainerResources(Resources):
    """Resources of one container by name."""

    claims: Annotated[list[ResourceClaimUse], Field(max_length=8)] | None = Field(
        None, exclude_if=unset, description="Claims of the pod that it uses."
    )


class MountSpec(SpecModel):
    """Where a volume of podTemplate.volumes lies in a container."""

    name: VolumeName = Field(..., description="Name of the volume.")
    mount_path: Annotated[str, StringConstraints(max_length=256, pattern=MOUNT_PATH)] = Field(
        ..., description="Folder, outside what an image or the operator put there."
    )
    sub_path: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        None, description="Path in the volume; absent: all of it."
    )
    read_only: bool | None = Field(None, description="Mount it to be read.")


class ContainerSpec(SpecModel):
    """What is laid over one of the part's containers, found by its name. It adds no container."""

    name: VolumeName = Field(..., description="Container (docs/architecture.md#processes).")
    env: Annotated[list[Variable], Field(max_length=64)] | None = Field(
        None, description="Further environment variables."
    )
    env_from: Annotated[list[VariablesSource], Field(max_length=16)] | None = Field(
        None, description="Secrets and ConfigMaps whose keys become variables."
    )
    resources: ContainerResources | None = Field(None, description="Requests, limits and claims, by name.")
    volume_mounts: Annotated[list[MountSpec], Field(max_length=8)] | None = Field(
        None, description="Where volumes of podTemplate.volumes lie."
    )


class VolumeSpec(SpecModel):
    """A volume of a kind that the restricted pod security level has; no node's own folders."""

    name: VolumeName = Field(..., description="Name; those that the operator uses are refused.")
    config_map: AsInAPod | None = Field(None, description="A ConfigMap's files.")
    csi: AsInAPod | None = Field(None, description="An ephemeral volume of a CSI driver.")
    downward_api: AsInAPod | None = Field(None, alias="downwardAPI", description="The pod's own fields.")
    empty_dir: AsInAPod | None = Field(None, description="An empty folder.")
    ephemeral: AsInAPod | None = Field(None, description="A claim that ends with the pod.")
    image: AsInAPod | None = Field(None, description="Files of an OCI image, such as a model.")
    persistent_volume_claim: AsInAPod | None = Field(None, description="A claim of yours.")
    projected: AsInAPod | None = Field(None, description="Several sources; tokens of the service account.")
    secret: AsInAPod | None = Field(None, description="A Secret's files.")


class PodResourceClaim(SpecModel):
    """A claim of devices (dynamic resource allocation)."""

    name: VolumeName = Field(..., description="Name by which containers use it; not `gpu`.")
    resource_claim_name: ObjectRef | None = Field(None, description="A ResourceClaim, shared by all pods.")
    resource_claim_template_name: ObjectRef | None = Field(None, description="A template; each pod has its own claim.")


class PodAffinity(SpecModel):
    """Affinity, as in a Kubernetes pod."""

    node_affinity: AsInAPod | None = Field(None, description="To nodes; instead of podTemplate.nodeAffinity.")
    pod_affinity: AsInAPod | None = Field(None, description="To other pods.")
    pod_anti_affinity: AsInAPod | None = Field(None, description="Away from other pods.")


class PodSecurity(SpecModel):
    """Users and groups of the pod. The rest of the restricted level is fixed."""

    run_as_user: UserId | None = Field(None, description="User of all containers.")
    run_as_group: UserId | None = Field(None, description="Group of all containers.")
    fs_group: UserId | None = Field(None, description="Group of the volumes.")
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] | None = Field(
        None, description="When files of a volume get that group."
    )
    supplemental_groups: Annotated[list[UserId], Field(max_length=32)] | None = Field(
        None, description="Further groups."
    )


class PodFields(SpecModel):
    """Fields of a pod by Kubernetes' own names, laid over the operator's pod by strategic merge."""

    scheduler_name: ObjectRef | None = Field(None, exclude_if=unset, description="Scheduler of the pods.")
    topology_spread_constraints: Annotated[list[AsInAPod], Field(max_length=8)] | None = Field(
        None, exclude_if=unset, description="How pods spread; merged by topologyKey."
    )
    affinity: PodAffinity | None = Field(None, exclude_if=unset, description="Affinity to nodes and pods.")
    resource_claims: Annotated[list[PodResourceClaim], Field(max_length=8)] | None = Field(
        None, exclude_if=unset, description="Claims of devices; containers use them by name."
    )
    service_account_name: ObjectRef | None = Field(
        None, exclude_if=unset, description="Service account, for a cloud's identity; no token of the API server."
    )
    image_pull_secrets: Annotated[list[ObjectSource], Field(max_length=8)] | None = Field(
        None, exclude_if=unset, description="Registry credentials beside images.pullSecrets."
    )
    security_context: PodSecurity | None = Field(None, exclude_if=unset, description="Users and groups.")
    host_network: bool | None = Field(
        None, exclude_if=unset, description="Use the node's network; the admin must allow it (runs.hostNetwork)."
    )
    host_aliases: Annotated[list[AsInAPod], Field(max_length=32)] | None = Field(
        None, exclude_if=unset, description="Lines of /etc/hosts; merged by ip."
    )
    dns_config: AsInAPod | None = Field(None, exclude_if=unset, description="Resolver settings.")
    volumes: Annotated[list[VolumeSpec], Field(max_length=16)] | None = Field(
        None, exclude_if=unset, description="Further volumes; containers mount them."
    )
    containers: Annotated[list[ContainerSpec], Field(max_length=4)] | None = Field(
        None, exclude_if=unset, description="What is laid over the part's containers, by name."
    )
