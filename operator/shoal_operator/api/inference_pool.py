"""InferencePool: a set of rollout workers. A `TrainingRun` makes one; an admin may add more, in this cluster or in another one.

A pool knows of its run only what a stranger's machine knows: where discovery is, the run's public key and the roster that it signed. These are
in the run's ConfigMap `<run>-join`; for a pool in another cluster, an admin copies it there.
"""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import RunName, SpecModel
from shoal_operator.api.base import ChildMeta, ObjectName, PoolName, Quantity, Resources, ScaledStatus


class InferencePoolSpec(SpecModel):
    """Which run the workers serve, how many there are, and what they need."""

    run: RunName = Field(..., description="Name of the run that is served.")
    pool: PoolName = Field("pool", description="Name of the pool, as nodes report it at discovery.")
    join_config_map: ObjectName | None = Field(
        None, description="ConfigMap that says how to join the run; `<run>-join` if not set."
    )
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
