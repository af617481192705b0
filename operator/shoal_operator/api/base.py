"""What the four kinds share: metadata, resources as Kubernetes quantities, conditions and the status of a scaled object.

Used by the kinds' own modules; nothing here talks to anything.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from shoal.contracts.base import RunName, SpecModel

GROUP = "shoal.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

Time = Annotated[str, StringConstraints(max_length=64)]
"""A moment in a status, RFC 3339."""

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
"""Non-negative Kubernetes quantities as people write them; exponents and signs are left out on purpose."""

_SUFFIX_FACTORS = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip


def quantity_value(quantity: str | int) -> float:
    """Number of units (cores, bytes, devices) in a Kubernetes quantity; raises ValueError on anything else."""
    text = str(quantity)
    if not re.match(QUANTITY_PATTERN, text):
        raise ValueError(f"a quantity is a number with an optional suffix such as 500m, 2 or 4Gi, got {text!r}")
    digits = text.rstrip("mkMGTPi")
    return float(digits) * _SUFFIX_FACTORS[text[len(digits) :]]


def _check_quantity(quantity: str | int) -> str | int:
    quantity_value(quantity)
    return quantity


Quantity = Annotated[
    str | int,
    AfterValidator(_check_quantity),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN, "maxLength": 32}),
]
"""A Kubernetes quantity: `500m`, `2`, `4Gi`."""

ResourceList = Annotated[dict[str, Quantity], Field(max_length=16)]
"""Quantities by resource name (`cpu`, `memory`)."""

PoolName = Annotated[str, StringConstraints(max_length=11, pattern=r"^[a-z0-9]([a-z0-9-]{0,9}[a-z0-9])?$")]
"""Name of a pool, at most 11 characters, so that `<run>-<pool>` fits an `ObjectName`."""

ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?$")]
"""Name of a child object, at most 52 characters: a StatefulSet labels its pods with `<name>-<10 hex digits>`, and a label has at most 63."""


class Resources(SpecModel):
    """What a container asks for and may use, as in a Kubernetes container; GPUs are asked for by `gpu.count`."""

    requests: ResourceList = Field(
        default_factory=dict, description="Resources to reserve: cpu, memory, ephemeral-storage."
    )
    limits: ResourceList = Field(default_factory=dict, description="The most that may be used.")


class ObjectMeta(SpecModel):
    """Metadata of an object. What an API server adds is accepted, so that `kubectl get -o yaml` can be read back."""

    name: RunName = Field(..., description="Name of the object: lower-case letters, digits and '-', at most 40.")
    namespace: str | None = Field(None, description="Namespace of the object.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations.")
    uid: str | None = None
    generate_name: str | None = None
    self_link: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: int | None = None
    managed_fields: Any = None
    owner_references: Any = None
    finalizers: Any = None


class ChildMeta(ObjectMeta):
    """Metadata of a kind that a `TrainingRun` makes: its name is longer, as it starts with the name of the run."""

    name: ObjectName = Field(..., description="Name of the object: lower-case letters, digits and '-', at most 52.")


class Condition(SpecModel):
    """One condition, as in `metav1.Condition`."""

    type: Annotated[str, StringConstraints(max_length=316)] = Field(..., description="Kind of condition, CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(..., description="Whether it holds.")
    reason: Annotated[str, StringConstraints(max_length=1024)] = Field(..., description="One CamelCase word: why.")
    message: Annotated[str, StringConstraints(max_length=32768)] = Field("", description="The reason in a sentence.")
    observed_generation: int | None = Field(None, ge=0, description="Generation of the spec that this is about.")
    last_transition_time: str | None = Field(None, description="When `status` last changed, RFC 3339.")


Conditions = Annotated[
    list[Condition],
    Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
]


class ScaledStatus(SpecModel):
    """Status of a kind with replicas."""

    observed_generation: int | None = Field(
        None, ge=0, description="Generation of the spec that the operator acted on last."
    )
    replicas: int | None = Field(None, ge=0, description="Pods that exist.")
    ready_replicas: int | None = Field(None, ge=0, description="Pods that are ready.")
    selector: str | None = Field(None, description="Label selector of the pods, for autoscalers.")
    conditions: Conditions = Field(default_factory=list, description="Conditions, one of each type.")
