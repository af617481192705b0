"""How the pods of a part are placed and made: GPUs, a short list of pod fields, images. Used by all four kinds.

The list of pod fields is closed on purpose: what is here cannot take a pod out of the restricted pod security level. A CRD with a whole pod
template would be larger than most API servers like.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SpecModel

LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]
AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=32)]
Annotations = Annotated[dict[str, AnnotationValue], Field(max_length=32)]
Image = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")]
ObjectRef = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
"""Name of an object that an admin made, such as a priority class or a Secret."""


class Gpus(SpecModel):
    """Accelerators of one pod."""

    count: int = Field(0, ge=0, le=64, description="GPUs of each pod (resource `nvidia.com/gpu`).")
    type: LabelValue | None = Field(
        None, description="Only nodes whose label `nvidia.com/gpu.product` has this value; absent: any."
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


class PodTemplate(SpecModel):
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


VariableName = Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Key = Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z0-9._-]+$")]


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
        description="TCP ports that the pod may reach at any address beside 443, such as that of a proxy or of your own hub.",
    )


class PrepareTemplate(OutwardTemplate):
    """Prepare, which fetches model and data sets. What its podTemplate leaves out is as in trainer.podTemplate, except for env and envFrom.

    With GPUs of a validator, what chooses nodes is as in validator.podTemplate instead: nodeSelector, nodeAffinity, tolerations, runtimeClassName.
    """

    gpu: Gpus | None = Field(
        None,
        description="Accelerators of prepare, which calibrates proofs on them; absent: those of one of the run's own validators, with its resources.",
    )


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
