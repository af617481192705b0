"""How long the next completions will be, by those that have ended. Pure.

In: lengths of completions as they end, each of a kind: its task's type and the length that it was asked for. Out: the known lengths for a row: of its
own kind once there are enough, of all rows before. Called by `batch`, for the order of rows and for what a lease will take. Memory: 512 numbers a
kind, of 64 kinds at most; a run has a few types and a few targets.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from shoal.inference.rollouts import PlannedRow

RowKind = tuple[str, int | None]
"""A task's type, and the target length."""
REMEMBERED = 512
"""Newest completions of a kind that count: the policy changes."""
MOST_KINDS = 64
"""Kinds that are told apart; rows of others count with all."""
KNOWN_LENGTHS = 32
"""Completions that must have been seen before their lengths say how long the next ones are."""


def row_kind(row: PlannedRow) -> RowKind:
    return row.task.task_type, row.target_length


class KnownLengths:
    """Tokens of completions that have ended."""

    def __init__(self) -> None:
        self._all: deque[int] = deque(maxlen=REMEMBERED)
        self._by_kind: dict[RowKind, deque[int]] = {}
        self._sorted: dict[RowKind | None, Sequence[int]] = {}

    def add(self, kind: RowKind, length: int) -> None:
        self._all.append(length)
        if kind in self._by_kind or len(self._by_kind) < MOST_KINDS:
            self._by_kind.setdefault(kind, deque(maxlen=REMEMBERED)).append(length)
        self._sorted.clear()

    def known(self, kind: RowKind) -> Sequence[int]:
        """Lengths like those that a row of this kind will have, ascending; empty while too few are known."""
        own = len(self._by_kind.get(kind, ())) >= KNOWN_LENGTHS
        name = kind if own else None
        if name not in self._sorted:
            seen = self._by_kind[kind] if own else self._all
            self._sorted[name] = sorted(seen) if len(seen) >= KNOWN_LENGTHS else ()
        return self._sorted[name]

    def expected(self, kind: RowKind) -> float:
        """Mean length of rows of this kind; the target itself while too few are known, and 0 without one."""
        own = self._by_kind.get(kind, ())
        if len(own) >= KNOWN_LENGTHS:
            return sum(own) / len(own)
        return float(kind[1] or 0)

    def chance(self, kinds: Iterable[RowKind], tokens: float) -> float:
        """Of rows of these kinds to have `tokens` at most each; 1 while too few are known."""
        found = 1.0
        for kind, rows in Counter(kinds).items():
            if known := self.known(kind):
                found *= (sum(length <= tokens for length in known) / len(known)) ** rows
        return found
