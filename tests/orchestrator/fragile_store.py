"""A store and a Redis that fail at a write that the test chooses, for tests of what a crash or an error leaves half done."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis import ConnectionError as RedisAway
from redis import Redis

from shoal.storage.store import ObjectInfo, Store, open_folder


class KilledError(BaseException):
    """The process ended here. No `except Exception` of ours catches it, as none would catch kill -9."""


class FragileStore(Store):
    """A real folder store that fails at a write, before or after it is done; `reads` counts objects read and folders listed."""

    def __init__(self, root: Path) -> None:
        plain = open_folder(root, "shoal/tiny", deadline_seconds=2)
        super().__init__(plain._backend, "shoal/tiny", root=root, deadline_seconds=2)
        self.writes = self.reads = 0
        self.kill_at: tuple[int, str] | None = None
        self.failure: BaseException = KilledError()

    def _write(self, action: Callable[[], object]) -> object:
        self.writes += 1
        if self.kill_at == (self.writes, "before"):
            raise self.failure
        result = action()
        if self.kill_at == (self.writes, "after"):
            raise self.failure
        return result

    def get(self, key: str) -> bytes:
        self.reads += 1
        return super().get(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        self.reads += 1
        return super().list(prefix)

    def create(self, key: str, data: bytes) -> bool:
        return bool(self._write(lambda: super(FragileStore, self).create(key, data)))

    def put(self, key: str, data: bytes) -> None:
        self._write(lambda: super(FragileStore, self).put(key, data))

    def delete(self, key: str) -> None:
        self._write(lambda: super(FragileStore, self).delete(key))

    def copy_if_absent(self, source: str, target: str) -> bool:
        return bool(self._write(lambda: super(FragileStore, self).copy_if_absent(source, target)))


class FragileRedis(Redis):
    """A client of a real Redis whose connection breaks at a write, before or after it is done. Pipelines do not count."""

    WRITES = ("HSET", "HSETNX", "HDEL", "HINCRBY", "ZADD", "ZREM", "EVALSHA", "INCR", "SET", "DEL")
    writes = 0
    fail_at: tuple[int, str] | None = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if str(args[0]).upper() not in self.WRITES:
            return super().execute_command(*args, **options)
        self.writes += 1
        if self.fail_at == (self.writes, "before"):
            raise RedisAway("broken")
        answer = super().execute_command(*args, **options)
        if self.fail_at == (self.writes, "after"):
            raise RedisAway("broken")
        return answer
