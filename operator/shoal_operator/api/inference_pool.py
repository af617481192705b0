"""InferencePool: a set of rollout workers. A `TrainingRun` makes one; an admin may add more, in this cluster or in another one.

A pool knows of its run only what a stranger's machine knows: where discovery is and the run's public key.
"""

from typing import Literal

from pydantic import Field
from shoal.contracts.base import NodeId, RunName, SpecModel
from shoal.contracts.recipe import ShortText

from shoal_operator.api.base import ChildMeta, Label, Quantity, Resources, ScaledStatus


class InferencePoolSpec(SpecModel):
    """Which run the workers serve, how many there are, and what they need."""

    run: RunName = Field(..., description="Name of the run that is served.")
    pool: Label = Field("pool", description="Name of the pool, as nodes report it at discovery.")
    discovery_url: ShortText = Field(..., description="URL of the run's discovery service.")
    run_public_key: NodeId = Field(..., description="Public key of the run; see the run's status.")
    replicas: int = Field(2, ge=0, le=10_000, description="Rollout workers.")
    resources: Resources = Field(default_factory=Resources, description="Resources of one worker's engine.")
    weights_size: Quantity = Field("20Gi", description="Volume of each worker for policy versions.")


class InferencePool(SpecModel):
    """A pool of rollout workers."""

    api_version: Literal["shoal.dev/v1alpha1"] = "shoal.dev/v1alpha1"
    kind: Literal["InferencePool"] = "InferencePool"
    metadata: ChildMeta
    spec: InferencePoolSpec
    status: ScaledStatus | None = None
