"""Bad minutes of a store: it answers 503 to everything for a time, then slowly for as long, or its folder is away. What a process says and how it
is meanwhile."""

import ctypes
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from proxies import AilingProxy, Slow


@contextmanager
def store_away(folder: Path) -> Iterator[None]:
    """The folder of a store is away: a file has its name.

    Both change places in one step. After a rename alone, a put that is under way makes the folder again, and the real one cannot come back.
    """
    other = folder.with_name(f"{folder.name}-away")
    other.touch()
    _exchange(folder, other)
    try:
        yield
    finally:
        _exchange(folder, other)
    other.unlink()


def _exchange(one: Path, other: Path) -> None:
    """Swap what two paths name: renameat2(2) with RENAME_EXCHANGE."""
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if ctypes.CDLL(None, use_errno=True).renameat2(here, os.fsencode(one), here, os.fsencode(other), both) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot exchange {one} and {other}: {os.strerror(number)}")


@dataclass(frozen=True)
class BadMinutes:
    """`seconds` of refusals, and then `seconds` of slow answers. Whoever waits says so at least each `word_seconds`, on a busy
    machine up to `late_seconds` later. Each half takes longer than that: in one that is silent, nothing else would be too long."""

    seconds: float
    slow: Slow
    word_seconds: float
    late_seconds: float = 0.0

    def __post_init__(self) -> None:
        assert self.longest_silence < self.seconds

    @property
    def longest_silence(self) -> float:
        """Seconds."""
        return self.word_seconds + self.late_seconds

    def pass_by(self, proxy: AilingProxy, look: Callable[[], None]) -> "Passed":
        """Go through them; the proxy refuses already. `look` is called each second and fails where something must not be."""
        refused, slowed, began = proxy.refused, proxy.slowed, datetime.now(UTC)
        self._last(look)
        proxy.slow, proxy.refusing, then = self.slow, False, datetime.now(UTC)
        self._last(look)
        passed = Passed(began, then, datetime.now(UTC), proxy.refused - refused, proxy.slowed - slowed)
        proxy.slow = None
        return passed

    def _last(self, look: Callable[[], None]) -> None:
        until = time.monotonic() + self.seconds
        while (left := until - time.monotonic()) > 0:
            look()
            time.sleep(min(1.0, left))


@dataclass(frozen=True)
class Passed:
    """Bad minutes that are over: when they began, when answers began to come again, and their end; requests refused and answered slowly."""

    began: datetime
    then: datetime
    ended: datetime
    refused: int
    slowed: int

    def longest_silence(self, log: str, words: tuple[str, ...]) -> float:
        """Most seconds without a line of a JSON `log` that has one of `words`."""
        said = [self.began, *(at for at, _ in self._lines(log, words)), self.ended]
        return max((after - before).total_seconds() for before, after in pairwise(said))

    def lines_a_second(self, log: str, words: tuple[str, ...]) -> float:
        """Of those that have one of `words`, over both halves."""
        return len(self._lines(log, words)) / (self.ended - self.began).total_seconds()

    def _lines(self, log: str, words: tuple[str, ...]) -> list[tuple[datetime, str]]:
        found = []
        for line in log.splitlines():
            if line.startswith("{") and any(word in line for word in words):
                at = datetime.fromisoformat(json.loads(line)["timestamp"])
                if self.began <= at <= self.ended:
                    found.append((at, line))
        return found
