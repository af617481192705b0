"""A store whose process dies at a write that the test chooses, for tests of what a crash leaves half done."""

from collections.abc import Callable
from pathlib import Path

from shoal.storage.store import Store, open_folder


class KilledError(BaseException):
    """The process ended here. No `except Exception` of ours catches it, as none would catch kill -9."""


class FragileStore(Store):
    """A real folder store whose process is killed at a write, before or after it is done."""

    def __init__(self, root: Path) -> None:
        plain = open_folder(root, "shoal/tiny", deadline_seconds=2)
        super().__init__(plain._backend, "shoal/tiny", root=root, deadline_seconds=2)
        self.writes = 0
        self.kill_at: tuple[int, str] | None = None

    def _write(self, action: Callable[[], object]) -> object:
        self.writes += 1
        if self.kill_at == (self.writes, "before"):
            raise KilledError
        result = action()
        if self.kill_at == (self.writes, "after"):
            raise KilledError
        return result

    def create(self, key: str, data: bytes) -> bool:
        return bool(self._write(lambda: super(FragileStore, self).create(key, data)))

    def delete(self, key: str) -> None:
        self._write(lambda: super(FragileStore, self).delete(key))

    def copy_if_absent(self, source: str, target: str) -> bool:
        return bool(self._write(lambda: super(FragileStore, self).copy_if_absent(source, target)))
