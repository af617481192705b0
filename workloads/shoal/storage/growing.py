"""A version that the trainer still writes: its files have their sizes from the start, and a map says which of their bytes are there.

Written by the trainer's ranks, read by the publisher beside them, on one volume: so shards are cut while later tensors are still gathered. In
`outbox/`: the folder `partial-v000007/`, the plan `partial-v000007.plan`, which appears by one rename when all files are laid out, and
`partial-v000007.written`, one byte a piece. The version counts as handed over only when its folder is renamed to `v000007/`. A reader
holds on to the folder itself, not its name: if the folder of that name is the one it read, its shards are the version's.
"""

import json
import os
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from shoal.contracts import keys
from shoal.contracts.weights import VersionOpen
from shoal.storage.checkpoint_files import extents

PREFIX, PLAN, WRITTEN = "partial-", ".plan", ".written"
GONE = f"{PREFIX}gone-"
"""Of folders that are being removed."""
LOOK_SECONDS = 0.02
SILENCE_SECONDS = 600.0
"""A trainer that writes nothing for ten minutes hangs."""


class Unfinished(Exception):
    """The trainer gave this version up, or stands still: what was cut of it waits for the folder in the outbox."""


class Piece(NamedTuple):
    """Bytes [start, start + size) of a file, which are written at once."""

    file: str
    start: int
    size: int


def partial_folder(outbox: Path, version: int) -> Path:
    """Where a version is written."""
    return outbox / f"{PREFIX}{keys.version_name(version)}"


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(folder.name + ending)


class GrowingWriter:
    """The trainer's side. `begin` and `end` are the leader's; each rank says what it wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._map: int | None = None

    def begin(self, pieces: Iterable[Piece]) -> None:
        """The files are laid out in full size, all but these pieces written."""
        pieces = list(pieces)
        _beside(self._folder, WRITTEN).write_bytes(bytes(len(pieces)))
        making = _beside(self._folder, PLAN + ".partial")
        making.write_text(json.dumps(pieces))
        making.replace(_beside(self._folder, PLAN))

    def wrote(self, index: int) -> None:
        """Piece `index` is in its file. Another process sees it at once: both read one page cache."""
        if self._map is None:
            self._map = os.open(_beside(self._folder, WRITTEN), os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(self._map, b"\1", index)

    def close(self) -> None:
        """This rank writes no more."""
        if self._map is not None:
            os.close(self._map)
            self._map = None

    def end(self) -> None:
        """Take away plan and map: of an earlier attempt before the folder goes, of this one after it was renamed."""
        for ending in (PLAN, WRITTEN):
            _beside(self._folder, ending).unlink(missing_ok=True)


class Growing:
    """The publisher's side; a context. `beat` is called while it waits."""

    def __init__(self, outbox: Path, version: int, beat: Callable[[], None], stopped: Callable[[], bool]) -> None:
        """Raises `OSError` or ValueError when there is no such version, or its plan is of another attempt."""
        self.version = version
        self._target = outbox / keys.version_name(version)
        self._beat = beat
        self._stopped = stopped
        partial = partial_folder(outbox, version)
        # Plan and map of an attempt go before its folder does, and come after it. So they are those of the folder that has the name before and after.
        with ExitStack() as undo:
            self._folder = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, self._folder)
            self._map = os.open(_beside(partial, WRITTEN), os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, self._map)
            pieces = [Piece(*piece) for piece in json.loads(_beside(partial, PLAN).read_bytes())]
            if not self._is(partial):
                raise ValueError(f"{partial.name} was begun again, or handed over")
            undo.pop_all()
        self._partial = partial
        self._files: dict[str, tuple[list[int], list[int]]] = {}
        for index, piece in sorted(enumerate(pieces), key=lambda each: (each[1].file, each[1].start)):
            starts, indices = self._files.setdefault(piece.file, ([], []))
            starts.append(piece.start)
            indices.append(index)
        self._count = len(pieces)
        self._missing = set(range(self._count))
        self._heard = time.monotonic()

    def __enter__(self) -> "Growing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._map)
        os.close(self._folder)

    @property
    def folder(self) -> Path:
        """The folder under a name that stays when it is renamed."""
        return Path(f"/proc/self/fd/{self._folder}")

    def ready(self, index: int, record: VersionOpen) -> None:
        """Wait until the bytes of a shard are there; raises `Unfinished`."""
        wanted = {piece for extent in extents(record, index) for piece in self._within(*extent[:2], extent.length)}
        self._wait(f"shard {index}", lambda: not wanted & self._missing)

    def handed_over(self) -> None:
        """Wait until this very folder is the version in the outbox; raises `Unfinished`."""
        self._wait("the version to be handed over", lambda: self._is(self._target))

    def _within(self, name: str, start: int, length: int) -> Iterator[int]:
        """Pieces of a file that have bytes in [start, start + length)."""
        starts, indices = self._files.get(name, ([], []))
        for at in range(max(0, bisect_right(starts, start) - 1), len(starts)):
            if starts[at] >= start + length:
                return
            yield indices[at]

    def _wait(self, what: str, there: Callable[[], bool]) -> None:
        while not there():
            # In this order: what was read before the folder went is of the folder that was there.
            found = os.pread(self._map, self._count, 0)
            missing = {piece for piece in self._missing if found[piece : piece + 1] != b"\1"}
            if missing != self._missing:
                self._missing, self._heard = missing, time.monotonic()
                continue
            if not (self._is(self._partial) or self._is(self._target)):
                raise Unfinished(f"version {self.version} was given up before {what}")
            if time.monotonic() - self._heard > SILENCE_SECONDS:
                raise Unfinished(f"version {self.version}: nothing written for {SILENCE_SECONDS:.0f} s, before {what}")
            if self._stopped():
                raise Unfinished(f"asked to stop while waiting for {what} of version {self.version}")
            self._beat()
            time.sleep(LOOK_SECONDS)

    def _is(self, path: Path) -> bool:
        """Whether the folder that is held has this name. Its number is no other folder's while it is held."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._folder))
        except FileNotFoundError:
            return False


def discard(folder: Path) -> None:
    """Remove a partial folder, if it is there. It loses its name first: a trainer that is being stopped hands over all of it or nothing."""
    GrowingWriter(folder).end()
    gone = folder.with_name(GONE + folder.name.removeprefix(PREFIX))
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def clear_unfinished(outbox: Path) -> None:
    """Remove what an attempt that ended was writing: at the paper's size 65.5 GB, for which the volume has no room beside the next version."""
    for path in sorted(outbox.glob(f"{PREFIX}*")):
        if path.name.startswith(GONE):
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_dir():
            discard(path)
        else:
            path.unlink(missing_ok=True)


def growing_versions(outbox: Path) -> list[int]:
    """Versions that are being written, ascending; most often one at most."""
    names = (path.name.removeprefix(PREFIX).removesuffix(PLAN) for path in outbox.glob(f"{PREFIX}*{PLAN}"))
    return sorted(number for number in map(keys.parse_version, names) if number is not None)
