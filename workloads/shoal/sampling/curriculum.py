"""Pools of a curriculum: problems by how often they were solved, and whose turn it is. Pure.

In: how often each group of the sealed steps was right, in the order of their batches. Out: for a step its `Pools`, from which `draw` draws prompts.
Everybody who has the batches computes the same, because only sums, products and quotients of float64 are used, in one order.
Called by `contracts.curriculum`.

At 285,000 problems the rates take 2.9 MB, a step's pools 1.2 MB and 0.2 s with their digest, and a file's draw 0.1 ms.
"""

import hashlib
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from shoal.sampling.mixture import turns_of_file

PoolName = Literal["unseen", "hard", "middle", "easy"]
POOLS: tuple[PoolName, ...] = get_args(PoolName)
UNSEEN, HARD, MIDDLE, EASY = range(len(POOLS))

TURNS = 1000
"""Turns of a cycle, at most, which the pools share. So no pool that has problems gets less than a thousandth of the prompts."""


@dataclass(frozen=True)
class PoolRule:
    """What a run says of its pools. `weights`: one for each of `POOLS`, 1 or more.

    A problem is hard whose rate is below `hard_below`, easy from `easy_from` on. `votes`: groups that its moving mean is over.
    `most_often`: limit of how often a problem is drawn, as a multiple of its draws without pools.
    """

    weights: tuple[int, int, int, int]
    hard_below: float
    easy_from: float
    votes: int
    most_often: int


@dataclass(frozen=True)
class Solved:
    """One group's vote: `rate` is the share of its scored answers that are right, for the problem in row `prompt` of the task table."""

    prompt: int
    rate: float


@dataclass(frozen=True)
class Pools:
    """The pools of one step. `rows`: rows of the task table of each pool, ascending; `turns`: of a cycle, for each pool, 0 where it is empty.

    `rates`: mean solve rate of each pool's problems; None for problems that nobody has tried.
    """

    rows: tuple[Sequence[int], ...]
    turns: tuple[int, ...]
    rates: tuple[float | None, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex over how many turns and rows each pool has, and its rows, each as 8 big-endian bytes."""
        found = hashlib.sha256(b"shoal/curriculum/v1\0")
        for rows, turns in zip(self.rows, self.turns, strict=True):
            found.update(struct.pack(f">{len(rows) + 2}Q", turns, len(rows), *rows))
        return found.hexdigest()

    @cached_property
    def drawn_from(self) -> tuple[int, ...]:
        """The numbers of the pools that have problems."""
        return tuple(number for number, turns in enumerate(self.turns) if turns)

    @property
    def cycle(self) -> tuple[int, ...]:
        """The turns of the pools that have problems, one number for each of `drawn_from`."""
        return tuple(self.turns[number] for number in self.drawn_from)

    def pool_of(self, prompt: int) -> PoolName:
        """The pool of a row. ValueError for a row that the table does not have."""
        for name, rows in zip(POOLS, self.rows, strict=True):
            place = bisect_left(rows, prompt)
            if place < len(rows) and rows[place] == prompt:
                return name
        raise ValueError(f"row {prompt} is in no pool")

    def order(self, start: int, submission: int, groups: int) -> list[int]:
        """The pool of each prompt in a node's file number `submission` of a step, whose first file begins at turn `start` of the cycle.

        A pool that has fewer problems than turns in the file gives the others to the pool that has most problems left.
        ValueError for more groups than problems.
        """
        left = [len(rows) for rows in self.rows]
        if sum(left) < groups:
            raise ValueError(f"the task table has {sum(left)} rows; allowed: at least groupsPerSubmission, {groups}")
        found = []
        for turn in turns_of_file(self.cycle, start, submission, groups):
            number = self.drawn_from[turn]
            if not left[number]:
                number = left.index(max(left))
            left[number] -= 1
            found.append(number)
        return found


class SolveRates:
    """A moving mean for each problem of a table. Not for several threads."""

    def __init__(self, rule: PoolRule, task_count: int) -> None:
        self._rule = rule
        self._rates = array("d", bytes(8 * task_count))
        self._votes = array("H", bytes(2 * task_count))

    def add(self, solved: Iterable[Solved]) -> None:
        """Count the groups of one sealed step, in their order: one vote for each.

        The mean over the first `votes` groups of a problem is plain. Later each new group has the weight 1 / `votes`, and older ones fade. ValueError
        for a row that the table does not have.
        """
        for vote in solved:
            if vote.prompt >= len(self._rates):
                raise ValueError(f"a batch has row {vote.prompt}; the task table has {len(self._rates)} rows")
            number = min(self._votes[vote.prompt] + 1, self._rule.votes)
            self._votes[vote.prompt] = number
            self._rates[vote.prompt] += (vote.rate - self._rates[vote.prompt]) / number

    def rate(self, prompt: int) -> float | None:
        """The rate of one problem; None for one that nobody has tried."""
        return self._rates[prompt] if self._votes[prompt] else None

    def pools(self) -> Pools:
        """The pools by what was counted so far."""
        rule = self._rule
        rows = tuple(array("I") for _ in POOLS)
        sums = [0.0] * len(POOLS)
        for prompt, (votes, rate) in enumerate(zip(self._votes, self._rates, strict=True)):
            if not votes:
                rows[UNSEEN].append(prompt)
                continue
            number = HARD if rate < rule.hard_below else EASY if rate >= rule.easy_from else MIDDLE
            rows[number].append(prompt)
            sums[number] += rate
        sizes = [len(each) for each in rows]
        means = tuple(
            sums[number] / sizes[number] if number != UNSEEN and sizes[number] else None for number in range(len(POOLS))
        )
        return Pools(rows, pool_turns(rule, sizes), means)


def pool_turns(rule: PoolRule, sizes: Sequence[int]) -> tuple[int, ...]:
    """Turns of each pool in a cycle, about `TURNS` in all: by weight, but to no pool more than `most_often` times its share of the problems.

    A pool at this limit leaves the rest to the others, by their weights. Each pool with problems has a turn, an empty one has none.
    """
    whole = sum(sizes)
    most = [TURNS * rule.most_often * size / whole if whole else 0.0 for size in sizes]
    found = [0.0] * len(sizes)
    open_pools = [number for number, size in enumerate(sizes) if size]
    left = float(TURNS)
    while open_pools:
        weights = sum(rule.weights[number] for number in open_pools)
        full = [number for number in open_pools if left * rule.weights[number] / weights > most[number]]
        if not full:
            for number in open_pools:
                found[number] = left * rule.weights[number] / weights
            break
        for number in full:
            found[number] = most[number]
            left -= most[number]
            open_pools.remove(number)
    return tuple(max(1, int(turns + 0.5)) if size else 0 for turns, size in zip(found, sizes, strict=True))
