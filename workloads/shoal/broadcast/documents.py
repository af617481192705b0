"""The signed documents of one version, from whichever source has them, polled for while the version is still being made.

In: the version wanted, its sources. Out: verified documents. A source that sends what the trainer did not sign is blamed, and the next one asked.
Called by `transfer`, and by `chain`, which reads opening records to plan its way.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
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
LOOKED_FOR = 16
"""Missing shards of a delta that are looked for to learn whether it is lost: those that come were asked for first, so the lowest tell."""
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

    def is_lost(self, record: VersionOpen, missing: Sequence[int]) -> bool:
        """Of the delta beside `record`: whether a piece is nowhere, though a source has the version in full, which it seals after the delta.

        The seal is looked for, and the first of the `missing` shards. A source that cannot be asked says nothing, and is asked no more.
        """
        sources = self._sources.urls()
        names = [keys.seal_name(beside=True)]
        for index in missing[:LOOKED_FOR]:
            names += [keys.descriptor_name(index, beside=True), keys.shard_name(index, beside=True)]
        sealed = {source for source in sources if self._seals_in_full(source, record)}
        for name in names if sealed else ():
            lacking = False
            for source in list(sources):
                try:
                    if self._downloader.has(source, keys.version(record.version) + name):
                        break
                    lacking = lacking or source in sealed
                except (Denied, SourceFailed):
                    sources.remove(source)
            else:
                if lacking:
                    self._log.warning("a piece of the delta beside a version is lost", piece=name)
                    return True
        return False

    def _seals_in_full(self, source: str, record: VersionOpen) -> bool:
        wanted = replace(self._wanted, beside=False)
        path = keys.version_weights(record.version)
        try:
            pieces.read_manifest(self._downloader.document(source, path, pieces.MAX_MANIFEST_BYTES), wanted, record)
        except (NotYet, Denied, SourceFailed, BadPiece):
            return False
        return True

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
