"""Fetches the next lease and plans its rows while others are decoded, and keeps asking whether their steps are sealed.

In: the agent's answers, versions on disk, a `Wish`. Out: `PlannedLease`s, one at a time, each with the version that its rows will be of. `Worker`
runs `serve` on a thread of its own; the decoding loop (`generation`) only looks at what is there. A lease for another version than
the engine's is fetched only when nothing of the older is left to do: its time would run out meanwhile.
"""

import threading
import time
from collections.abc import Callable, Collection

from shoal.contracts.protocol import Lease, StepInfo
from shoal.inference.batch import PlannedLease
from shoal.inference.generation import Wish
from shoal.inference.weights import VersionOnDisk
from shoal.telemetry import STOP, get_logger

POLL_SECONDS = 1.0
"""Between questions while no lease is wanted: a lease that is lost costs a second of tokens more, and the orchestrator one request a node. Where
many nodes ask, the orchestrator tells a longer time. When a lease is wanted next, it is asked for at once."""
WANTING_SECONDS = 0.5
"""The same while one is wanted."""
LEASE_PAUSE_SECONDS = 1.0
"""Between refused leases: the step is full, or about to close."""
MOST_LEASES = 4
"""That are generated and handed in at a time: two fill the slots that a first one's last rows leave, more fill an engine of many slots."""

Plan = Callable[[StepInfo, Lease, VersionOnDisk], PlannedLease]


class LeaseDesk:
    """What the decoding loop knows of the world: the newest answer on the open step, and the next lease."""

    def __init__(
        self,
        *,
        step: Callable[[Wish | None], StepInfo | None],
        lease: Callable[[int, Collection[str] | None], Lease | None],
        newest: Callable[[int, int], VersionOnDisk | None],
        plan: Plan,
        failed: Callable[[Lease, Exception], None],
        wake: Callable[[], None],
        several: bool = False,
    ) -> None:
        """`lease` is asked with those that are held, where the orchestrator knows of several. `newest` gives the newest version on disk within two
        numbers; `failed` receives a lease that cannot be planned. `wake` is called when one has come."""
        self.info: StepInfo | None = None
        self.newest: VersionOnDisk | None = None
        """That the open step accepts, where rows may be of several versions."""
        self.most = 1
        self.shortage = "no-lease"
        self.asked = threading.Event()
        """A turn is due at once."""
        self._step = step
        self._lease = lease
        self._newest = newest
        self._plan = plan
        self._failed = failed
        self._wake = wake
        self.several = several
        self._lock = threading.Lock()
        self._wish: Wish | None = None
        self._ready: PlannedLease | None = None
        self._closed = False
        self._pace = 0.0  # as told last: an answer without a step tells none, and all ask then
        self._since: float | None = None
        self._paused_until = 0.0

    def want(self, wish: Wish | None) -> None:
        """Fetch a lease for this wish, or none."""
        with self._lock:
            if wish == self._wish:
                return
            news = wish is not None and (self._wish is None or wish.empty)
            self._wish = wish
        if news:
            self.asked.set()

    def take(self) -> PlannedLease | None:
        """The lease that has come, if one has."""
        with self._lock:
            ready, self._ready = self._ready, None
            if ready is not None:
                self._wish = None
            return ready

    def pause(self, seconds: float) -> None:
        """Fetch no lease for this time."""
        self._paused_until = time.monotonic() + seconds

    def close(self) -> None:
        """Fetch no more; `take` gives what had come before."""
        with self._lock:
            self._closed, self._wish = True, None
        self.asked.set()

    def serve(self) -> None:
        """Turn after turn until closed."""
        while not self._closed:
            self._since = time.monotonic()
            pause = self.turn()
            self._since = None
            self._rest(max(pause, self._pace))
            self.asked.clear()

    def _rest(self, seconds: float) -> None:
        """Wait until the next turn: this long, or until one is asked for or the version that is waited for is on disk."""
        end, info = time.monotonic() + seconds, self.info
        while not self.asked.wait(min(WANTING_SECONDS, max(0.0, end - time.monotonic()))):
            come = (
                info is not None and self.shortage == "no-version" and self._newest(info.min_version, info.max_version)
            )
            if come or time.monotonic() >= end:
                return

    @property
    def stuck_seconds(self) -> float:
        """Since the turn under way began; 0 between turns."""
        since = self._since
        return time.monotonic() - since if since is not None else 0.0

    def turn(self) -> float:
        """Ask for the open step and, where one is wanted, for a lease; how many seconds to wait then."""
        asked_for = self._wish
        info = self._step(asked_for)
        self.info = info
        if info is not None:
            self._pace = info.again_seconds or 0.0
        if self.several and info is not None:
            self.newest = self._newest(info.min_version, info.max_version)
        self.most = min(MOST_LEASES, info.leases or 1) if info is not None else self.most
        wish = self._wish
        if wish is None or self._ready is not None or len(wish.held) >= self.most:  # a wish may be of before the answer
            return POLL_SECONDS
        self.shortage = "no-lease"
        if asked_for is None or info is None or time.monotonic() < self._paused_until or STOP.is_set():
            return WANTING_SECONDS
        policy = self._version(info, wish)
        if policy is None:
            self.shortage = "no-version"
            return WANTING_SECONDS
        if not policy.is_same(wish.loaded) and not wish.empty:
            self.shortage = "swap"
            return WANTING_SECONDS
        lease = self._lease(info.step, wish.held if info.leases is not None else None)
        if lease is None:
            return LEASE_PAUSE_SECONDS
        try:
            planned = self._plan(info, lease, policy)
        except Exception as error:
            self._failed(lease, error)
            return LEASE_PAUSE_SECONDS
        with self._lock:
            self._ready = planned
        get_logger().debug("lease fetched", step=lease.step, submission=lease.submission, version=policy.version)
        self._wake()
        return POLL_SECONDS

    def _version(self, info: StepInfo, wish: Wish) -> VersionOnDisk | None:
        """The newest version that the step accepts; while a swap may wait the one in the engine, if it is still what the trainer signed."""
        loaded = wish.loaded
        if wish.may_wait and info.min_version <= loaded.version <= info.max_version:
            held = self._newest(loaded.version, loaded.version)
            if held is not None and held.is_same(loaded):
                return held
        return self._newest(info.min_version, info.max_version)
