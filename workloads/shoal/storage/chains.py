"""Chains of versions: each delta needs the version that it changes, down to one that is published in full.

Pure. In: what each version is based on. Out: what must be fetched, and in which order, to have a version; and what must be kept so that this stays
possible. Called by the client, by `versions.materialise`, by relays and origin before they drop anything, and by whoever deletes from the store.
"""

from collections.abc import Collection, Iterable, Mapping

from shoal.contracts.weights import DeltaBase, VersionOpen

MAX_CHAIN = 1000
"""No honest chain is longer: `Broadcast.anchor_every` is at most 100. A reader gives up there."""


class BrokenDeltas(ValueError):
    """The versions do not lead to one that is published in full."""


def base_of(record: VersionOpen) -> int | None:
    """The version that must be here before this one can be; None for a version in full."""
    return record.base.version if record.base is not None else None


def against(record: VersionOpen, held: Collection[int]) -> DeltaBase | None:
    """What to make this version from, once its turn comes: for a version in full the base of the delta beside it, where that is held."""
    if record.beside is not None and record.beside.version in held:
        return record.beside
    return record.base


def _below(record: VersionOpen, held: Collection[int]) -> int | None:
    base = against(record, held)
    return base.version if base is not None else None


def next_wanted(opened: Mapping[int, VersionOpen], held: Collection[int], target: int) -> int | None:
    """The next older version whose opening record must be read before the way to `target` is known; None when it is known."""
    version: int | None = target
    while version is not None and version not in held:
        if version not in opened:
            return version
        version = _below(opened[version], held)
    return None


def plan(opened: Mapping[int, VersionOpen], held: Collection[int], target: int) -> list[int]:
    """Versions to fetch, oldest first, ending with `target`: from what is held, or from an anchor.

    `opened` has every record that `next_wanted` asked for. Raises `BrokenDeltas` where a record is missing.
    """
    way: list[int] = []
    version: int | None = target
    while version is not None and version not in held:
        if version not in opened or len(way) >= MAX_CHAIN:
            raise BrokenDeltas(f"version {target} refers to version {version}, which is unknown")
        way.append(version)
        version = _below(opened[version], held)
    return way[::-1]


def closure(bases: Mapping[int, int | None], wanted: Iterable[int]) -> set[int]:
    """`wanted` and all that they are based on, directly or not; a base that is not in `bases` is named too and ends its chain."""
    found: set[int] = set()
    for start in wanted:
        version: int | None = start
        while version is not None and version not in found:
            found.add(version)
            version = bases.get(version)
    return found


def newest_whole(bases: Mapping[int, int | None], complete: Collection[int]) -> list[int]:
    """The newest version of `complete` whose whole chain is in it too: what a reader without any version can have. Empty where there is none."""
    there = set(complete)
    return next(([version] for version in sorted(there, reverse=True) if closure(bases, [version]) <= there), [])


def must_keep(bases: Mapping[int, int | None], newest: int, also: Iterable[int] = ()) -> set[int]:
    """Of the versions in `bases`, those that must not be deleted: the `newest` highest ones, `also`, and the whole chain of each.

    So there is always at least one anchor with its whole chain, where `also` is `newest_whole`.
    """
    kept = closure(bases, [*sorted(bases)[-newest:], *(version for version in also if version in bases)])
    return kept & bases.keys()
