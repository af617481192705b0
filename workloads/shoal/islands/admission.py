"""Whether this island takes part in a round of those that it met, and from which state.

In: the notices of a meeting, this island's place. Out: the head, or `Unreachable` with the reason why there is no round to be made from it. Called by
`island`.
"""

from collections.abc import Sequence

from shoal import telemetry
from shoal.contracts.islands import IslandNotice
from shoal.islands.certificate import enough
from shoal.islands.group import Unreachable
from shoal.islands.head import Head, NoHead, head_of, vouched
from shoal.islands.setting import IslandPlace


class TooFew(Unreachable):
    """Not enough islands came for a round that the others would believe; another attempt at once would find the same."""


def agreed_head(notices: Sequence[IslandNotice], place: IslandPlace, base: str) -> Head:
    """Which state is the shared one; `base` is the digest of that of round 0. Raises Unreachable when there is no round to be made from it."""
    mine = next(notice for notice in notices if notice.island == place.island)
    _check_own(mine, place, base)
    try:
        head = head_of(notices, place.run, place.known, base)
    except NoHead as error:
        raise TooFew(str(error)) from error
    if place.island in head.refused:
        raise Unreachable("most other islands continue without this one, because it did not copy the state in time")
    if place.island in head.ahead:
        raise TooFew(f"the others start from the base model, but this island has round {mine.round}")
    if not enough(head.members, head.before):
        raise TooFew(f"{head.members} met; at least half of {head.before} must meet before others accept a round")
    return head


def _check_own(mine: IslandNotice, place: IslandPlace, base: str) -> None:
    """Raises TooFew when nobody can believe this island's state any more. It must not copy another then: that would be one that the others began
    without it, from the base model perhaps."""
    if vouched(mine, place.run, place.known, base):
        return
    problem = (
        f"the list of islands does not confirm this island's state of round {mine.round}: the key of an island was changed, or too many islands"
        " were added, since its round was signed"
    )
    telemetry.get_logger().error(
        "this island stops exchanging", reason=problem, remedy="give the islands their former keys back"
    )
    raise TooFew(problem)
