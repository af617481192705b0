"""What a manifest says about the volumes of a run's parts: one shape for all of them. Used by the kinds' own modules.

Sizes that a part has had since 0.2.0 keep their fields (`scratchSize`, `weightsSize`, ...); a volume's own size wins, as it says more.
"""

from typing import Any, Literal

from pydantic import Field

from shoal.contracts.base import SpecModel
from shoal_operator.api.base import Size
from shoal_operator.api.pod_fields import ObjectRef


class Volume(SpecModel):
    """How the claims of a part are made. What exists keeps its class; it grows with its size where the class lets it, and never shrinks."""

    size: Size | None = Field(None, description="Size of each; absent: as the part's own field or default says.")
    storage_class_name: ObjectRef | None = Field(
        None, description="Storage class; absent: that of the chart's `runs`, else the cluster's default."
    )


class StoreVolume(Volume):
    """The volume of the folder store. Pods of several nodes mount it."""

    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = Field(
        "ReadWriteMany",
        description="ReadWriteOnce is for a run whose pods are all on one node: other nodes cannot mount the volume.",
    )
    retain: bool = Field(
        False,
        description="Whether the claim stays when the run is deleted. Its files are of use with the run's keys only: back those up first.",
    )


class ClaimRetention(SpecModel):
    """What becomes of the claims of pods that go, as `persistentVolumeClaimRetentionPolicy` of a StatefulSet."""

    when_deleted: Literal["Delete", "Retain"] = Field(
        "Delete",
        description="With the object. Retained claims are taken up by the next object of this name, with their keys.",
    )
    when_scaled: Literal["Delete", "Retain"] = Field(
        "Retain",
        description="When replicas are fewer. With Delete a worker that comes back downloads all weights again, as a new node.",
    )


def temporary_field(holds: str) -> Any:
    """The field of a part that may have its temporary files on claimed storage instead of its node's disk."""
    return Field(
        None,
        description=f"Claim of each pod's volume for temporary files, such as {holds}; it ends with the pod. Absent: the node's disk. Size: 20Gi.",
    )
