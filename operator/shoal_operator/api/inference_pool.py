"""InferencePool: a set of rollout workers. A `TrainingRun` makes some; an admin may add more, in this cluster or in another one.

A pool knows of its run only what a stranger's machine knows: where discovery is, the run's public key and the roster that it signed. These are
in the run's ConfigMap `<run>-join`; for a pool in another cluster, an admin copies it there.
"""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import RunName, SpecModel, unset
from shoal.contracts.pools import (
    QUANTIZATION_FIELD,
    SAMPLER_FIELD,
    Admission,
    EngineSettings,
    PoolSampler,
    Quantization,
    Requirements,
    is_usual,
)
from shoal_operator.api.base import ChildMeta, ObjectName, PoolName, Resources, ScaledStatus, Size
from shoal_operator.api.pods import Gpus, PodTemplate, PoolImages
from shoal_operator.api.volumes import ClaimRetention, Volume


class PoolFields(SpecModel):
    """Settings of a pool, whoever makes it."""

    replicas: int = Field(2, ge=0, le=10_000, description="Rollout workers.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="Arguments of each worker's engine.")
    hosts_by: Literal["LeaderWorkerSet"] | None = Field(
        None,
        exclude_if=unset,
        description="What makes the pods of engines over several hosts. LeaderWorkerSet 0.8 or later must be there; it replaces all pods of an engine"
        " when one ends (docs/adr/0135). Absent: one StatefulSet has the pods of all engines, and containers start again in them.",
    )
    gpu: Gpus = Field(default_factory=Gpus, description="Accelerators of one worker.")
    open: bool = Field(
        False, description="Whether strangers' machines may join this pool; otherwise its own pods are its only nodes."
    )
    requirements: Requirements = Field(
        default_factory=Requirements, description="What a machine must have to be invited. It reports this itself."
    )
    admission: Admission = Field(
        default_factory=Admission, description="Which strangers' machines may join, when the pool is open."
    )
    sampler: PoolSampler = Field("gumbel-murmur3-1", exclude_if=is_usual, description=SAMPLER_FIELD)
    quantization: Quantization | None = Field(None, exclude_if=unset, description=QUANTIZATION_FIELD)
    group_size: int = Field(
        1,
        ge=1,
        le=64,
        description="Not used: each node works by itself. Manifests of 0.2.0 may have this field.",
    )
    resources: Resources = Field(default_factory=Resources, description="Resources of one worker's engine.")
    weights_size: Size = Field("20Gi", description="Size of each worker's volume for policy versions.")
    weights_volume: Volume | None = Field(
        None, description="That volume's claim. The small one with the node's key is of the same class."
    )
    weights_claim: ObjectName | None = Field(
        None,
        exclude_if=unset,
        description="Claim of yours that all pods of the pool share instead: one of them fetches each version for all. On one node ReadWriteOnce"
        " will do, on several it must be ReadWriteMany. Pools of one run may share one (docs/adr/0136).",
    )
    claim_retention: ClaimRetention | None = Field(
        None, description="Claims of workers that go; absent: deleted with the pool, kept when it is scaled in."
    )
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="Placement and labels of the pods.")


class InferencePoolTemplate(PoolFields):
    """A pool that the run makes."""

    name: PoolName = Field("pool", description="Name of the pool; its object is `<run>-<name>`.")
    min_replicas: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="With queueName: workers with which the run may start when its queue has no room for more; absent: all.",
    )
    max_replicas: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="With queueName: workers that the queue reserves, as many as an autoscaler may ask for; absent: replicas.",
    )


class InferencePoolSpec(PoolFields):
    """Which run the workers serve, how many there are, and what they need."""

    run: RunName = Field(..., description="Name of the run that is served.")
    pool: PoolName = Field("pool", description="Name of the pool, as nodes report it at discovery.")
    join_config_map: ObjectName | None = Field(
        None, description="ConfigMap that holds how to join the run; absent: `<run>-join`."
    )
    images: PoolImages = Field(default_factory=PoolImages, description="Images instead of the release's.")


class InferencePool(SpecModel):
    """A pool of rollout workers."""

    api_version: Literal["shoal.dev/v1alpha1"] = "shoal.dev/v1alpha1"
    kind: Literal["InferencePool"] = "InferencePool"
    metadata: ChildMeta
    spec: InferencePoolSpec
    status: ScaledStatus | None = None
