"""Shards that are being received: their bytes in order from the start, hashed while they pass, each where it will stay.

In: bytes, as they come from whichever source continues with the shard. Out: how many are here, and their SHA-256. `FilePart` collects in a file of
its own, `PlacedPart` at the shard's place in the checkpoint that is being assembled; so its bytes are written once. Made by a `Target`, filled
by `download`, which may be broken off anywhere: a new process continues from what a part had.
"""

import hashlib
import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path

from shoal.files import write_atomically
from shoal.storage.checkpoint_files import Assembler

READ_BYTES = 1 << 20
NOTE_BYTES = 4 << 20
"""Bytes after which a placed part notes how far it is; a crash costs at most as many of each shard in flight."""


class ShardPart(ABC):
    """The bytes of a shard that are here. All methods but `PlacedPart.close_for_good` belong to one thread at a time."""

    def __init__(self) -> None:
        self.have = 0
        self._digest = hashlib.sha256()

    def sha256(self) -> str:
        """Of the bytes that are here, in hex."""
        return self._digest.hexdigest()

    def append(self, data: memoryview) -> None:
        """Raises `OSError` when the disk takes no more."""
        self._write(data, self.have)
        self._digest.update(data)
        self.have += len(data)

    def restart(self) -> None:
        """Forget everything: what is here is not the shard."""
        self.have = 0
        self._digest = hashlib.sha256()
        self._forgotten()

    def _resume(self, have: int) -> None:
        """Take over what an earlier process had."""
        at = 0
        while at < have and (data := self._read(at, min(READ_BYTES, have - at))):
            self._digest.update(data)
            at += len(data)
        self.have = at

    @abstractmethod
    def drop(self) -> None:
        """Somebody else was faster with this shard: leave nothing behind."""

    @abstractmethod
    def pause(self) -> None:
        """No bytes come for now: keep what is here, let go of files."""

    @abstractmethod
    def _write(self, data: memoryview, at: int) -> None: ...

    @abstractmethod
    def _read(self, at: int, size: int) -> bytes: ...

    @abstractmethod
    def _forgotten(self) -> None: ...


class FilePart(ShardPart):
    """In a file of its own, which a target moves or unpacks when it is complete."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._file: int | None = None
        if path.exists():
            self._resume(path.stat().st_size)
            self.pause()

    def drop(self) -> None:
        self.pause()
        self.path.unlink(missing_ok=True)

    def pause(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, data: memoryview, at: int) -> None:
        _write_all(self._open(), data, at)

    def _read(self, at: int, size: int) -> bytes:
        return os.pread(self._open(), size, at)

    def _forgotten(self) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
        elif self.path.exists():  # nobody would close it: bytes may never come again
            os.truncate(self.path, 0)

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._file


class PlacedPart(ShardPart):
    """At its place in the files of a version that travels in full. `note` is a small file that remembers how far it is."""

    def __init__(self, assembler: Assembler, index: int, note: Path) -> None:
        super().__init__()
        self._place = assembler.place(index)
        self._note = note
        self._noted = 0
        self._lock = threading.Lock()
        self._closed = False
        if note.exists():
            text = note.read_bytes()
            self._resume(min(int(text), self._place.size) if text.isdigit() else 0)
            self._place.close()
            self._noted = self.have

    def close_for_good(self) -> None:
        """Another copy of this shard was faster and takes the place: nothing is written here any more. Any thread may call this."""
        with self._lock:
            self._closed = True
            self._place.close()
            self._note.unlink(missing_ok=True)

    def drop(self) -> None:
        self.close_for_good()

    def pause(self) -> None:
        with self._lock:
            if not self._closed:
                self._remember()
            self._place.close()

    def _write(self, data: memoryview, at: int) -> None:
        with self._lock:
            if self._closed:
                return
            self._place.write(data, at)
            if at + len(data) - self._noted >= NOTE_BYTES:
                self._remember(at + len(data))

    def _read(self, at: int, size: int) -> bytes:
        return self._place.read(at, size)

    def _forgotten(self) -> None:
        with self._lock:
            self._noted = 0
            self._note.unlink(missing_ok=True)

    def _remember(self, have: int | None = None) -> None:
        have = self.have if have is None else have
        if have != self._noted:
            write_atomically(self._note, b"%d" % have)
            self._noted = have


def _write_all(file: int, data: memoryview, at: int) -> None:
    while data:
        count = os.pwrite(file, data, at)
        data, at = data[count:], at + count
