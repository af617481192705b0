"""Tags of a run's store that say which version is served: reads their moves, makes the next one, and says which versions stay for them.

Moves of a tag are numbered objects, each created if absent: of two people who move a tag at once one does, on a folder as on S3. To read a tag
costs a listing of its moves and as many small reads, side by side; a tag moves by hand, so there are tens. Called by `serving`, and by the trainer's
retention.
"""

from collections.abc import Sequence

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.serving import Promotion
from shoal.storage.parallel import in_parallel
from shoal.storage.store import Store, find


class BadPromotion(ValueError):
    """A move of a tag that cannot be read."""


def read_moves(store: Store, tag: str) -> list[Promotion]:
    """The moves of a tag, oldest first; none for a tag that nobody made. Raises `BadPromotion`."""
    found = [keys.parse_promotion(info.key) for info in store.list(keys.promotions(tag))]
    numbers = sorted(each[1] for each in found if each is not None)
    return [each for each in in_parallel(lambda number: _read(store, tag, number), numbers) if each is not None]


def read_tags(store: Store) -> list[str]:
    """Names of all tags, in order."""
    found = [keys.parse_promotion(info.key) for info in store.list(keys.SERVING)]
    return sorted({each[0] for each in found if each is not None})


def _read(store: Store, tag: str, number: int) -> Promotion | None:
    key = keys.promotion(tag, number)
    try:
        made = find(store, key, Promotion.from_json)  # None: taken back since the listing
    except ValidationError as error:
        raise BadPromotion(f"{key} cannot be read: {error.error_count()} mistakes") from None
    if made is not None and (made.tag, made.number) != (tag, number):
        raise BadPromotion(f"{key} is of tag {made.tag} and number {made.number}: somebody copied it there")
    return made


def reachable(moves: Sequence[Promotion]) -> list[Promotion]:
    """What the tag names now, last, and before it what a roll back can go to, oldest first. Pure.

    A promotion goes on top. A roll back takes away what lies above the version it goes to, so that a second one goes further back.
    """
    found: list[Promotion] = []
    for move in moves:
        if move.how == "back":
            while found and found[-1].version != move.version:
                found.pop()
            found = found[:-1]
        found.append(move)
        if move.keep is not None:
            found = found[-move.keep :]
    return found


def promoted_versions(store: Store) -> set[int]:
    """Versions that some tag names or can go back to: their weights stay. Raises `BadPromotion`: who cannot read a tag deletes nothing."""
    return {move.version for tag in read_tags(store) for move in reachable(read_moves(store, tag))}


def move_tag(store: Store, move: Promotion) -> bool:
    """Make the next move of a tag; False where somebody else made one of this number."""
    return store.create(keys.promotion(move.tag, move.number), move.to_json() + b"\n")
