"""Shards of a version on their way to `www/`: read from the checkpoint's files, as they are or as a delta, written to part files side by side.

In: the opening record and the folders of the version and of its base. Out: one `Written` a shard, as soon as its bytes are in a part file. Each
byte is hashed once as assembled, and once more only as part of a delta. An anchor and the delta beside it are written in one pass. Memory is bounded
by `delta.MOST_BYTES` for a delta and by a few buffers for a full version. Called by `publishing`.
"""

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Counter

from shoal.broadcast import cut
from shoal.contracts.weights import DeltaEncoding, Encoding, VersionOpen
from shoal.storage import delta
from shoal.storage.checkpoint_files import WrongWeights, extents, read_shard

COPY_BYTES = 4 << 20
MOST_COPIERS = 8
MOST_ENCODERS = 16
"""Shards of a delta in hand at most. Each is there new and as the base, and three times its size is allocated to encode it, whatever changed."""

FULL_BYTES = Counter("shoal_origin_stream_bytes_total", "Bytes of published versions, assembled.")
WIRE_BYTES = Counter("shoal_origin_wire_bytes_total", "Bytes of published versions, as sent.")


def copiers() -> int:
    """Threads for a full version: SHA-256 takes 1.8 GB/s of one core, and most cores are the trainer's. Eight of them take 65.5 GB in 5 s."""
    return max(2, min(MOST_COPIERS, len(os.sched_getaffinity(0)) // 4))


def encoders(shard_bytes: int) -> int:
    """Threads for a delta: one for each core that this process may run on, fewer where shards are large.

    NumPy, zstd and SHA-256 leave the interpreter free.
    """
    return min(delta.side_by_side(shard_bytes), max(2, min(MOST_ENCODERS, len(os.sched_getaffinity(0)))))


@dataclass(frozen=True)
class Sent:
    """Bytes in a part file, as they travel: how many, their SHA-256, and what they are."""

    size: int
    sha256: str
    encoding: Encoding | DeltaEncoding


@dataclass(frozen=True)
class Written:
    """A shard in its part file, and the SHA-256 of its bytes as assembled. `beside`: the same as a delta, where one lies beside the version."""

    index: int
    assembled: str
    sent: Sent
    beside: Sent | None = None

    def each(self) -> list[tuple[bool, Sent]]:
        """What was written, whether it lies beside the version, that first: most clients wait for it."""
        return ([(True, self.beside)] if self.beside is not None else []) + [(False, self.sent)]


class ShardWriter:
    """Writes the shards of one version to `part(index)`, some at a time."""

    def __init__(self, record: VersionOpen, folder: Path, base: Path | None, part: Callable[[int, bool], Path]) -> None:
        """`part` gives the file of a shard, of the version or beside it.

        `base` is the folder of `record.base` or `record.beside`, whose bytes the caller has checked; it is needed for a delta only."""
        self._record = record
        self._folder = folder
        self._base = base
        self._part = part
        self._against = record.base or record.beside

    def write(self, ready: Callable[[int], None], done: Callable[[Written], None]) -> list[Written]:
        """All shards, in order. `ready` returns when the bytes of a shard may be read; `done` gets each one written, in several threads.

        Raises what these two raise, and `cut.CannotCut` when a file became shorter than the record says.
        """
        make, workers = self._copy, copiers()
        if self._against is not None:
            make, workers = self._encode, encoders(self._record.largest_shard)
        in_hand, failed = threading.Semaphore(workers), threading.Event()

        def one(index: int) -> Written:
            try:
                written = make(index)
                done(written)
            except BaseException:
                failed.set()
                raise
            finally:
                in_hand.release()
            start, end = self._record.shard_bounds(index)
            FULL_BYTES.inc(end - start)
            WIRE_BYTES.inc(sum(sent.size for _, sent in written.each()))
            return written

        pending: list[Future[Written]] = []
        with ThreadPoolExecutor(workers, thread_name_prefix="cut") as pool:
            for index in range(self._record.shard_count):
                ready(index)
                in_hand.acquire()
                if failed.is_set():
                    break
                pending.append(pool.submit(one, index))
        return [each.result() for each in pending]

    def _copy(self, index: int) -> Written:
        """As it is; streamed, so that no whole shard is ever in memory."""
        digest, size = hashlib.sha256(), 0
        with self._part(index, False).open("wb") as out:
            for extent in extents(self._record, index):
                with (self._folder / extent.name).open("rb", buffering=0) as file:
                    file.seek(extent.start)
                    left = extent.length
                    while left:
                        data = file.read(min(left, COPY_BYTES))
                        if not data:
                            raise cut.CannotCut(f"{self._folder.name}/{extent.name} became shorter during the read")
                        out.write(data)
                        digest.update(data)
                        left -= len(data)
                        size += len(data)
        return Written(index, digest.hexdigest(), Sent(size, digest.hexdigest(), "full"))

    def _encode(self, index: int) -> Written:
        assert self._base is not None
        assert self._against is not None
        try:
            data = read_shard(self._record, self._folder, index)
            base = read_shard(self._record, self._base, index)
        except WrongWeights as error:
            raise cut.CannotCut(str(error)) from error
        assembled = hashlib.sha256(data).hexdigest()
        packed = delta.encode(data, base, self._against.item_size)
        full = Sent(len(data), assembled, "full")
        beside = self._record.beside is not None
        if beside or packed is None:
            self._part(index, False).write_bytes(data)
        if packed is None:
            if beside:
                self._part(index, True).write_bytes(data)
            return Written(index, assembled, full, full if beside else None)
        encoding, small = packed
        self._part(index, beside).write_bytes(small)
        changed = Sent(len(small), hashlib.sha256(small).hexdigest(), encoding)
        return Written(index, assembled, full, changed) if beside else Written(index, assembled, changed)
