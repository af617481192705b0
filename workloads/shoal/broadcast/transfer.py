"""Bringing one version here: several shards in flight over several sources, each checked, asked for while the version is still being made.

In: the version wanted, the sources (relays, or the origin alone), and a `Target` that keeps what was checked. Out: an `Outcome`. The opening
record comes first, then shards in any order as they appear, and the sealing manifest last; a shard that does not fit the seal is fetched again.
A flipped bit costs one shard from another source. Called by `relay` and `fetch`, whose targets differ and nothing else.
"""

import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar

from prometheus_client import Counter

from shoal import telemetry
from shoal.broadcast import pieces
from shoal.broadcast.download import Denied, Downloader, NotYet, SourceFailed
from shoal.broadcast.hashing import file_sha256
from shoal.broadcast.pieces import BadPiece, OtherOpening, Wanted
from shoal.broadcast.sources import Sources
from shoal.contracts import keys
from shoal.contracts.canonical import Signed
from shoal.contracts.weights import ShardDescriptor, VersionOpen, WeightsManifest

Piece = TypeVar("Piece")

RECEIVED = Counter("shoal_broadcast_received_bytes_total", "Bytes of shards received, those of failed tries included.")
FAILURES = Counter("shoal_broadcast_failures_total", "Tries of a piece that failed, by reason.", ["reason"])

POLL_SECONDS = 0.1
"""Pause before a piece that nobody has yet is asked for again: small against the seconds that a shard takes."""
LONGEST_PAUSE_SECONDS = 2.0
"""Pauses double up to this while every source fails: a relay that restarts is found soon, one that is away is not flooded."""
STALL_SECONDS = 60.0
"""With nothing new for so long the transfer ends; the caller looks which version is wanted now and goes on from what is here."""


class Round(Enum):
    """What came of asking every source once for a piece."""

    DONE = "done"
    ABSENT = "absent"
    FAILED = "failed"


class _Over(Exception):
    """The transfer ended while this thread was receiving."""


class Outcome(Enum):
    """How a transfer ended."""

    SEALED = "sealed"
    STALLED = "stalled"
    ABANDONED = "abandoned"
    CHANGED = "changed"
    """The version was opened anew before its seal: what is here belongs to other bytes."""


class Target(Protocol):
    """Keeps the checked pieces of one version."""

    def opened(self, signed: Signed[VersionOpen]) -> dict[int, str | None]:
        """Prepare for this record; returns the shards that are here already, with digests where known. May raise `OSError` for want of space."""

    def part(self, index: int) -> Path:
        """Where to collect the bytes of a shard that is not checked yet."""

    def put(self, signed: Signed[ShardDescriptor], part: Path) -> None:
        """Take over a checked shard. Called by one thread at a time."""

    def seal(self, signed: Signed[WeightsManifest]) -> None:
        """Every shard is here and fits the manifest."""


class Transfer:
    """One attempt at one version. `run` may be called once."""

    def __init__(
        self,
        wanted: Wanted,
        sources: Sources,
        downloader: Downloader,
        target: Target,
        *,
        in_flight: int = 4,
        stall_seconds: float = STALL_SECONDS,
        keep_on: Callable[[float], bool] = lambda _: True,
    ) -> None:
        """`keep_on` is asked at every turn, with the seconds since something new came, whether the version is still wanted."""
        self._wanted = wanted
        self._sources = sources
        self._downloader = downloader
        self._target = target
        self._in_flight = in_flight
        self._stall_seconds = stall_seconds
        self._keep_on = keep_on
        self._log = telemetry.get_logger().bind(version=wanted.version)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._todo: list[int] = []
        self._have: dict[int, str | None] = {}
        self._expected: list[str] | None = None
        self._trouble: Exception | None = None
        self._progress_at = time.monotonic()
        self._document_pause = POLL_SECONDS
        # Bytes of a shard that were had before are no progress: a relay that sends rubbish for ever must not keep a transfer alive.
        self._furthest: dict[int, int] = {}
        self.received_bytes = 0
        """Bytes of shards received so far, those of failed tries included."""

    def run(self) -> Outcome:
        """Fetch until sealed, or until there is a reason to stop. Raises what the target raised (no space, wrong weights)."""
        opened = self._await(lambda: self._document("open.json", pieces.MAX_OPEN_BYTES, self._read_open))
        if isinstance(opened, Outcome):
            return opened
        record = opened.document
        self._have = self._target.opened(opened)
        self._todo = [index for index in range(record.shard_count) if index not in self._have]
        with ThreadPoolExecutor(self._in_flight, thread_name_prefix="shard") as pool:
            threads = [pool.submit(self._work, record) for _ in range(self._in_flight)]
            try:
                outcome = self._complete(record)
            except OtherOpening as error:
                self._log.warning("the version was opened anew", detail=str(error))
                outcome = Outcome.CHANGED
            finally:
                self._over.set()
            for thread in threads:
                thread.result()
        return outcome

    def _complete(self, record: VersionOpen) -> Outcome:
        """Wait for the manifest, then for every shard to fit it; then seal."""
        manifest = self._await(
            lambda: self._document(
                "weights.json", pieces.MAX_MANIFEST_BYTES, lambda data: pieces.read_manifest(data, self._wanted, record)
            )
        )
        if isinstance(manifest, Outcome):
            return manifest
        with self._lock:
            self._expected = manifest.document.shards
            for index, digest in list(self._have.items()):
                if digest is not None and digest != self._expected[index]:
                    self._log.warning("shard does not fit the seal, fetching it again", shard=index)
                    del self._have[index]
                    heapq.heappush(self._todo, index)
        whole = self._await(lambda: True if len(self._have) == record.shard_count else None)
        if isinstance(whole, Outcome):
            return whole
        self._over.set()
        self._target.seal(manifest)
        return Outcome.SEALED

    def _await(self, poll: Callable[[], Piece | None]) -> Piece | Outcome:
        """Poll until there is a value, or until the transfer is stalled, unwanted or broken."""
        while True:
            if self._trouble is not None:
                raise self._trouble
            value = poll()
            if value is not None:
                self._progress_at = time.monotonic()
                return value
            idle = time.monotonic() - self._progress_at
            if not self._keep_on(idle):
                return Outcome.ABANDONED
            if idle > self._stall_seconds:
                return Outcome.STALLED
            if telemetry.STOP.wait(self._document_pause):
                return Outcome.ABANDONED

    def _work(self, record: VersionOpen) -> None:
        """A thread: take the lowest shard that is wanted, fetch it, put it back when nobody has it."""
        pause = POLL_SECONDS
        while not self._over.is_set():
            with self._lock:
                index = heapq.heappop(self._todo) if self._todo else None
            if index is None:
                self._over.wait(POLL_SECONDS)
                continue
            try:
                result = self._shard(record, index)
            except _Over:
                return
            except (
                Exception
            ) as error:  # the target's: no space, wrong weights; `_await` raises it in the caller's thread
                self._trouble = error
                return
            if result is Round.DONE:
                pause = POLL_SECONDS
                continue
            with self._lock:
                heapq.heappush(self._todo, index)
            self._over.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS) if result is Round.FAILED else POLL_SECONDS

    def _shard(self, record: VersionOpen, index: int) -> Round:
        """Ask every source once for a shard, in an order drawn by weight."""
        result = Round.ABSENT
        part = self._target.part(index)
        senders: set[str] = set()
        tried: set[str] = set()
        while not self._over.is_set() and (source := self._sources.pick(tried)) is not None:
            tried.add(source)
            started, count = time.monotonic(), 0

            def received(size: int, have: int) -> None:
                nonlocal count
                count += size
                RECEIVED.inc(size)
                with self._lock:
                    self.received_bytes += size
                    if have > self._furthest.get(index, 0):
                        self._furthest[index] = have
                        self._progress_at = time.monotonic()
                if self._over.is_set():
                    raise _Over

            try:
                signed = self._descriptor(source, record, index)
                shard = signed.document
                path = keys.version_shard(record.version, index)
                try:
                    self._downloader.shard(source, path, shard.size, part, received)
                finally:
                    senders |= {source} if count else set()
                if file_sha256(part) != shard.sha256:
                    part.unlink()
                    raise BadPiece(f"shard {index}: the bytes do not have the SHA-256 of the descriptor")
            except (NotYet, Denied):
                continue
            except (SourceFailed, BadPiece) as error:
                # Bytes of one part may have come from several sources: which of them was wrong cannot be known.
                result = Round.FAILED
                wrong_bytes = isinstance(error, BadPiece) and not part.exists()
                self._blame((wrong_bytes and senders) or {source}, error)
                if wrong_bytes:
                    senders = set()
                continue
            if count:
                self._sources.succeeded(source, count, time.monotonic() - started)
            with self._lock:
                self._target.put(signed, part)
                self._have[index] = shard.sha256
                self._progress_at = time.monotonic()
            return Round.DONE
        return result

    def _descriptor(self, source: str, record: VersionOpen, index: int) -> Signed[ShardDescriptor]:
        data = self._downloader.document(
            source, keys.version_descriptor(record.version, index), pieces.MAX_DESCRIPTOR_BYTES
        )
        signed = pieces.read_descriptor(data, self._wanted, record, index)
        if self._expected is not None and signed.document.sha256 != self._expected[index]:
            raise BadPiece(f"descriptor of shard {index} does not fit the seal of the version")
        return signed

    def _document(self, name: str, max_bytes: int, read: Callable[[bytes], Piece]) -> Piece | None:
        """A piece of the version from whichever source has it; None when none does now."""
        tried: set[str] = set()
        failed = False
        while (source := self._sources.pick(tried)) is not None:
            tried.add(source)
            try:
                return read(self._downloader.document(source, keys.version(self._wanted.version) + name, max_bytes))
            except (NotYet, Denied):
                continue
            except OtherOpening:
                raise
            except (SourceFailed, BadPiece) as error:
                failed = True
                self._blame({source}, error)
        self._document_pause = min(self._document_pause * 2, LONGEST_PAUSE_SECONDS) if failed else POLL_SECONDS
        return None

    def _read_open(self, data: bytes) -> Signed[VersionOpen]:
        return pieces.read_open(data, self._wanted)

    def _blame(self, sources: set[str], error: Exception) -> None:
        reason = "bad_piece" if isinstance(error, BadPiece) else "source_failed"
        FAILURES.labels(reason).inc()
        for source in sources:
            self._sources.failed(source)
        self._log.warning("a try failed", sources=sorted(sources), reason=reason, detail=str(error))
