"""What DiLoCo islands tell each other: which state they have, and what they contribute to a round. Both are signed by the island's key.

Written and read by `shoal.islands`. A notice goes through the lighthouse, which nobody needs to trust with more than who meets whom; a contribution
goes before the bytes that it names, straight from island to island.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from shoal.contracts.base import Contract, RunName, Sha256Hex

IslandName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""An RFC 1123 label: islands are sorted by it, and means are made in that order."""

MeetingName = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}-[0-9]{1,20}-[0-9]{1,20}$")]
"""Of one meeting: quorum number, seconds and nanoseconds of its making, which no two meetings share."""

StoreAddress = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.:\[\]-]{1,255}:[0-9]{1,5}$")]


class IslandNotice(Contract):
    """An island comes to a round. `live`: it has stood in a round since it started; a joiner has not."""

    run: RunName
    island: IslandName
    round: int = Field(ge=0, description="rounds that made the state that it has")
    digest: Sha256Hex = Field(description="of that state, over all ranks")
    live: bool
    layout: Sha256Hex = Field(description="of ranks, names and shapes: islands of another layout cannot exchange")
    store: StoreAddress = Field(description="where the ranks of a meeting find each other, should this island be first")


class IslandContribution(Contract):
    """One rank's part of what an island learnt in a round."""

    run: RunName
    island: IslandName
    meeting: MeetingName
    round: int = Field(ge=0)
    rank: int = Field(ge=0)
    contributes: bool = Field(description="false in a joiner's first round, and where the vector was not finite")
    sha256: Sha256Hex = Field(description="of the bytes that follow")
    inner_seconds: float = Field(ge=0, le=1e7, description="time since the round before")
    position: int = Field(ge=0, description="how far it is in its training, in the trainer's own count")
