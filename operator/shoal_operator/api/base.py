"""What the four kinds share: metadata, resources as Kubernetes quantities, conditions and the status of a scaled object.

Used by the kinds' own modules; nothing here talks to anything.
"""

import re
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from shoal.contracts.base import QUANTITY_SUFFIX, SIZE_PATTERN, RunName, SpecModel

GROUP = "shoal.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

Time = Annotated[str, StringConstraints(max_length=64)]
"""A moment in a status, RFC 3339."""

QUANTITY_PATTERN = rf"^[0-9]+(\.[0-9]+)?{QUANTITY_SUFFIX}$"
"""Non-negative Kubernetes quantities as people write them."""

_READ = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]{1,2})")
_SUFFIX_FACTORS = {
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)},
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}  # fmt: skip


def quantity_value(quantity: str | int) -> Fraction:
    """Number of units (cores, bytes, devices) in a Kubernetes quantity, exactly: `0.1Gi` comes back from an API server as `107374182400m`.

    Reads all that an API server writes, more than `QUANTITY_PATTERN`; raises ValueError on anything else.
    """
    found = _READ.fullmatch(str(quantity))
    if found is None:
        raise ValueError(
            f"a quantity is a number with an optional suffix such as 500m, 2 or 4Gi, got {str(quantity)!r}"
        )
    digits, suffix = found.groups()
    factor = _SUFFIX_FACTORS.get(suffix)
    return Fraction(digits) * (Fraction(f"1{suffix}") if factor is None else factor)


def _quantity(pattern: str, least: int) -> Any:
    """A quantity in a manifest: text of this pattern, or an integer of at least this."""

    def check(given: str | int) -> str | int:
        if given < least if isinstance(given, int) else re.fullmatch(pattern, given) is None:
            raise ValueError(f"must be an integer of at least {least}, or text that matches {pattern}")
        return given

    schema = {"x-kubernetes-int-or-string": True, "pattern": pattern, "maxLength": 32, "minimum": least}
    return AfterValidator(check), WithJsonSchema(schema)


Quantity = Annotated[str | int, *_quantity(QUANTITY_PATTERN, 0)]
"""A Kubernetes quantity: `500m`, `2`, `4Gi`."""

Size = Annotated[str | int, *_quantity(SIZE_PATTERN, 1)]
"""A quantity of bytes, more than nothing: the size of a volume."""

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
