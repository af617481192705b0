"""How the pods of a part are placed and made: GPUs, pod fields, images. Used by all four kinds.

The list of pod fields is closed on purpose: what is here cannot take a pod out of the restricted pod security level, unless an admin allows the
node's network. A CRD with a whole pod template would be larger than most API servers like (`pod_fields`).
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel, unset
from shoal_operator.api.pod_fields import LabelValue as LabelValue
from shoal_operator.api.pod_fields import ObjectRef as ObjectRef
from shoal_operator.api.pod_fields import PodFields, Variable, VariablesSource
from shoal_operator.api.volumes import Volume, temporary_field

AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=32)]
Annotations = Annotated[dict[str, AnnotationValue], Field(max_length=32)]
Image = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")]

ResourceName = Annotated[str, StringConstraints(max_length=316, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")]


class Gpus(SpecModel):
    """Accelerators of one pod."""

    count: int = Field(0, ge=0, le=64, description="GPUs of each pod.")
    resource: ResourceName | None = Field(
        None,
        exclude_if=unset,
        description="Resource that they are, such as `amd.com/gpu` or `nvidia.com/mig-3g.40gb`; absent: `nvidia.com/gpu`.",
    )
    claim_template: ObjectRef | None = Field(
        None,
        exclude_if=unset,
        description="ResourceClaimTemplate by whose claim each pod gets its count of GPUs, instead of a resource.",
    )
    type: LabelValue | None = Field(None, description="Only nodes whose label `typeLabel` has this value; absent: any.")
    type_label: ResourceName | None = Field(
        None, exclude_if=unset, description="Label that has the type; absent: `nvidia.com/gpu.product`."
    )
    memory_gib: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Least memory of each GPU in GiB; a part with less ends as it starts. Absent: any.",
    )


class Toleration(SpecModel):
    """A toleration, as in a Kubernetes pod."""

    key: Annotated[str, StringConstraints(max_length=316)] | None = Field(
        None, description="Key of the taint; absent with operator Exists: every taint."
    )
    operator: Literal["Equal", "Exists"] = Field("Equal", description="How the taint's value is compared.")
    value: LabelValue | None = Field(None, description="Value of the taint, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect that is tolerated; absent: all."
    )
    toleration_seconds: int | None = Field(
        None, ge=0, le=31_536_000, description="Seconds that a NoExecute taint is tolerated; absent: forever."
    )


class NodeRequirement(SpecModel):
    """One condition on a node's labels."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=316)] = Field(..., description="Label of the node.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field("In", description="How values are compared.")
    values: list[LabelValue] = Field([], max_length=64, description="Values, for In and NotIn.")


class PodTemplate(PodFields):
    """Settings of a part's pods besides their resources."""

    labels: Labels = Field(default_factory=dict, description="Further labels of the pods.")
    annotations: Annotations = Field(default_factory=dict, description="Annotations of the pods.")
    node_selector: Labels = Field(default_factory=dict, description="Labels that a node must have.")
    node_affinity: list[NodeRequirement] = Field(
        [], max_length=16, description="Conditions that a node must meet; all of them apply."
    )
    tolerations: list[Toleration] = Field([], max_length=16, description="Taints that the pods tolerate.")
    priority_class_name: ObjectRef | None = Field(None, description="Priority class of the pods.")
    runtime_class_name: ObjectRef | None = Field(None, description="Runtime class of the pods.")


class PodWithVariables(PodTemplate):
    """The same for a part that may have environment variables of yours."""

    env: Annotated[list[Variable], Field(max_length=64)] | None = Field(
        None, description="Environment variables of the part's own container; absent: none of yours."
    )
    env_from: Annotated[list[VariablesSource], Field(max_length=16)] | None = Field(
        None, description="Secrets and ConfigMaps whose keys become environment variables; absent: none."
    )


Port = Annotated[int, Field(ge=1, le=65535)]


class OutwardTemplate(SpecModel):
    """A part that speaks to a service outside the run: with which secrets, by which way."""

    pod_template: PodWithVariables = Field(
        default_factory=PodWithVariables, description="Environment, placement and labels of the pod."
    )
    ca_secret: ObjectRef | None = Field(
        None, description="Secret whose `ca.crt` has certificates (PEM) to trust beside the system's; absent: none."
    )
    egress_ports: list[Port] = Field(
        [],
        max_length=16,
        description="TCP ports, besides 443, that the pod may reach at any address, such as those of a proxy or of your own hub.",
    )


class PrepareTemplate(OutwardTemplate):
    """Prepare, which fetches model and data sets. What its podTemplate leaves out is as in trainer.podTemplate, except for env and envFrom.

    With GPUs of a validator, what chooses nodes is as in validator.podTemplate instead. Volumes, containers and devices are never taken over.
    """

    gpu: Gpus | None = Field(
        None,
        description="Accelerators of the prepare Job, which calibrates proofs on them. Absent: those and the resources of a validator of this run."
        " Absent and images.trainer set, with a trainer without GPUs: none.",
    )
    temporary_volume: Volume | None = temporary_field("the model as it is downloaded")


PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class ImagePull(SpecModel):
    """How images are pulled."""

    pull_policy: PullPolicy | None = Field(None, description="When to pull; absent: Kubernetes' own rule by tag.")
    pull_secrets: list[ObjectRef] = Field([], max_length=8, description="Secrets with registry credentials.")


_PROTOCOL = Field(None, description="Image of orchestrator, discovery and agents, instead of the release's.")
_RELAY = Field(None, description="Image of relays, publisher and nginx, instead of the release's.")
_VALIDATOR = Field(None, description="Image of validators, instead of the release's.")
_WORKER = Field(None, description="Image of rollout workers, instead of the release's.")


class Images(ImagePull):
    """Images of all parts of a run."""

    protocol: Image | None = _PROTOCOL
    redis: Image | None = Field(None, description="Image of Redis, instead of the release's.")
    relay: Image | None = _RELAY
    tracker: Image | None = Field(None, description="Image of the pod of spec.trackers, instead of the release's.")
    trainer: Image | None = Field(None, description="Image of trainer and prepare, instead of the release's.")
    validator: Image | None = _VALIDATOR
    worker: Image | None = _WORKER


class PoolImages(ImagePull):
    """Images of a pool's pods."""

    protocol: Image | None = _PROTOCOL
    worker: Image | None = _WORKER


class RelayImages(ImagePull):
    """Images of a relay's pods."""

    relay: Image | None = _RELAY


class ValidatorImages(ImagePull):
    """Images of a validator's pods."""

    validator: Image | None = _VALIDATOR
