"""Which leases the worker of this pod holds, as its agent has seen them go by; how they go back when no file will come.

Comes in: leases, receipts and returns that pass the agent's socket. Goes out: `LeaseReturn`s to the orchestrator. A worker that was killed can say
nothing any more; the next one in its place goes on with what it held (ADR 0140) or gives it back. When the pod ends, the agent gives it back.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.contracts.protocol import HeldByPod, Lease, LeaseReturn
from shoal.telemetry import get_logger
from shoal.transport import Refused, SignedClient, Unavailable

RETURN_SECONDS = 2.0
"""For one return: a lease that cannot be given back now runs out by itself."""
LATE_SECONDS = 3600.0
"""A lease this long over is forgotten. Its end is by the orchestrator's clock, which may differ from ours, and an upload may make it later."""
POLL_SECONDS = 0.1
UPLOAD_SECONDS = 300.0
"""For which a worker waits for an upload that began before its lease was over."""
REMEMBERED = 16
"""Leases by whose duration the next one's is told: a new version or longer answers show within as many."""
MARGIN = 1.25
"""A lease may take so much longer than the longest of those."""


class HeldLeases:
    """Leases given to this pod and neither handed in nor given back. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        self._begun: dict[str, float] = {}  # monotonic
        self._handing_in: list[str] = []
        self._took: deque[float] = deque(maxlen=REMEMBERED)  # seconds

    def note(self, lease: Lease) -> None:
        """The worker got this lease."""
        with self._lock:
            self._begun = {name: begun for name, begun in self._begun.items() if name in self._leases}
            self._begun[lease.lease] = time.monotonic()
            over = time.time() - LATE_SECONDS
            self._leases = {name: held for name, held in self._leases.items() if held.expires_unix > over}
            self._leases[lease.lease] = lease

    def note_rest(self, lease: str, rest: Lease) -> None:
        """Part of a lease was handed in, and its worker goes on with the rest. It takes as long as the lease does."""
        with self._lock:
            self._leases.pop(lease, None)
            self._begun[rest.lease] = self._begun.pop(lease, time.monotonic())
            self._leases[rest.lease] = rest

    def forget(self, lease: str, *, done: bool = False) -> None:
        """Its file was taken (`done`), or refused for good, or it was given back."""
        with self._lock:
            self._leases.pop(lease, None)
            begun = self._begun.pop(lease, None)
            if done and begun is not None:
                self._took.append(time.monotonic() - begun)

    def expected_seconds(self, most: float) -> float:
        """How long another lease will take; `most`, its whole life, while none was done."""
        with self._lock:
            return min(max(self._took) * MARGIN, most) if self._took else most

    def names(self) -> list[str]:
        with self._lock:
            return list(self._leases)

    def told(self, stays: bool) -> HeldByPod:
        """What a worker is told that comes in the place of another."""
        with self._lock:
            return HeldByPod(leases=list(self._leases.values()), handing_in=sorted(self._handing_in), stays=stays)

    @contextmanager
    def handing_in(self, lease: str) -> Iterator[None]:
        """While a file of this lease is on its way, which may outlive the worker that asked for it."""
        with self._lock:
            self._handing_in.append(lease)
        try:
            yield
        finally:
            with self._lock:
                self._handing_in.remove(lease)

    def unfinished(self) -> int:
        """How many may still be handed in: one whose time is over, upload included, is waited for no more."""
        over = time.time() - UPLOAD_SECONDS
        with self._lock:
            return sum(held.expires_unix > over for held in self._leases.values())

    def wait_until_none(self, seconds: float) -> bool:
        """Wait until nothing is held, for this long at most; whether it happened."""
        ends = time.monotonic() + seconds
        while self.names() and time.monotonic() < ends:
            time.sleep(POLL_SECONDS)
        return not self.names()


def give_back(held: HeldLeases, client: SignedClient, node: str, lease: str | None) -> int:
    """Give one lease back, or all that are held; returns how many the orchestrator took.

    Whatever it answers they are held no more: one that it did not take runs out there.
    """
    taken = 0
    for name in held.names() if lease is None else [lease]:
        try:
            client.call("POST", "/v1/returns", LeaseReturn(node=node, lease=name), deadline_seconds=RETURN_SECONDS)
            taken += 1
        except (Refused, Unavailable) as error:
            get_logger().warning("could not give the lease back; it will expire", lease=name, reason=str(error)[:300])
        held.forget(name)
    return taken
