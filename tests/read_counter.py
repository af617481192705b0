"""A folder store that counts what is read, and whose listings of all files, if asked for, have many more."""

from pathlib import Path

from shoal.contracts import keys
from shoal.storage.store import ObjectInfo, Store, open_folder


class ReadCounter(Store):
    """`reads`: objects read or looked at. `closed`: how many settled files the listings have beside those that are there."""

    def __init__(self, root: Path) -> None:
        plain = open_folder(root, "shoal/tiny", deadline_seconds=5)
        super().__init__(plain._backend, "shoal/tiny", root=root, deadline_seconds=5)
        self.reads = 0
        self.listed_closed = 0
        self.folders: set[str] = set()
        self.listings = 0
        self.closed = 0

    def get(self, key: str) -> bytes:
        self.reads += 1
        return super().get(key)

    def size(self, key: str) -> int | None:
        self.reads += 1
        return super().size(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        self.listings += 1
        self.folders.add(prefix)
        found = super().list(prefix)
        if prefix in (keys.SUBMISSIONS, keys.VERDICTS, keys.LEASES, keys.UPLOADS, keys.LEASE_FILES):
            self.listed_closed += self.closed
            found += [ObjectInfo(f"{prefix}{'a' * 64}/{number:064x}.json", 1, 0.0) for number in range(self.closed)]
        return found
