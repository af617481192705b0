"""Who leads: the rules of a Lease (coordination.k8s.io/v1) as a state machine. Pure; `lease.py` feeds it and does what it says.

Only this replica's own clock counts: a lease is over when it has not changed for its duration *as seen here*, whatever its times say. A leader
that could not renew for `renew_deadline` seconds must be gone by then; that is less than the duration, so there are never two.
"""

from dataclasses import dataclass
from enum import Enum

JITTER = 0.2
"""Share of the retry period that is random, so that candidates do not meet at each try."""


@dataclass(frozen=True)
class ElectionTiming:
    """Seconds. A replica that was killed is followed after at most `duration` and two retries with their jitter: 14 + 2 * 1.8 < 18.

    An API server may be away for ten seconds, as in a restart, before its leader gives up.
    """

    duration: int = 14
    renew_deadline: float = 11.0
    retry: float = 1.5

    @classmethod
    def of(cls, duration: int) -> "ElectionTiming":
        """The same proportions for another duration: longer where the API server is away for longer, and failover may be slower."""
        return cls(duration, duration * cls.renew_deadline / cls.duration, duration * cls.retry / cls.duration)


@dataclass(frozen=True)
class ElectionRecord:
    """What a Lease says. `version` is its resourceVersion: it changes with each renewal."""

    holder: str
    duration: float
    version: str
    transitions: int = 0


class Move(Enum):
    """What to do with the Lease now."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


class Election:
    """One replica's view of the Lease."""

    def __init__(self, identity: str, timing: ElectionTiming = ElectionTiming()) -> None:
        self.identity, self.timing = identity, timing
        self.record: ElectionRecord | None = None
        self._changed_at = 0.0
        self._renewed_at: float | None = None

    def see(self, record: ElectionRecord | None, now: float) -> None:
        """Note the Lease as read or written; None when there is none."""
        if record is None or self.record is None or record.version != self.record.version:
            self._changed_at = now
        self.record = record

    def move(self, now: float) -> Move:
        """The next action, after the Lease was read."""
        if self.record is None:
            return Move.CREATE
        if self.record.holder == self.identity:
            return Move.RENEW
        if not self.record.holder or now - self._changed_at >= self.record.duration:
            return Move.TAKE
        return Move.WAIT

    def wrote(self, record: ElectionRecord, sent_at: float, now: float) -> None:
        """A write by this replica was accepted; it holds from the moment it was sent."""
        self.see(record, now)
        self._renewed_at = sent_at

    def refused(self) -> None:
        """Another replica was faster: the next read shows which."""
        self.record = None if self.record is None else ElectionRecord("?", self.timing.duration, "")

    def leads(self, now: float) -> bool:
        """Whether this replica leads and may write."""
        return self._renewed_at is not None and now - self._renewed_at < self.timing.renew_deadline

    def lost(self, now: float) -> bool:
        """Whether it led and no longer may: another holds the Lease, or it was not renewed in time. The process must end."""
        if self._renewed_at is None:
            return False
        other = self.record is not None and self.record.holder not in (self.identity, "?")
        return other or not self.leads(now)
