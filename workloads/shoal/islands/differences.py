"""Members whose terms are not the ones here: settings, base model, or list of islands. While there is one, no round is made.

In: the notices of a meeting, signatures checked. Out: who holds the round up, and why. All who came with the same terms come to the same answer,
since each says in its notice for whom it holds rounds up. A member with other terms is remembered for a while: it may be training, or be started
again with the terms of all; it would not know a round made meanwhile. Pure except for its log and clocks; called by
`members`.
"""

import time
from collections.abc import Callable, Collection, Mapping

from shoal import telemetry
from shoal.contracts.islands import IslandNotice, IslandSharedTerms

REMEMBERED_SECONDS, LONGEST_REMEMBERED_SECONDS = 3600.0, 24 * 3600.0
"""A member with other terms that is not met for this long, or for two usual rounds if those take longer, is taken for gone: rounds go on without
it."""
FRESH_SECONDS = 900.0
"""A notice that was signed longer ago than any wait of one meeting says nothing: whoever reaches the lighthouse can repeat what a member said once.
Clocks of clusters differ by less."""
WORDS: Mapping[str, str] = {
    "inner_steps": "innerSteps",
    "exchange": "exchange",
    "base": "base model",
    "layout": "ranks or shapes",
    "islands": "members",
}
"""Fields of `IslandSharedTerms` as the manifest has them."""


def differences(theirs: IslandSharedTerms, mine: IslandSharedTerms) -> dict[str, str]:
    """The differing settings, by their names in the manifest: both values; of a digest that is another, its beginning."""
    there, here = theirs.model_dump(), mine.model_dump()
    differing = ((name, word) for name, word in WORDS.items() if there[name] != here[name])
    return {word: f"{str(there[name])[:12]} there, {str(here[name])[:12]} here" for name, word in differing}


class Differing:
    """The members that came with other terms, and have not come with the same since. `known` are all islands."""

    def __init__(self, known: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._known, self._clock = frozenset(known), clock
        self._found: dict[str, tuple[dict[str, str], float]] = {}
        """The differences of each island, and how long they are remembered."""

    def remembered(self) -> dict[str, dict[str, str]]:
        """What differs, by field, for every island that is held to have other terms now; by name, ascending."""
        now = self._clock()
        self._found = {island: found for island, found in self._found.items() if found[1] > now}
        return {island: found for island, (found, _) in sorted(self._found.items())}

    def who_holds_up(
        self, notices: Mapping[str, IslandNotice], mine: IslandNotice, usual_seconds: float | None
    ) -> dict[str, dict[str, str]]:
        """Take in the notices of a meeting, all signed within `FRESH_SECONDS`, by island, this one's own among them. Returns for whom no round may be
        made, and what differs; empty when one may. `usual_seconds`: what a round usually takes."""
        same = {island for island, notice in notices.items() if notice.terms == mine.terms}
        for island in sorted(self._found.keys() & same):
            del self._found[island]
            telemetry.get_logger().info("an island has this island's settings again", island=island)
        held: dict[str, dict[str, str]] = {}
        for island in sorted(notices.keys() - same):
            held[island] = self.note(island, differences(notices[island].terms, mine.terms), usual_seconds)
        for island in sorted(same):
            for other in sorted((self._known & set(notices[island].holds)) - same - held.keys()):
                said = {"settings": f"held up by {island}"} if island != mine.island else {}
                held[other] = self.remembered().get(other) or said or {"settings": "differed"}
        return held

    def note(self, island: str, found: dict[str, str], usual_seconds: float | None) -> dict[str, str]:
        """Remember a member with other terms, and what differs. Said once, until it changes: it holds up every meeting."""
        if self._found.get(island, ({}, 0.0))[0] != found:
            telemetry.get_logger().error(
                "no round is possible: an island has other settings, another base model, list of islands or software",
                island=island,
                differs=found,
                remedy="make them the same in all manifests, and run one version of the software",
            )
        wait = max(REMEMBERED_SECONDS, 2 * (usual_seconds or 0.0))
        self._found[island] = (found, self._clock() + min(wait, LONGEST_REMEMBERED_SECONDS))
        return found
