"""Chains of deltas: the way to a version, and what must be kept so that there is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import DIGEST, RUN
from shoal.contracts.weights import CheckpointFile, DeltaBase, VersionOpen
from shoal.storage.chains import BrokenDeltas, against, closure, must_keep, newest_whole, next_wanted, plan


def record(version: int, base: int | None) -> VersionOpen:
    return VersionOpen(
        run=RUN,
        version=version,
        files=[CheckpointFile(name="a", size=10)],
        shard_size=10,
        shard_count=1,
        encoding="full" if base is None else "delta",
        base=None if base is None else DeltaBase(version=base, sha256=DIGEST, item_size=2),
    )


def chain(newest: int, anchor_every: int = 4) -> dict[int, VersionOpen]:
    return {v: record(v, None if v % anchor_every == 0 else v - 1) for v in range(newest + 1)}


def _way(held: set[int], target: int) -> list[int]:
    """As a client walks: reads only the records that it is told to read."""
    everything, read = chain(target), dict[int, VersionOpen]()
    while (wanted := next_wanted(read, held, target)) is not None:
        read[wanted] = everything[wanted]
    return plan(read, held, target)


@pytest.mark.parametrize(
    ("held", "target", "way"),
    [
        (set(), 6, [4, 5, 6]),
        ({5}, 6, [6]),
        ({4}, 6, [5, 6]),
        ({3}, 6, [4, 5, 6]),
        ({2, 5}, 8, [8]),
        ({0}, 3, [1, 2, 3]),
        ({6}, 6, []),
    ],
)
def test_the_way_goes_from_what_is_held_or_from_the_anchor(held: set[int], target: int, way: list[int]) -> None:
    assert _way(held, target) == way


def test_a_record_that_is_missing_is_said() -> None:
    with pytest.raises(BrokenDeltas, match="version 6 refers to version 5, which is unknown"):
        plan({6: record(6, 5)}, set(), 6)


@pytest.mark.parametrize(
    ("newest", "count", "kept"),
    [(9, 2, {8, 9}), (9, 3, {4, 5, 6, 7, 8, 9}), (7, 1, {4, 5, 6, 7}), (4, 1, {4}), (3, 2, {0, 1, 2, 3})],
)
def test_what_is_kept_has_its_whole_chain(newest: int, count: int, kept: set[int]) -> None:
    bases = {v: (None if v % 4 == 0 else v - 1) for v in range(newest + 1)}
    assert must_keep(bases, count) == kept


def test_what_somebody_names_is_kept_with_its_chain_if_it_is_there() -> None:
    bases = {v: (None if v % 4 == 0 else v - 1) for v in range(9)}
    assert must_keep(bases, 1, also=[2, 100]) == {0, 1, 2, 8}


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 6))
def test_every_kept_version_can_be_reached_from_what_is_kept(newest: int, anchor_every: int, count: int) -> None:
    everything = chain(newest, anchor_every)
    kept = must_keep({v: r.base.version if r.base else None for v, r in everything.items()}, count)
    assert newest in kept
    for version in kept:
        assert set(plan({v: everything[v] for v in kept}, set(), version)) <= kept


@pytest.mark.parametrize(
    ("complete", "whole"),
    [
        ([0, 1, 2, 3], [3]),
        ([0, 1, 2, 3, 5], [3]),
        ([0, 1, 2, 3, 4, 5], [5]),
        ([0, 1, 3], [1]),
        ([1, 2, 5], []),
        ([], []),
        ([7], []),
    ],
    ids=["all", "an anchor not in full", "the next anchor", "a link", "no anchor", "nothing", "unknown base"],
)
def test_the_newest_whole_version_is_one_whose_chain_is_complete(complete: list[int], whole: list[int]) -> None:
    bases = {0: None, 1: 0, 2: 1, 3: 2, 4: None, 5: 4, 6: 5, 7: 6}
    assert newest_whole(bases, complete) == whole


def test_a_base_that_is_gone_ends_the_chain() -> None:
    assert closure({5: 4}, [5]) == {4, 5}
    assert must_keep({5: 4}, 3) == {5}


def _beside(version: int) -> VersionOpen:
    base = DeltaBase(version=version - 1, sha256=DIGEST, item_size=2)
    return VersionOpen.model_validate({**record(version, None).model_dump(), "beside": base})


def test_who_has_the_version_before_an_anchor_needs_nothing_else() -> None:
    read = {8: _beside(8), 9: record(9, 8)}
    assert next_wanted(read, {7}, 9) is None
    assert plan(read, {7}, 9) == plan(read, set(), 9) == plan(read, {6}, 9) == [8, 9]
    assert against(read[8], {7}) == read[8].beside
    assert against(read[8], {6}) is None
    assert against(read[9], set()) == read[9].base


@pytest.mark.parametrize("base", [8, 9])
def test_a_delta_beside_a_version_is_against_an_older_one(base: int) -> None:
    of = DeltaBase(version=base, sha256=DIGEST, item_size=2)
    with pytest.raises(ValueError, match=f"version 8 cannot be a delta against version {base}"):
        VersionOpen.model_validate({**record(8, None).model_dump(), "beside": of})


def test_a_delta_has_no_delta_beside_it() -> None:
    of = DeltaBase(version=6, sha256=DIGEST, item_size=2)
    with pytest.raises(ValueError, match="a delta has no second delta beside it"):
        VersionOpen.model_validate({**record(7, 6).model_dump(), "beside": of})
