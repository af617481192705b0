"""Shards of a version on their way to `www/`: read from the checkpoint's files, as they are or as a delta, written to part files in order.

In: the opening record and the folders of the version and of its base. Out: one `Written` a shard, in order, its bytes in a part file, while the next
ones are being made; the digest of the whole stream comes along. Memory is bounded by a few shards for a delta and by a buffer for a full version.
Called by `publishing`.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Counter

from shoal.broadcast import cut
from shoal.contracts.weights import Encoding, VersionOpen
from shoal.storage import delta
from shoal.storage.checkpoint_files import WrongWeights, extents, read_shard

COPY_BYTES = 4 << 20
THREADS = 2
"""zstd and XOR leave the interpreter free; two threads of them keep up with 4 Gb/s, and the trainer has the other cores."""
AHEAD = 2  # shards encoded and not yet written: three in memory, each once new, once base, once packed

FULL_BYTES = Counter("shoal_origin_stream_bytes_total", "Bytes of published versions, assembled.")
WIRE_BYTES = Counter("shoal_origin_wire_bytes_total", "Bytes of published versions, as sent.")


@dataclass(frozen=True)
class Written:
    """A shard in its part file: bytes and SHA-256 as it travels."""

    index: int
    size: int
    sha256: str
    encoding: Encoding


class ShardWriter:
    """Writes the shards of one version, in order, to `part(index)`."""

    def __init__(self, record: VersionOpen, folder: Path, base: Path | None, part: Callable[[int], Path]) -> None:
        """`base` is the folder of `record.base`, whose bytes the caller has checked; it is needed for a delta only."""
        self._record = record
        self._folder = folder
        self._base = base
        self._part = part
        self._stream = hashlib.sha256()

    def stream_sha256(self) -> str:
        """Of all shards so far, assembled."""
        return self._stream.hexdigest()

    def shards(self) -> Iterator[Written]:
        """Raises `cut.CannotCut` when a file became shorter than the record says."""
        for written in self._deltas() if self._record.base is not None else self._copies():
            start, end = self._record.shard_bounds(written.index)
            FULL_BYTES.inc(end - start)
            WIRE_BYTES.inc(written.size)
            yield written

    def _copies(self) -> Iterator[Written]:
        """As they are; streamed, so that no whole shard is ever in memory."""
        for index in range(self._record.shard_count):
            digest, size = hashlib.sha256(), 0
            with self._part(index).open("wb") as out:
                for extent in extents(self._record, index):
                    with (self._folder / extent.name).open("rb") as file:
                        file.seek(extent.start)
                        left = extent.length
                        while left:
                            data = file.read(min(left, COPY_BYTES))
                            if not data:
                                raise self._shorter(extent.name)
                            out.write(data)
                            digest.update(data)
                            self._stream.update(data)
                            left -= len(data)
                            size += len(data)
            yield Written(index, size, digest.hexdigest(), "full")

    def _deltas(self) -> Iterator[Written]:
        """Encoded ahead by threads, given in order."""
        pending: deque[Future[tuple[bytearray, Written]]] = deque()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="encode") as pool:
            try:
                following = iter(range(self._record.shard_count))
                for index in following:
                    pending.append(pool.submit(self._encode, index))
                    if len(pending) > AHEAD:
                        yield self._take(pending)
                while pending:
                    yield self._take(pending)
            finally:
                for future in pending:
                    future.cancel()

    def _take(self, pending: "deque[Future[tuple[bytearray, Written]]]") -> Written:
        data, written = pending.popleft().result()
        self._stream.update(data)
        return written

    def _encode(self, index: int) -> tuple[bytearray, Written]:
        assert self._base is not None
        assert self._record.base is not None
        try:
            data = read_shard(self._record, self._folder, index)
            base = read_shard(self._record, self._base, index)
        except WrongWeights as error:
            raise cut.CannotCut(str(error)) from error
        packed = delta.encode(data, base, self._record.base.item_size)
        travelling = data if packed is None else packed
        self._part(index).write_bytes(travelling)
        digest = hashlib.sha256(travelling).hexdigest()
        return data, Written(index, len(travelling), digest, "full" if packed is None else "delta")

    def _shorter(self, name: str) -> cut.CannotCut:
        return cut.CannotCut(f"{self._folder.name}/{name} became shorter during the read")
