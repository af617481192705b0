"""Many small objects of the store, or pieces of large ones, read at once: the time of one is the store's latency."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

N = TypeVar("N")
R = TypeVar("R")

READERS = 16
"""Reads under way at a time."""
AHEAD = 4 * READERS
"""Reads that are under way, wait for a reader, or are done before an earlier one is."""


def in_parallel(read: Callable[[N], R], names: Iterable[N], readers: int = READERS) -> list[R]:
    """The results of `read` for each of `names`, in their order; raises what it raises. `readers` bounds how many are read at a time.

    A few are handed to the readers at a time: an interpreter that ends waits for all that they were given.
    """
    found: list[R] = []
    with ThreadPoolExecutor(min(READERS, readers)) as pool:
        ahead: deque[Future[R]] = deque()
        try:
            for name in names:
                if len(ahead) == AHEAD:
                    found.append(ahead.popleft().result())
                ahead.append(pool.submit(read, name))
            while ahead:
                found.append(ahead.popleft().result())
        finally:
            for each in ahead:
                each.cancel()
    return found
