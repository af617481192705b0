"""What a person chooses about relays, and `config/relay.json`, which the processes of a relay pod read."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import Contract, SpecModel
from shoal.contracts.newer import from_newer_json
from shoal.contracts.protocol import Url
from shoal.contracts.run import RunConfig, home

OUTSIDE_PORT = 8443
"""Where a relay's nginx serves clients outside the cluster, with a certificate or behind load balancers that send a PROXY header."""
Network = Annotated[str, StringConstraints(max_length=49, pattern=r"^[0-9a-fA-F:.]+(/[0-9]{1,3})?$")]
"""An address or a CIDR block; nginx says at its start what is wrong with one that is neither."""


class RateLimits(SpecModel):
    """Limits of one node at one relay; nodes are told apart by their token. Nodes behind one address share what `address*` gives."""

    connections: int = Field(64, ge=1, le=4096, description="Most connections of a node at once.")
    requests_per_second: int = Field(
        200, ge=1, le=10_000, description="Most requests of a node a second. Short bursts of twice the rate pass."
    )
    bytes_per_second: int | None = Field(
        None, ge=1024, le=1 << 40, description="Most bytes a second of one connection; absent: no limit."
    )
    address_connections: int = Field(512, ge=1, le=65_535, description="Most connections of one address at once.")
    address_requests_per_second: int = Field(
        2000,
        ge=1,
        le=100_000,
        description="Most requests of one address a second. Short bursts of twice the rate pass.",
    )


class RelayConfig(Contract):
    """`config/relay.json`: made by the operator from a RelayServer."""

    schema_version: Literal[1] = 1
    kept_versions: int = Field(default=5, ge=2, le=100, description="policy versions held (paper section 2.2)")
    rate_limits: RateLimits = RateLimits()
    sources: list[Url] = Field(
        default_factory=list,
        max_length=16,
        description="relays that this one copies from, in a tree; none: the run's origin",
    )
    disk_bytes: int | None = Field(
        default=None, ge=1 << 20, description="most bytes of disk that versions may take; None: all except a reserve"
    )
    eviction_seconds: int = Field(
        default=20, ge=1, le=20, description="seconds that transfers may continue after their node is evicted"
    )
    trusted_proxies: list[Network] = Field(
        default_factory=list,
        max_length=64,
        description="load balancers (CIDR) in front of the outside listener; they begin each connection with a PROXY header",
    )


def load_relay_config(run: RunConfig) -> RelayConfig:
    """Read `config/relay.json`; without one (an older operator) the run's own number of versions and the default limits."""
    path = home() / "config" / "relay.json"
    if not path.is_file():
        return RelayConfig(kept_versions=run.kept_versions)
    return from_newer_json(RelayConfig, path.read_bytes())
