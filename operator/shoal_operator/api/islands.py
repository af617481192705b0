"""`spec.trainer.islands`: the islands of one run, or the group of runs that a run is an island of (docs/diloco.md)."""

from typing import Annotated

from pydantic import Field, StringConstraints

from shoal.contracts.base import NodeId, RunName, SpecModel
from shoal.contracts.islands import MAX_ISLANDS, IslandsSettings
from shoal_operator.api.base import Time
from shoal_operator.api.exposure import Exposure

HostAndPort = Annotated[
    str,
    StringConstraints(
        max_length=260,
        pattern=r"^([A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]):"
        r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$",
    ),
]
"""`host:port`; an IPv6 address stands in brackets."""


Network = Annotated[
    str,
    StringConstraints(max_length=49, pattern=r"^[0-9a-fA-F:.]{2,45}/[0-9]{1,3}$"),
]
"""A range of addresses in CIDR notation."""


class IslandGroup(SpecModel):
    """Runs that are islands of one another, in this cluster and in others. Each has pools, steps and versions of its own; their trainers exchange."""

    name: RunName = Field(..., description="Name of the group, the same in the manifests of all its runs.")
    members: dict[str, NodeId] = Field(
        default_factory=dict,
        max_length=MAX_ISLANDS,
        description="`status.islandPublicKey` of every run of the group by the run's name, this run's too, the same in all manifests. The run waits"
        " until it is complete.",
    )
    excluded: list[RunName] = Field(
        [],
        max_length=MAX_ISLANDS,
        description="Members that take part no more; the same in all manifests. Their keys stay in `members`, because they signed shared states.",
    )
    lighthouse: HostAndPort | None = Field(
        None, description="`host:port` of the lighthouse where the group meets. A lighthouse serves one group."
    )
    serve_lighthouse: bool = Field(
        False,
        description="Whether this run serves the lighthouse. The other runs name its `status.lighthouse` as their `lighthouse`.",
    )
    exposure: Exposure = Field(
        default_factory=Exposure, description="How runs in other clusters reach the lighthouse that this run serves."
    )
    networks: list[Network] = Field(
        [],
        max_length=64,
        description="Networks (CIDR) of the group's trainers in other namespaces and clusters, which may reach this run's trainer and lighthouse.",
    )


class IslandsSpec(IslandsSettings):
    """DiLoCo islands: trainers that exchange what they learnt every few hundred updates (docs/diloco.md). Exactly one of `count` and `group`."""

    count: int | None = Field(
        None,
        ge=2,
        le=MAX_ISLANDS,
        description="Islands of this run, each a trainer with the settings beside this one. Mode SFT only.",
    )
    group: IslandGroup | None = Field(
        None, description="The group of runs of which this run is one island; modes Train and SFT."
    )


Member = Annotated[str, StringConstraints(max_length=63)]
Members = Annotated[list[Member], Field(max_length=MAX_ISLANDS)]


class IslandDifferenceStatus(SpecModel):
    """A setting in which a member of the group differs from this run."""

    member: Member = Field(..., description="The run that differs.")
    setting: Annotated[str, StringConstraints(max_length=63)] = Field(..., description="Name of the setting.")
    values: Annotated[str, StringConstraints(max_length=200)] = Field(
        ..., description="Its values in that run and in this one."
    )


class IslandsStatus(SpecModel):
    """What the trainer says of its exchanges with other islands (docs/diloco.md)."""

    round: int = Field(0, ge=0, description="Rounds that made the state that islands share.")
    round_time: Time | None = Field(
        None, description="When the last round since the trainer's start was made, RFC 3339."
    )
    members: Members = Field([], description="Members of the last round.")
    missed: int = Field(0, ge=0, description="Exchanges that failed since that round.")
    differing: Annotated[list[IslandDifferenceStatus], Field(max_length=8 * MAX_ISLANDS)] = Field(
        [], description="Members whose settings differ. No round is made while there is one."
    )
    absent: Members = Field([], description="Members that missed the last exchange.")
    problem: Annotated[str, StringConstraints(max_length=500)] | None = Field(
        None, description="Why the last exchange failed."
    )
