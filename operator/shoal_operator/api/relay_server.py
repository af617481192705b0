"""RelayServer: the nginx relays of a run, which serve weights so that workers never see the trainer."""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import RunName, SpecModel
from shoal_operator.api.base import ChildMeta, Quantity, Resources, ScaledStatus


class RelayServerSpec(SpecModel):
    """Which run the relays serve, how many there are, and what they need."""

    run: RunName = Field(..., description="Name of the run whose weights are relayed.")
    replicas: int = Field(2, ge=0, le=256, description="Relays; each is listed singly, nothing balances between them.")
    resources: Resources = Field(default_factory=Resources, description="Resources of one relay.")
    cache_size: Quantity = Field("20Gi", description="Volume of each relay for the last five versions.")


class RelayServer(SpecModel):
    """The relays of a run."""

    api_version: Literal["shoal.dev/v1alpha1"] = "shoal.dev/v1alpha1"
    kind: Literal["RelayServer"] = "RelayServer"
    metadata: ChildMeta
    spec: RelayServerSpec
    status: ScaledStatus | None = None
