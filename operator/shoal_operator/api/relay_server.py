"""RelayServer: the nginx relays of a run, which serve weights so that workers never see the trainer."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import RunName, SpecModel
from shoal.contracts.protocol import Url
from shoal.contracts.relays import Network, RateLimits
from shoal_operator.api.base import ChildMeta, Resources, ScaledStatus, Size
from shoal_operator.api.exposure import Exposure
from shoal_operator.api.pods import PodTemplate, RelayImages
from shoal_operator.api.volumes import ClaimRetention, Volume


class RelayFields(SpecModel):
    """Settings of relays, whoever makes them."""

    replicas: int = Field(
        2, ge=0, le=256, description="Number of relays. Clients get the list of all; nothing balances between them."
    )
    kept_versions: int = Field(
        5,
        ge=2,
        le=100,
        description="Policy versions that relays keep. With fewer than asyncLevel + 1, slow workers miss the one they need.",
    )
    rate_limits: RateLimits = Field(default_factory=RateLimits, description="Limits of one node at one relay.")
    sources: list[Url] = Field(
        [],
        max_length=16,
        description="URLs of relays that these copy from; any of them will do. Empty: the run's origin.",
    )
    exposure: Exposure = Field(default_factory=Exposure, description="How nodes outside the cluster reach the relays.")
    trusted_proxies: list[Network] = Field(
        [],
        max_length=64,
        description="Networks (CIDR) of load balancers that send a PROXY header. If given, every connection from outside must come through them.",
    )
    resources: Resources = Field(default_factory=Resources, description="Resources of one relay.")
    cache_size: Size = Field("20Gi", description="Size of each relay's volume for the kept versions.")
    cache_volume: Volume | None = Field(None, description="That volume's claim.")
    claim_retention: ClaimRetention | None = Field(
        None, description="Claims of relays that go; absent: deleted with the RelayServer, kept when it is scaled in."
    )
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="Placement and labels of the pods.")


class RelayServerTemplate(RelayFields):
    """The relays that the run makes; they carry weights from the trainer to the workers."""


class RelayServerSpec(RelayFields):
    """Which run the relays serve, how many there are, and what they need."""

    run: RunName = Field(..., description="Name of the run whose weights are relayed.")
    images: RelayImages = Field(default_factory=RelayImages, description="Images instead of the release's.")


class RelayServerStatus(ScaledStatus):
    """State of the relays."""

    addresses: list[Annotated[str, StringConstraints(max_length=500)]] = Field(
        default_factory=list,
        max_length=256,
        description="URLs of the relays from outside the cluster, if `exposure` makes any.",
    )


class RelayServer(SpecModel):
    """The relays of a run."""

    api_version: Literal["shoal.dev/v1alpha1"] = "shoal.dev/v1alpha1"
    kind: Literal["RelayServer"] = "RelayServer"
    metadata: ChildMeta
    spec: RelayServerSpec
    status: RelayServerStatus | None = None
