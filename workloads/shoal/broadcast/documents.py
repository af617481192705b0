"""The signed documents of one version, from whichever source has them, polled for while the version is still being made.

In: the version wanted, its sources. Out: verified documents. A source that sends what the trainer did not sign is blamed, and the next one asked.
Called by `transfer`, and by `chain`, which reads opening records to plan its way.
"""

from collections.abc import Callable
from typing import TypeVar

from prometheus_client import Counter

from shoal import telemetry
from shoal.broadcast import pieces
from shoal.broadcast.download import Denied, Downloader, NotYet, SourceFailed
from shoal.broadcast.pieces import BadPiece, OtherOpening, WantedVersion
from shoal.broadcast.sources import Sources
from shoal.contracts import keys
from shoal.contracts.signed import Signed
from shoal.contracts.weights import ShardDescriptor, VersionOpen, WeightsManifest
from shoal.retries import doubled

Piece = TypeVar("Piece")

FAILURES = Counter("shoal_broadcast_failures_total", "Failed downloads of a piece, by reason.", ["reason"])

POLL_SECONDS = 0.1
"""Pause before a piece that nobody has yet is asked for again: small against the seconds that a shard takes."""
LONGEST_PAUSE_SECONDS = 2.0
"""Pauses double up to this while every source fails: a relay that restarts is found soon, one that is away is not flooded."""


class Documents:
    """Reads documents of one version."""

    def __init__(self, wanted: WantedVersion, sources: Sources, downloader: Downloader) -> None:
        self._wanted = wanted
        self._sources = sources
        self._downloader = downloader
        self._log = telemetry.get_logger().bind(version=wanted.version)
        self._failures = 0

    @property
    def pause(self) -> float:
        """Seconds to wait before asking again for what was not there."""
        return doubled(self._failures, POLL_SECONDS, LONGEST_PAUSE_SECONDS)

    def opening(self) -> Signed[VersionOpen] | None:
        """`open.json`; None when nobody has it now."""
        return self._any("open.json", pieces.MAX_OPEN_BYTES, lambda data: pieces.read_open(data, self._wanted))

    def is_opened(self) -> bool:
        """Whether one source, drawn by weight, has an opening record; what it is worth `opening` finds out."""
        source = self._sources.pick(())
        if source is None:
            return False
        try:
            self._downloader.document(source, keys.version_open(self._wanted.version), pieces.MAX_OPEN_BYTES)
        except (NotYet, Denied):
            return False
        except SourceFailed as error:
            self.blame({source}, error)
            return False
        return True

    def sealing(self, record: VersionOpen) -> Signed[WeightsManifest] | None:
        """The seal; raises `OtherOpening` when it seals another record."""
        name = keys.seal_name(beside=self._wanted.beside)
        return self._any(name, pieces.MAX_MANIFEST_BYTES, lambda data: pieces.read_manifest(data, self._wanted, record))

    def descriptor(self, source: str, record: VersionOpen, index: int) -> Signed[ShardDescriptor]:
        """From this source; raises as `Downloader.document`, or `BadPiece`."""
        path = keys.version_descriptor(record.version, index, beside=self._wanted.beside)
        data = self._downloader.document(source, path, pieces.MAX_DESCRIPTOR_BYTES)
        return pieces.read_descriptor(data, self._wanted, record, index)

    def blame(self, sources: set[str], error: Exception) -> None:
        """Count a failure against each of them."""
        reason = "bad_piece" if isinstance(error, BadPiece) else "source_failed"
        FAILURES.labels(reason).inc()
        for source in sources:
            self._sources.failed(source)
        self._log.warning("a try failed", sources=sorted(sources), reason=reason, detail=str(error))

    def _any(self, name: str, max_bytes: int, read: Callable[[bytes], Piece]) -> Piece | None:
        tried: set[str] = set()
        failed = False
        while (source := self._sources.pick(tried)) is not None:
            tried.add(source)
            try:
                piece = read(self._downloader.document(source, keys.version(self._wanted.version) + name, max_bytes))
                self._failures = 0
                return piece
            except (NotYet, Denied):
                continue
            except OtherOpening:
                raise
            except (SourceFailed, BadPiece) as error:
                failed = True
                self.blame({source}, error)
        self._failures = self._failures + 1 if failed else 0
        return None
