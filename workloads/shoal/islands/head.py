"""Which of the states that islands announce is the shared one. Those that have another copy it before they take part.

In: notices of the islands that met. Out: the head, the same for all who saw the same notices. Pure; called by `island`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.contracts.islands import IslandNotice


@dataclass(frozen=True)
class Head:
    """The shared state of a round: `holders` have it, `joiners` copy it. Both by name, ascending."""

    round: int
    digest: str
    holders: list[str]
    joiners: list[str]

    def source_of(self, joiner: str) -> str:
        """Who sends the state to a joiner: the holders take turns."""
        return self.holders[self.joiners.index(joiner) % len(self.holders)]


def head_of(notices: Sequence[IslandNotice]) -> Head:
    """The head among islands with distinct names.

    Islands that have stood in a round since they started (`live`) are asked, and the others only where there is none, so that any number of
    restarted ones does not outvote a survivor. A state that more than half of those asked have is the head, else the one of the highest round
    (ties: the smaller digest), so that one island alone cannot make itself the source against a majority that is in step. The price: should
    most islands have missed the same rounds while a few made them, those rounds are lost.
    """
    if not notices:
        raise ValueError("nobody announced anything; an island always sees its own notice")
    asked = [notice for notice in notices if notice.live] or list(notices)
    states = Counter((notice.round, notice.digest) for notice in asked)
    most = [state for state, count in states.items() if 2 * count > len(asked)]
    newest = max(number for number, _ in states)
    chosen = most[0] if most else (newest, min(digest for number, digest in states if number == newest))
    holders = sorted(notice.island for notice in notices if (notice.round, notice.digest) == chosen)
    joiners = sorted({notice.island for notice in notices} - set(holders))
    return Head(*chosen, holders, joiners)
