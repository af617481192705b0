"""Many small objects of the store read at once: the time is the store's latency. Called by `recovery` and `evaluations`."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

N = TypeVar("N")
R = TypeVar("R")

READERS = 16
"""Reads under way at a time."""


def in_parallel(read: Callable[[N], R], names: Iterable[N]) -> list[R]:
    """The results of `read` for each of `names`, in their order; raises what it raises."""
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(read, names))
