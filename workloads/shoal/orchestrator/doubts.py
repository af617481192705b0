"""Doubts: which files, leases and nodes an error of the store or of Redis may have left half done.

Whoever writes about one to several places does so within `about`. An error of the store or of Redis there notes the part, and `recovery.repair` reads
that part again and no other. Held in memory only: a process that starts reads everything.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from redis.exceptions import RedisError

from shoal.storage import StoreUnavailable


@dataclass(frozen=True)
class FileInDoubt:
    """A submitted file, with its verdict, its lease, and the rest that it left."""

    step: int
    node: str
    sha256: str


@dataclass(frozen=True)
class LeasesInDoubt:
    """The leases of one node for one step: the store may have one that Redis does not know."""

    step: int
    node: str


@dataclass(frozen=True)
class NodeInDoubt:
    """A node's record: the ledger may have admitted or excluded it before."""

    node: str


Part = FileInDoubt | LeasesInDoubt | NodeInDoubt


class Doubts:
    """The parts in doubt, in the order noted. Safe for several threads. Grows by what fails, so by open work at most."""

    def __init__(self) -> None:
        self._parts: dict[Part, None] = {}
        self._lock = threading.Lock()

    @contextmanager
    def about(self, part: Part) -> Iterator[None]:
        """Note `part` if store or Redis fail within; the error goes on."""
        try:
            yield
        except (StoreUnavailable, RedisError):
            self.add([part])
            raise

    def add(self, parts: Iterable[Part]) -> None:
        with self._lock:
            self._parts.update(dict.fromkeys(parts))

    def taken(self) -> list[Part]:
        """The parts, oldest first, which are forgotten here: who takes them adds again what could not be repaired."""
        with self._lock:
            parts, self._parts = list(self._parts), {}
            return parts
