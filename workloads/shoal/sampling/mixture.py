"""Whose turn it is: the order in which the sources of a mixture give the prompts of a node's files, so that every step has their shares. Pure.

Sources take turns in a cycle that has each of them as often as its weight says, spread evenly. A node's first file of a step begins somewhere in the
cycle, which the beacon decides; its next files go on where the one before ended. Nobody can choose, and everybody can repeat it. Called by `draw`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd


@dataclass(frozen=True)
class SourceRows:
    """One source: its rows of the task table, its weight in the mixture, and the lengths in tokens that its prompts ask for."""

    name: str
    rows: range
    weight: int
    targets: Sequence[int] | None = None


@lru_cache(maxsize=64)
def turns(weights: tuple[int, ...]) -> tuple[int, ...]:
    """One cycle of turns, as numbers of sources: each as often as its weight, divided by the weights' greatest common divisor.

    Of every beginning of the cycle each source has its exact share, rounded up or down: the quota method of Balinski and Young (1975, "The quota
    method of apportionment"). At most 16,000 turns of 16 sources, made once in 50 ms. ValueError for a weight below 1.
    """
    if not weights or min(weights) < 1:
        raise ValueError(f"weights are {weights}; allowed: 1 or more for each source")
    divisor = gcd(*weights)
    shares = [weight // divisor for weight in weights]
    whole = sum(shares)
    given = [0] * len(shares)
    cycle = []
    for place in range(1, whole + 1):
        # Who is not ahead of its share yet; of those, whoever is furthest behind after one more.
        due = [number for number, share in enumerate(shares) if given[number] * whole < share * place]
        chosen = min(due, key=lambda number: ((given[number] + 1) / shares[number], number))
        given[chosen] += 1
        cycle.append(chosen)
    return tuple(cycle)


def turns_of_file(weights: tuple[int, ...], start: int, submission: int, groups: int) -> list[int]:
    """The sources of the prompts in a node's file number `submission` (from 0) of a step; its first file begins at turn `start`."""
    cycle = turns(weights)
    first = start + submission * groups
    return [cycle[(first + number) % len(cycle)] for number in range(groups)]


def most_of_a_file(weights: tuple[int, ...], groups: int) -> list[int]:
    """The most prompts of each source that a file of `groups` prompts may hold, wherever in the cycle it begins."""
    cycle = turns(weights)
    rounds, rest = divmod(groups, len(cycle))
    counts = Counter(cycle[:rest])
    most = Counter(counts)
    for start in range(len(cycle)):  # the window moves on by one turn
        counts[cycle[start]] -= 1
        counts[cycle[(start + rest) % len(cycle)]] += 1
        most |= counts
    return [rounds * cycle.count(number) + most[number] for number in range(len(weights))]
