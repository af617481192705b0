"""What a process has one of, with worker processes below it: made at first use, closed when the process ends, and made again after a fork.

In: how to make it, which may take seconds. Out: the same one for all threads. Called by the judges of `math` and `harness` and by `sandbox.pool`.
"""

import atexit
import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


Owned = TypeVar("Owned", bound=Closable)


class OnePerProcess(Generic[Owned]):
    """`make` is called once a process; what it raises goes through, and the next `get` tries again."""

    def __init__(self, make: Callable[[], Owned]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[int, Owned] | None = None

    def get(self) -> Owned:
        """The one of this process."""
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():  # after a fork the parent's workers are the parent's
                owned = self._make()
                atexit.register(owned.close)
                self._made = (os.getpid(), owned)
            return self._made[1]

    def forget(self) -> None:
        """Let the next `get` make another one. The one before stays open until the process ends: others may use it."""
        with self._lock:
            self._made = None
