"""Bringing one version here: several shards in flight over several sources, each checked, asked for while the version is still being made.

In: the version wanted, the sources (relays, or the origin alone), and a `Target` that keeps what was checked. Out: an `TransferOutcome`. The opening
record comes first, then shards in any order as they appear, and the sealing manifest last; a shard that does not fit the seal is fetched again.
A flipped bit costs one shard from another source; a slow relay loses its shard to another one, from the byte it had reached; the last shards are
asked for twice when the first relay is slow. Called by `relay` and `fetch`, whose targets differ and nothing else.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Protocol, TypeVar

from prometheus_client import Counter

from shoal import telemetry
from shoal.broadcast.documents import LONGEST_PAUSE_SECONDS, POLL_SECONDS, Documents
from shoal.broadcast.download import BrokenOff, Cancelled, Denied, Downloader, NotYet, SourceFailed
from shoal.broadcast.flights import Flight, Flights
from shoal.broadcast.parts import ShardPart
from shoal.broadcast.pieces import BadPiece, OtherOpening, WantedVersion
from shoal.broadcast.sources import Sources
from shoal.contracts import keys
from shoal.contracts.signed import Signed
from shoal.contracts.weights import ShardDescriptor, VersionOpen, WeightsManifest
from shoal.retries import Backoff

Piece = TypeVar("Piece")

RECEIVED = Counter("shoal_broadcast_received_bytes_total", "Bytes of shards received, including failed attempts.")
STOLEN = Counter("shoal_broadcast_stolen_total", "Shards taken from a slow source and continued elsewhere.")
HEDGED = Counter(
    "shoal_broadcast_hedged_total", "Last shards of a version that were also requested from a second source."
)

STALL_SECONDS = 60.0
"""With nothing new for this long the transfer ends; the caller looks which version is wanted now and continues from what is here."""
UNSEALED_SECONDS = 1.0
"""Between looks for a manifest while shards are missing: it is needed last."""
LONGEST_ABSENT_SECONDS = 0.8
"""Between looks for a shard that nobody has yet, unless it is the lowest: that one is looked for all the time."""
SERVED_SECONDS = 5.0
"""A connection that broke off after this long was ended for the relay's own reasons: the shard goes on there, and the relay is not blamed."""
IN_FLIGHT = 4
"""Shards at once: enough to fill a link over several relays, and few enough that a shard is soon done."""


class Round(Enum):
    """The outcome of asking every source once for a piece."""

    DONE = "done"
    ABSENT = "absent"
    FAILED = "failed"


class TransferOutcome(Enum):
    """How a transfer ended."""

    SEALED = "sealed"
    STALLED = "stalled"
    ABANDONED = "abandoned"
    CHANGED = "changed"
    """The version was opened again before its seal: what is here belongs to other bytes."""


class WrongBytes(BadPiece):
    """A whole shard came, and it is not the one of its descriptor. `senders`: whose bytes it was made of."""

    def __init__(self, message: str, senders: set[str]) -> None:
        super().__init__(message)
        self.senders = senders


class Target(Protocol):
    """Keeps the checked pieces of one version."""

    def opened(self, signed: Signed[VersionOpen]) -> dict[int, str | None]:
        """Prepare for this record; returns the shards that are here already, with digests where known. May raise `OSError` when the volume is
        full."""

    def part(self, descriptor: ShardDescriptor, *, second: bool) -> ShardPart:
        """Collector of the bytes of a shard that is not checked yet; `second`: of a copy that is fetched beside the first one."""

    def put(self, signed: Signed[ShardDescriptor], part: ShardPart) -> None:
        """Take over a checked shard. Called by several threads, for different shards."""

    def seal(self, signed: Signed[WeightsManifest]) -> None:
        """Every shard is here and fits the manifest."""


class Transfer:
    """One attempt at one version. `run` may be called once."""

    def __init__(
        self,
        wanted: WantedVersion,
        sources: Sources,
        downloader: Downloader,
        target: Target,
        *,
        in_flight: int = IN_FLIGHT,
        stall_seconds: float = STALL_SECONDS,
        keep_on: Callable[[float], bool] = lambda _: True,
        may_seal: Callable[[], bool] = lambda: True,
    ) -> None:
        """`keep_on` is asked at every turn, with the seconds since something new came, whether the version is still wanted.

        `may_seal` is asked, when everything is here, until it says that the version may become visible.
        """
        self._beside = wanted.beside
        self._sources = sources
        self._downloader = downloader
        self._target = target
        self._documents = Documents(wanted, sources, downloader)
        self._in_flight = min(in_flight, downloader.in_flight or in_flight)
        self._flights = Flights(sources, self._in_flight)
        self._stall_seconds = stall_seconds
        self._keep_on = keep_on
        self._may_seal = may_seal
        self._log = telemetry.get_logger().bind(version=wanted.version)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._taken_over = threading.Event()
        """Set with every shard that is here: the last one must not wait for the next poll."""
        self._todo: list[int] = []
        self._have: dict[int, str | None] = {}
        # In `_have`, or on their way into it.
        self._claimed: set[int] = set()
        self._expected: list[str] | None = None
        self._trouble: Exception | None = None
        self._progress_at = time.monotonic()
        # Bytes of a shard that were had before are no progress: a relay that sends rubbish forever must not keep a transfer alive.
        self._furthest: dict[int, int] = {}
        # What collects a shard, kept from one source to the next, and whose bytes it has: if they are wrong, any of them may be to blame.
        self._parts: dict[tuple[int, bool, str], ShardPart] = {}
        self._senders: dict[ShardPart, set[str]] = {}
        # Shards that were nowhere: when to ask again (monotonic seconds), and the pause after that.
        self._absent: dict[int, tuple[float, float]] = {}
        self._seal_at = 0.0
        self.received_bytes = 0
        """Bytes of shards received so far, those of failed tries included."""

    def run(self) -> TransferOutcome:
        """Fetch until sealed, or until there is a reason to stop. Raises what the target raised (no space, wrong weights)."""
        opened = self._await(self._documents.opening)
        if isinstance(opened, TransferOutcome):
            return opened
        record = opened.document
        self._have = self._target.opened(opened)
        self._claimed = set(self._have)
        self._todo = [index for index in range(record.shard_count) if index not in self._have]
        with ThreadPoolExecutor(self._in_flight + 1, thread_name_prefix="shard") as pool:
            threads = [pool.submit(self._work, record) for _ in range(self._in_flight)]
            threads.append(pool.submit(self._mind))
            try:
                outcome = self._complete(record)
            except OtherOpening as error:
                self._log.warning("the version was opened again", detail=str(error))
                outcome = TransferOutcome.CHANGED
            finally:
                self._over.set()
                self._flights.end()
            for thread in threads:
                thread.result()
        return outcome

    def missing(self, record: VersionOpen) -> list[int]:
        """Shards that are not here, ascending; for after `run`."""
        with self._lock:
            return [index for index in range(record.shard_count) if index not in self._have]

    def _complete(self, record: VersionOpen) -> TransferOutcome:
        """Wait for the manifest, then for every shard to fit it; then seal."""
        manifest = self._await(lambda: self._sealing(record))
        if isinstance(manifest, TransferOutcome):
            return manifest
        with self._lock:
            self._expected = manifest.document.sent(beside=self._beside)
            for index, digest in list(self._have.items()):
                if digest is not None and digest != self._expected[index]:
                    self._log.warning("a shard does not match the seal; fetching it again", shard=index)
                    del self._have[index]
                    self._claimed.discard(index)
                    self._todo.append(index)
        whole = self._await(lambda: True if len(self._have) == record.shard_count else None, self._taken_over)
        if isinstance(whole, TransferOutcome):
            return whole
        self._over.set()
        allowed = self._await(self._allowed)
        if isinstance(allowed, TransferOutcome):
            return allowed
        self._target.seal(manifest)
        return TransferOutcome.SEALED

    def _sealing(self, record: VersionOpen) -> Signed[WeightsManifest] | None:
        """The manifest, if it is available; asked for often only when nothing else is missing."""
        with self._lock:
            missing = len(self._have) < record.shard_count
        if missing and time.monotonic() < self._seal_at:
            return None
        self._seal_at = time.monotonic() + UNSEALED_SECONDS
        return self._documents.sealing(record)

    def _allowed(self) -> bool | None:
        """Whether the version may become visible. Nothing is missing: to wait for it is not a stall."""
        self._progress_at = time.monotonic()
        return self._may_seal() or None

    def _await(self, poll: Callable[[], Piece | None], news: threading.Event | None = None) -> Piece | TransferOutcome:
        """Poll until there is a value, or until the transfer is stalled, unwanted or broken. At once when there are `news`."""
        while True:
            if self._trouble is not None:
                raise self._trouble
            value = poll()
            if value is not None:
                self._progress_at = time.monotonic()
                return value
            idle = time.monotonic() - self._progress_at
            if not self._keep_on(idle):
                return TransferOutcome.ABANDONED
            if idle > self._stall_seconds:
                return TransferOutcome.STALLED
            if news is None:
                telemetry.STOP.wait(self._documents.pause)
            elif news.wait(POLL_SECONDS):
                news.clear()
            if telemetry.STOP.is_set():
                return TransferOutcome.ABANDONED

    def _work(self, record: VersionOpen) -> None:
        """A thread: take the lowest shard that is wanted, fetch it, put it back when nobody has it; hedge when none is left."""
        backoff = Backoff(POLL_SECONDS, LONGEST_PAUSE_SECONDS)
        while not self._over.is_set():
            index, idle = self._next()
            try:
                if index is None:
                    again = self._flights.to_hedge() if idle else None
                    if again is None or self._hedge(record, *again) is not Round.DONE:
                        self._over.wait(POLL_SECONDS)
                    continue
                result = self._shard(record, index, set())
            except Cancelled:
                return
            except Exception as error:
                # The target's: no space, wrong weights; `_await` raises it in the caller's thread.
                self._trouble = error
                return
            self._landed(index, result)
            if result is Round.FAILED:
                self._over.wait(backoff.next())
            else:
                backoff.reset()

    def _next(self) -> tuple[int | None, bool]:
        """The lowest shard that is wanted and may be there, else None and whether all others are in flight."""
        now = time.monotonic()
        with self._lock:
            ready = [index for index in self._todo if self._absent.get(index, (0.0,))[0] <= now]
            if not ready:
                return None, not self._todo
            index = min(ready)
            self._todo.remove(index)
            return index, False

    def _landed(self, index: int, result: Round) -> None:
        """Shards are made in order: one that is there is news of the others, and of those that are not the lowest comes first."""
        with self._lock:
            if index not in self._claimed:
                self._todo.append(index)
            if result is Round.DONE:
                self._absent.clear()
            elif result is Round.ABSENT:
                _, pause = self._absent.get(index, (0.0, POLL_SECONDS))
                pause = POLL_SECONDS if index == min(self._todo, default=index) else pause
                self._absent[index] = (time.monotonic() + pause, min(pause * 2, LONGEST_ABSENT_SECONDS))

    def _mind(self) -> None:
        """A thread: take shards from sources that are too slow."""
        while not self._over.wait(POLL_SECONDS):
            self._flights.steal()

    def _hedge(self, record: VersionOpen, index: int, busy: str) -> Round:
        """Ask a source other than `busy` for the same shard, from its start: bytes of another part are not built upon."""
        HEDGED.inc()
        try:
            return self._shard(record, index, {busy}, second=True)
        finally:
            with self._lock:
                left = [part for (of, second, _), part in self._parts.items() if second and of == index]
            for part in left:
                self._forget(part)
            self._flights.hedge_over(index)

    def _shard(self, record: VersionOpen, index: int, tried: set[str], *, second: bool = False) -> Round:
        """Ask every source that is not in `tried` once for a shard, in an order drawn by weight."""
        result = Round.ABSENT
        while not self._over.is_set() and not self._here(index) and (source := self._sources.pick(tried)) is not None:
            tried.add(source)
            try:
                signed = self._documents.descriptor(source, record, index)
                if self._expected is not None and signed.document.sha256 != self._expected[index]:
                    raise BadPiece(f"descriptor of shard {index} does not match the seal of the version")
                if self._receive(source, signed, self._part(signed.document, second), tried):
                    return Round.DONE
            except (NotYet, Denied):
                continue
            except WrongBytes as error:
                result = Round.FAILED
                self._documents.blame(error.senders or {source}, error)
            except (SourceFailed, BadPiece) as error:
                result = Round.FAILED
                self._documents.blame({source}, error)
        return Round.DONE if self._here(index) else result

    def _part(self, descriptor: ShardDescriptor, second: bool) -> ShardPart:
        key = (descriptor.index, second, descriptor.encoding)
        with self._lock:
            part = self._parts.get(key)
        if part is None:  # a shard and its second copy have one thread each
            part = self._target.part(descriptor, second=second)
            with self._lock:
                self._parts[key] = part
        return part

    def _forget(self, part: ShardPart) -> None:
        """Nobody needs this copy."""
        part.drop()
        self._senders.pop(part, None)
        with self._lock:
            for key in [key for key, known in self._parts.items() if known is part]:
                del self._parts[key]

    def _receive(self, source: str, signed: Signed[ShardDescriptor], part: ShardPart, tried: set[str]) -> bool:
        """Fetch a shard's bytes from `source` into `part` and hand it over; True when the shard is here, from whomever.

        Raises as `Downloader.shard` does, and `WrongBytes` when what came is not the shard.
        """
        shard = signed.document
        flight = self._flights.start(shard.index, source, shard.size, shard.size - part.have, tried)

        def received(count: int) -> None:
            flight.received += count
            RECEIVED.inc(count)
            with self._lock:
                self.received_bytes += count
                if part.have > self._furthest.get(shard.index, 0):
                    self._furthest[shard.index] = part.have
                    self._progress_at = time.monotonic()

        path = keys.version_shard(shard.version, shard.index, beside=self._beside)
        try:
            self._downloader.shard(source, path, shard.size, part, received, flight.attempt)
        except Cancelled:
            if self._over.is_set():  # what came stays for the next transfer
                raise
            if not self._here(shard.index):
                STOLEN.inc()
                self._sources.slow(source, flight.received, flight.age())
                return False
            self._forget(part)
            return True
        except BrokenOff:
            if not self._was_served(flight):
                raise
            # A relay ends long transfers when it takes up a new configuration. It goes on by Range, there or elsewhere.
            self._sources.succeeded(source, flight.received, flight.age())
            tried.discard(source)
            return False
        finally:
            self._flights.land(flight)
            if flight.received:
                self._senders.setdefault(part, set()).add(source)
        if part.sha256() != shard.sha256:
            part.restart()
            raise WrongBytes(
                f"shard {shard.index}: the bytes do not have the SHA-256 of the descriptor",
                self._senders.pop(part, set()),
            )
        if flight.received:
            self._sources.succeeded(source, flight.received, flight.age())
        self._hand_over(signed, part)
        return True

    @staticmethod
    def _was_served(flight: Flight) -> bool:
        """Whether a connection that broke off had brought bytes for this long that its end is not a sign of a bad source."""
        return flight.age() >= SERVED_SECONDS and flight.received > 0

    def _hand_over(self, signed: Signed[ShardDescriptor], part: ShardPart) -> None:
        """Give a checked shard to the target, unless a second try of it was faster."""
        index = signed.document.index
        with self._lock:
            late = index in self._claimed
            self._claimed.add(index)
        if late:
            self._forget(part)
            return
        self._flights.end(index)
        self._target.put(signed, part)
        self._senders.pop(part, None)
        with self._lock:
            for key in [key for key in self._parts if key[0] == index]:
                del self._parts[key]  # a loser knows its own
            self._have[index] = signed.document.sha256
            self._progress_at = time.monotonic()
        self._taken_over.set()

    def _here(self, index: int) -> bool:
        with self._lock:
            return index in self._claimed
