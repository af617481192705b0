"""What an island is told and what it says of a round: its place among the others, its settings, its own ranks, the outcome.

Plain values; made by the trainer, read by `island`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch.distributed as dist

from shoal.contracts.islands import ExchangeType
from shoal.crypto.keys import PrivateKey
from shoal.islands.outer import OuterSettings

Value = TypeVar("Value")
LONGEST_WAIT_SECONDS = 480.0
"""Other ranks of an island wait for the one that waits, in a collective that gives up after 600 s (`shoal.training.parallel`)."""


class RankAgreement(Protocol):
    """How the ranks of one island agree; `shoal.training.parallel.Ranks` is one."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def leader(self) -> bool: ...

    @property
    def group(self) -> dist.ProcessGroup | None: ...

    def broadcast(self, value: Value, what: str) -> Value: ...

    def all(self, flag: bool, what: str) -> bool: ...


@dataclass(frozen=True)
class IslandPlace:
    """Where an island stands: its name, its key and everybody's, the lighthouse's URL, and the addresses of its own store. `excluded` are those of
    the known whom nobody meets any more, and whose signatures vouch for what was shared with them."""

    run: str
    island: str
    key: PrivateKey = field(repr=False)
    known: Mapping[str, str]
    lighthouse: str
    bind: str
    advertised: str | None = None
    excluded: Collection[str] = ()


@dataclass(frozen=True)
class IslandSettings:
    """`wait_seconds`: how long a round waits for an island that is late (the lighthouse has the same); `join_seconds`: how long one that starts waits
    for a round of the others before `join` says that there was none; `copy_seconds`: longest that a joiner's copy of the state takes, and holds the
    others up; `transfer_seconds`: longest exchange of one vector, whatever its size. Raises ValueError for waits that other ranks would not sit out.
    """

    inner_steps: int = 500
    exchange: ExchangeType = "float16"
    outer: OuterSettings = field(default_factory=OuterSettings)
    wait_seconds: float = 60.0
    join_seconds: float = 300.0
    connect_seconds: float = 20.0
    copy_seconds: float = 240.0
    transfer_seconds: float = 240.0

    def __post_init__(self) -> None:
        if self.inner_steps < 1:
            raise ValueError(f"inner_steps is {self.inner_steps}; a round needs an update to exchange")
        waits = {
            "join_seconds": self.join_seconds,
            "2 * wait_seconds + connect_seconds": self.meeting_seconds,
            "connect_seconds + copy_seconds": self.connect_seconds + self.copy_seconds,
            "copy_seconds + transfer_seconds": self.copy_seconds + self.transfer_seconds,
        }
        for name, seconds in waits.items():
            if not 0 < seconds <= LONGEST_WAIT_SECONDS:
                raise ValueError(
                    f"{name} is {seconds:g} s; more than 0 and at most {LONGEST_WAIT_SECONDS:g} are possible"
                )

    @property
    def meeting_seconds(self) -> float:
        """How long a round waits until islands have met."""
        return 2 * self.wait_seconds + self.connect_seconds


@dataclass(frozen=True)
class Exchanged:
    """A round that was made. `contributors` are those whose vectors counted; `left_out` says of the others, and of those that counted less, why.
    `replaced`: this island's weights gave way to a state that it had no part in, as a joiner's do, and one's whose vector did not count."""

    round: int
    islands: list[str]
    contributors: list[str]
    left_out: dict[str, str]
    joined: bool
    position: int
    seconds: float
    sent_bytes: int
    replaced: bool = False
