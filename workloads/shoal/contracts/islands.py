"""What DiLoCo islands tell each other: which state they have and who vouches for it, what they contribute to a round, and what came of it. All of it
is signed by the island's key.

Written and read by `shoal.islands`. A notice goes through the lighthouse, which nobody needs to trust with more than who meets whom; a contribution
goes before the bytes that it names, and an agreement after them, straight from island to island.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import Contract, NodeId, RunName, Sha256Hex, SignatureHex, SpecModel

ExchangeType = Literal["float32", "float16", "int8"]
"""How a pseudo-gradient travels."""

IslandName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""An RFC 1123 label: islands are sorted by it, and means are made in that order."""

MeetingName = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}-[0-9]{1,20}-[0-9]{1,20}$")]
"""Of one meeting: quorum number, seconds and nanoseconds of its making, which no two meetings share."""

StoreAddress = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.:\[\]-]{1,255}:[0-9]{1,5}$")]

MAX_ISLANDS = 16
"""Vectors go from everyone to everyone, so this is for few (docs/diloco.md)."""
MAX_COUNT = 999_999_999
"""Of rounds and positions: what others say goes into the description of the shared state, whose length is fixed."""
MAX_LINKS = 8
"""Of a certificate. It has one for each halving of the islands since most of them were there, and 16 can be halved four times."""


class IslandsSettings(SpecModel):
    """How islands exchange; the part of `spec.trainer.islands` that each of them is told (docs/diloco.md)."""

    inner_steps: int = Field(
        500, ge=1, le=1_000_000, description="Optimizer steps between two exchanges (arXiv:2407.07852: 500)."
    )
    exchange: ExchangeType = Field(
        "float16", description="Format in which islands exchange what they learnt. The sum is float32 in any case."
    )
    wait_seconds: float = Field(60.0, ge=1.0, le=200.0, description="Seconds that an exchange waits for a late island.")


class IslandTerms(Contract):
    """The islands as each of them is told: all public keys by name. With a `group` each is a run of its own, named as the run is; without one they
    are islands of one run. `publisher` makes the run's versions: in a group every run has its own."""

    peers: dict[IslandName, NodeId] = Field(min_length=2, max_length=MAX_ISLANDS)
    publisher: IslandName
    lighthouse: str = Field(pattern=r"^http://[^\s/]{1,255}:[0-9]{1,5}$", description="URL")
    settings: IslandsSettings
    group: RunName | None = Field(default=None, description="name of the group; None: islands of one run")
    excluded: list[IslandName] = Field(
        default_factory=list,
        max_length=MAX_ISLANDS,
        description="peers that do not meet any more; their keys still vouch for states",
    )


class IslandSharedTerms(Contract):
    """Settings that must be equal on all islands: a round between others would mean nothing, or could not be made."""

    inner_steps: int = Field(ge=1, le=1_000_000)
    exchange: ExchangeType
    base: Sha256Hex = Field(description="of the base model's weights, and of adapters' as they are before any training")
    layout: Sha256Hex = Field(description="of ranks, names and shapes of what is trained")
    islands: Sha256Hex = Field(description="of the names and public keys of all islands")


class IslandAgreement(Contract):
    """What came of a round, in the words of one members of that round: a vote, and with those of the others a certificate."""

    run: RunName = Field(description="or the group's name, where each island is a run; the same in all notices")
    meeting: MeetingName
    round: int = Field(
        ge=0, le=MAX_COUNT, description="rounds that made the state; the previous round where nobody contributed"
    )
    digest: Sha256Hex = Field(description="of the state after the round, over all ranks")
    members: list[IslandName] = Field(min_length=1, max_length=MAX_ISLANDS, description="who met, ascending")


class CertificateLink(Contract):
    """An agreement with the signatures of those who voted for it, by island."""

    agreement: IslandAgreement
    signatures: dict[IslandName, SignatureHex] = Field(min_length=1, max_length=MAX_ISLANDS)


class IslandNotice(Contract):
    """An island comes to a round. `live`: it has stood in a round since it started; a joiner has not. `trains`: it comes from training, with what
    it learnt; one that has just started does not.

    `certificate` ends with the agreement that made the state, and begins with one of at least half of all islands; none at round 0, whose state
    is the base model, which all have. `refuses` are those whom it prefers not to meet: they have just failed to copy the state in time. `holds`
    are those that it met with other terms not long ago, for whom it makes no round.
    """

    run: RunName
    island: IslandName
    round: int = Field(ge=0, le=MAX_COUNT, description="rounds that made the state that it has")
    digest: Sha256Hex = Field(description="of that state, over all ranks")
    live: bool
    trains: bool = False
    terms: IslandSharedTerms
    store: StoreAddress = Field(description="where the ranks of a meeting find each other, should this island be first")
    certificate: list[CertificateLink] = Field(default_factory=list, max_length=MAX_LINKS)
    refuses: list[IslandName] = Field(default_factory=list, max_length=MAX_ISLANDS)
    holds: list[IslandName] = Field(default_factory=list, max_length=MAX_ISLANDS)
    at_unix: float = Field(ge=0, le=1e12, description="when it was signed")


class IslandContribution(Contract):
    """One rank's part of what an island learnt in a round."""

    run: RunName
    island: IslandName
    meeting: MeetingName
    round: int = Field(ge=0, le=MAX_COUNT)
    rank: int = Field(ge=0)
    contributes: bool = Field(description="false in a joiner's first round, and where the vector was not finite")
    sha256: Sha256Hex = Field(description="of the bytes that follow")
    inner_seconds: float = Field(ge=0, le=1e7, description="time since the round before")
    position: int = Field(ge=0, le=MAX_COUNT, description="its training progress, in the trainer's own count")


class IslandDifference(Contract):
    """A setting in which a member differs from the island that says so."""

    island: IslandName
    setting: str = Field(min_length=1, max_length=63, description="as the manifest has it")
    values: str = Field(max_length=200, description="there and here")


class IslandsProgress(Contract):
    """A trainer's report on its exchanges with other islands; goes with its progress to the orchestrator, and from there into the run's status."""

    round: int = Field(ge=0, le=MAX_COUNT, description="rounds that made the shared state")
    made_unix: float | None = Field(
        default=None, ge=0, description="when the last one since the trainer's start was made"
    )
    members: list[IslandName] = Field(default_factory=list, max_length=MAX_ISLANDS, description="members of that round")
    missed: int = Field(default=0, ge=0, description="exchanges since then that failed")
    differing: list[IslandDifference] = Field(
        default_factory=list,
        max_length=8 * MAX_ISLANDS,
        description="members with other settings; no round is made while there is one",
    )
    absent: list[IslandName] = Field(
        default_factory=list, max_length=MAX_ISLANDS, description="members that missed the last exchange"
    )
    problem: str = Field(default="", max_length=500, description="why the last one failed; empty: it succeeded")
