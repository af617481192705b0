"""Shards of a version on their way to `www/`: read from the checkpoint's files, as they are or as a delta, written to part files side by side.

In: the opening record and the folders of the version and of its base. Out: one `Written` a shard, as soon as its bytes are in a part file. Each
byte is hashed once as assembled, and once more only as part of a delta. Memory is bounded by a few shards for a delta and by a few buffers for a
full version. Called by `publishing`.
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
from shoal.contracts.weights import Encoding, VersionOpen
from shoal.storage import delta
from shoal.storage.checkpoint_files import WrongWeights, extents, read_shard

COPY_BYTES = 4 << 20
ENCODERS = 3
"""Shards of a delta in hand: each once new, once base, once packed. zstd and XOR leave the interpreter free."""
MOST_COPIERS = 8

FULL_BYTES = Counter("shoal_origin_stream_bytes_total", "Bytes of published versions, assembled.")
WIRE_BYTES = Counter("shoal_origin_wire_bytes_total", "Bytes of published versions, as sent.")


def copiers() -> int:
    """Threads for a full version: SHA-256 takes 1.8 GB/s of one core, and most cores are the trainer's. Eight of them take 65.5 GB in 5 s."""
    return max(2, min(MOST_COPIERS, len(os.sched_getaffinity(0)) // 4))


@dataclass(frozen=True)
class Written:
    """A shard in its part file: bytes and SHA-256 as it travels, and the SHA-256 of its bytes as assembled."""

    index: int
    size: int
    sha256: str
    encoding: Encoding
    assembled: str


class ShardWriter:
    """Writes the shards of one version to `part(index)`, some at a time."""

    def __init__(self, record: VersionOpen, folder: Path, base: Path | None, part: Callable[[int], Path]) -> None:
        """`base` is the folder of `record.base`, whose bytes the caller has checked; it is needed for a delta only."""
        self._record = record
        self._folder = folder
        self._base = base
        self._part = part

    def write(self, ready: Callable[[int], None], done: Callable[[Written], None]) -> list[Written]:
        """All shards, in order. `ready` returns when the bytes of a shard may be read; `done` gets each one written, in several threads.

        Raises what these two raise, and `cut.CannotCut` when a file became shorter than the record says.
        """
        make, workers = (self._copy, copiers()) if self._record.base is None else (self._encode, ENCODERS)
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
            WIRE_BYTES.inc(written.size)
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
        with self._part(index).open("wb") as out:
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
        return Written(index, size, digest.hexdigest(), "full", digest.hexdigest())

    def _encode(self, index: int) -> Written:
        assert self._base is not None
        assert self._record.base is not None
        try:
            data = read_shard(self._record, self._folder, index)
            base = read_shard(self._record, self._base, index)
        except WrongWeights as error:
            raise cut.CannotCut(str(error)) from error
        assembled = hashlib.sha256(data).hexdigest()
        packed = delta.encode(data, base, self._record.base.item_size)
        if packed is None:
            self._part(index).write_bytes(data)
            return Written(index, len(data), assembled, "full", assembled)
        self._part(index).write_bytes(packed)
        return Written(index, len(packed), hashlib.sha256(packed).hexdigest(), "delta", assembled)
