"""A run's store as the repeated trainer sees it: what it reads is the run's, what it writes stays in a folder of the auditor's.

In: the run's store, a folder. Out: a `Store`. What the run's own trainer wrote (states, reports, versions, result) is hidden: nothing of it is taken
for ours. Nothing ever reaches the run's store.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from obstore.store import LocalStore

from shoal.contracts import keys
from shoal.contracts.file_size import MAX_FILE_BYTES
from shoal.storage import NotFound, ObjectInfo, Store
from shoal.storage.store import open_folder

SHOWN = (keys.PREPARED, keys.BASE_MODEL, keys.UPLOADS, keys.VERDICTS, keys.SFT)


class Overlay(Store):
    """Ours above theirs: reads look into the folder first, everything else is the folder's."""

    def __init__(self, theirs: Store, folder: Path) -> None:
        super().__init__(LocalStore(prefix=folder, mkdir=True), "", root=folder)
        self._ours = open_folder(folder, "")
        self._theirs = theirs

    def get(self, key: str) -> bytes:
        return self._of(key).get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self._of(key).get_range(key, start, end)

    def get_to_file(self, key: str, path: Path, beat: Callable[[], None] = lambda: None) -> None:
        self._of(key).get_to_file(key, path, beat)

    def size(self, key: str) -> int | None:
        return self._of(key).size(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        theirs = self._theirs.list(prefix) if _is_shown(prefix) else []
        found = {info.key: info for info in [*theirs, *self._ours.list(prefix)]}
        return [found[key] for key in sorted(found)]

    def stream(self, key: str) -> Iterator[bytes]:
        return self._of(key).stream(key)

    def sha256(self, key: str, beat: Callable[[], None] = lambda: None) -> tuple[str, int]:
        return self._of(key).sha256(key, beat)

    def _of(self, key: str) -> Store:
        """Whose object it is. Raises `NotFound` for one of theirs that is larger than any of ours."""
        if not _is_shown(key) or self._ours.size(key) is not None:
            return self._ours
        if key.startswith(keys.BASE_MODEL):  # read in tens of thousands of ranges, which are not asked for twice
            return self._theirs
        size = self._theirs.size(key)
        if size is not None and size > MAX_FILE_BYTES:
            raise NotFound(key)
        return self._theirs


def _is_shown(key: str) -> bool:
    """Whether the run's own object is to be seen. Of a step that is its batch alone."""
    return key.startswith(SHOWN) or (key.startswith(keys.STEPS) and key.endswith("/batch.json"))
