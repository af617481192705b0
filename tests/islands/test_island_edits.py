"""Edits of what all islands must have alike, one manifest after the other: no round is made while they differ, and then all go on from one state."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import rfc8785
import structlog
import torch
from island_crowd import HOST, KEYS, RUN, SETTINGS, Crowd, known

from samples import ISLAND_SHARED_TERMS
from shoal.contracts.islands import IslandNotice
from shoal.contracts.signed import sign
from shoal.crypto.keys import PrivateKey
from shoal.islands.differences import FRESH_SECONDS, LONGEST_REMEMBERED_SECONDS, REMEMBERED_SECONDS, Differing
from shoal.islands.island import Island
from shoal.islands.members import Encounter, Members
from shoal.islands.setting import IslandSettings

OTHER = replace(SETTINGS, inner_steps=7)
HURRIED = replace(SETTINGS, wait_seconds=10.0, connect_seconds=10.0)
"""For meetings that nobody else comes to."""


@pytest.fixture
def edited_crowd() -> Iterator[Crowd]:
    made = Crowd(wait_seconds=3.0)
    yield made
    made.close()


@pytest.fixture
def crowd_that_misses_the_dead() -> Iterator[Crowd]:
    made = Crowd(wait_seconds=3.0, silence_seconds=10.0)
    yield made
    made.close()


def name_of(index: int) -> str:
    return f"island-{index}"


def begin(crowd: Crowd, count: int, islands: int, settings: IslandSettings = SETTINGS) -> None:
    """The first `islands` of `count` have met, and made a round."""
    crowd.known = known(count)
    started = [crowd.island(index, torch.ones(1000), settings) for index in range(islands)]
    crowd.all(meet, started)
    train(crowd, started)
    said = crowd.exchange(started)
    assert [one and one.round for one in said] == [1] * islands


def meet(island: Island) -> None:
    deadline = time.monotonic() + 100
    while (met := island.join()) is None or len(met.islands) < 2:
        assert time.monotonic() < deadline, "the islands did not meet"


def edit(crowd: Crowd, index: int, settings: IslandSettings, members: Mapping[str, str] | None = None) -> Island:
    """What an edit of an island's manifest does: its trainer is started again, and takes up what it had."""
    name = name_of(index)
    before, learnt = crowd.islands[name], crowd.parameters[name].clone()
    before.close()
    crowd.known = dict(members or crowd.known)
    island = crowd.island(index, torch.ones(1000), settings)
    island.restore(before.shared, before.certificate)
    crowd.parameters[name].copy_(learnt)
    deadline = time.monotonic() + 60
    while not island._members.heard:
        assert time.monotonic() < deadline, "the lighthouse does not hear it"
        time.sleep(0.02)
    return island


def train(crowd: Crowd, islands: list[Island]) -> None:
    for index, island in enumerate(islands):
        name = next(each for each, one in crowd.islands.items() if one is island)
        crowd.parameters[name].sub_(0.1 + index / 100)


def of(crowd: Crowd, count: int = 2) -> list[Island]:
    return [crowd.islands[name_of(index)] for index in range(count)]


def hold_each_other_up(crowd: Crowd, joins: int) -> None:
    """Island `joins` has been started again, the other trains: both come to an exchange, and to two more. Nothing changes by it."""
    train(crowd, of(crowd))
    learnt = {name: values.clone() for name, values in crowd.parameters.items()}
    states = [island.shared.digest() for island in of(crowd)]
    restarted = crowd.islands[name_of(joins)]
    assert crowd.all(lambda island: island.join() if island is restarted else island.exchange(1), of(crowd)) == [None] * 2  # fmt: skip
    for _ in range(2):
        assert crowd.exchange(of(crowd)) == [None, None]
    assert [island.shared.digest() for island in of(crowd)] == states, "a lineage went on"
    assert [list(island.last.held) for island in of(crowd)] == [["island-1"], ["island-0"]]
    assert all(torch.equal(values, learnt[name]) for name, values in crowd.parameters.items())


def go_on_from_one_state(crowd: Crowd, count: int = 2) -> None:
    crowd.all(meet, of(crowd, count))
    train(crowd, of(crowd, count))
    names = [name_of(index) for index in range(count)]
    said = crowd.exchange(of(crowd, count))
    assert [one and one.contributors for one in said] == [names] * count
    assert len({island.shared.digest() for island in of(crowd, count)}) == 1
    assert all(not island.last.held for island in of(crowd, count))


def go_on_with_what_both_learnt(crowd: Crowd, joins: int) -> None:
    """Island `joins` was started again last; the other trains, and comes to its next exchange."""
    restarted = crowd.islands[name_of(joins)]
    usual = restarted.shared.meta.inner_seconds
    train(crowd, of(crowd))
    said = crowd.all(lambda island: island.join() if island is restarted else island.exchange(2), of(crowd))
    assert [one and one.contributors for one in said] == [["island-0", "island-1"]] * 2, "what one learnt is gone"
    assert [one.replaced for one in said] == [False, False]
    assert len({island.shared.digest() for island in of(crowd)}) == 1
    assert restarted.shared.meta.inner_seconds <= usual, (
        "the time of the hold, or of the restart, is a round's usual time"
    )


@pytest.mark.parametrize(("first", "then"), [(0, 1), (1, 0), (0, 0), (1, 1)], ids=["0-1", "1-0", "0-back", "1-back"])
def test_no_round_is_made_from_the_first_edit_to_the_last(edited_crowd: Crowd, first: int, then: int) -> None:
    begin(edited_crowd, 2, 2)
    edit(edited_crowd, first, OTHER)
    hold_each_other_up(edited_crowd, first)
    held = edited_crowd.islands[name_of(1 - first)].last.held
    assert held == {name_of(first): {"innerSteps": "7 there, 1 here"}}
    edit(edited_crowd, then, SETTINGS if then == first else OTHER)
    go_on_with_what_both_learnt(edited_crowd, joins=then)


def test_a_list_that_grows_from_two_to_three_holds_rounds_up_until_both_have_it(edited_crowd: Crowd) -> None:
    begin(edited_crowd, 2, 2)
    edit(edited_crowd, 0, SETTINGS, known(3))
    hold_each_other_up(edited_crowd, 0)
    assert list(edited_crowd.islands["island-1"].last.held["island-0"]) == ["members"]
    edit(edited_crowd, 1, SETTINGS, known(3))
    edited_crowd.all(meet, of(edited_crowd))
    edited_crowd.island(2, torch.ones(1000))
    edited_crowd.all(meet_three, of(edited_crowd, 3))
    assert len({island.shared.digest() for island in of(edited_crowd, 3)}) == 1, "the third copies what the two share"
    assert edited_crowd.islands["island-2"].shared.meta.round == 1
    go_on_from_one_state(edited_crowd, 3)


def meet_three(island: Island) -> None:
    deadline = time.monotonic() + 100
    while (met := island.join()) is None or len(met.islands) < 3:
        assert time.monotonic() < deadline, "the islands did not meet"


def test_a_member_that_is_started_again_with_the_settings_of_all_finds_no_round_made_without_it(
    crowd_that_misses_the_dead: Crowd,
) -> None:
    crowd = crowd_that_misses_the_dead
    begin(crowd, 2, 2, HURRIED)
    edit(crowd, 0, replace(HURRIED, exchange="int8"))
    hold_each_other_up(crowd, 0)
    crowd.islands["island-1"].close()  # its manifest is edited, and its trainer takes a while to start
    waits = crowd.islands["island-0"]
    assert crowd.exchange([waits]) == [None], "an island alone made a round while another differs"
    assert waits.last.held == {"island-1": {"exchange": "float16 there, int8 here"}}
    edit(crowd, 1, replace(HURRIED, exchange="int8"))
    go_on_from_one_state(crowd)


def test_a_member_that_stops_rounds_is_excluded_and_the_others_go_on_from_what_it_has_signed(
    edited_crowd: Crowd,
) -> None:
    begin(edited_crowd, 3, 3)
    stubborn = edit(edited_crowd, 2, OTHER)
    train(edited_crowd, of(edited_crowd, 3))
    assert edited_crowd.exchange(of(edited_crowd, 3)) == [None] * 3
    edited_crowd.excluded = ("island-2",)
    edit(edited_crowd, 0, SETTINGS)
    assert edited_crowd.exchange(of(edited_crowd, 3)) == [None] * 3
    assert list(of(edited_crowd)[1].last.held) == ["island-0", "island-2"], "it does not know yet who is excluded"
    edit(edited_crowd, 1, SETTINGS)
    edited_crowd.all(meet, of(edited_crowd))
    train(edited_crowd, of(edited_crowd))
    said = edited_crowd.exchange(of(edited_crowd))
    assert [one and one.islands for one in said] == [["island-0", "island-1"]] * 2
    assert [one and one.round for one in said] == [2, 2]
    assert stubborn.shared.meta.round == 1


# ---- who holds a group up, and for how long


def notice(island: str, at_unix: float | None = None, holds: tuple[str, ...] = (), **terms: Any) -> IslandNotice:
    return IslandNotice(
        run=RUN, island=island, round=0, digest="0" * 64, live=True, store="127.0.0.1:1", holds=list(holds),
        terms=ISLAND_SHARED_TERMS.model_copy(update=terms), at_unix=time.time() if at_unix is None else at_unix,
    )  # fmt: skip


def held_by(differing: Differing, mine: IslandNotice, *others: IslandNotice) -> dict[str, dict[str, str]]:
    return differing.who_holds_up({one.island: one for one in (mine, *others)}, mine, None)


def members_of_three(*excluded: str) -> Members:
    return Members(f"http://{HOST}:9", RUN, "island-0", KEYS["island-0"], known(3), 10.0, excluded)


def met(
    mine: IslandNotice,
    *others: IslandNotice,
    keys: Mapping[str, PrivateKey] = KEYS,
    excluded: tuple[str, ...] = (),
    members: Members | None = None,
) -> Encounter | None:
    came: Any = SimpleNamespace(
        name="1-2-3",
        participants=[
            (one.island, {"notice": sign(one, keys[one.island]).to_json().decode()}) for one in (mine, *others)
        ],
    )
    return (members or members_of_three(*excluded))._met(came, mine)


def test_what_differs_is_said_by_the_manifests_names_once_until_it_changes() -> None:
    differing, mine = Differing(known(3)), notice("island-0")
    other = notice("island-1", inner_steps=7, base="f" * 64)
    expected = {"innerSteps": "7 there, 100 here", "base model": f"{'f' * 12} there, {ISLAND_SHARED_TERMS.base[:12]} here"}  # fmt: skip
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            assert held_by(differing, mine, other) == {"island-1": expected}
        held_by(differing, mine, notice("island-1", inner_steps=8))
    said = [line["differs"] for line in logs if line["log_level"] == "error"]
    assert said == [expected, {"innerSteps": "8 there, 100 here"}]


def test_a_member_with_other_settings_is_remembered_until_it_comes_with_the_same_or_is_gone() -> None:
    now = [0.0]
    differing, mine, other = Differing(known(3), lambda: now[0]), notice("island-0"), notice("island-1", inner_steps=7)
    held_by(differing, mine, other)
    now[0] = REMEMBERED_SECONDS - 1
    assert list(differing.remembered()) == ["island-1"]
    assert held_by(differing, notice("island-0", holds=("island-1",)), notice("island-1")) == {}
    assert differing.remembered() == {}
    held_by(differing, mine, other)
    now[0] += REMEMBERED_SECONDS
    assert differing.remembered() == {}, "a member that is gone holds its group up for ever"
    differing.who_holds_up({"island-0": mine, "island-1": other}, mine, 1e7)
    now[0] += LONGEST_REMEMBERED_SECONDS
    assert differing.remembered() == {}, "rounds that are said to take months hold the group up for months"


def test_islands_with_the_same_settings_agree_on_who_holds_them_up() -> None:
    restarted, mine = Differing(known(3)), notice("island-0")
    remembers = notice("island-1", holds=("island-2", "nobody"))
    assert held_by(restarted, mine, remembers) == {"island-2": {"settings": "held up by island-1"}}
    assert held_by(restarted, mine, remembers, notice("island-2")) == {}, "it is there with the same settings"


@pytest.mark.parametrize("said", [{"inner_steps": 7}, {"holds": ("island-2",)}, {}], ids=["terms", "holds", "same"])
def test_a_notice_that_somebody_repeats_later_says_nothing_and_nobody_goes_on_without_its_island(said: Any) -> None:
    members = members_of_three()
    assert (
        met(notice("island-0"), notice("island-1", at_unix=time.time() - FRESH_SECONDS - 60, **said), members=members)
        is None
    )
    assert "too old by this clock" in members._unmet
    assert members.holds == [], "it is remembered"


def test_what_is_no_notice_under_a_members_name_lets_nobody_go_on_without_it() -> None:
    members = members_of_three()
    forged = notice("island-1", inner_steps=7)
    assert met(notice("island-0"), forged, keys=KEYS | {"island-1": KEYS["island-5"]}, members=members) is None
    assert "the entry of island-1 is not a notice" in members._unmet
    assert members.holds == []
    found = met(notice("island-0"), notice("island-1"), members=members)
    assert found is not None
    assert found.meeting is not None, "it is held against the island later"


def test_names_that_no_island_has_or_an_excluded_one_change_nothing() -> None:
    forged, stranger = notice("island-1", inner_steps=7), notice("island-4", inner_steps=7)
    found = met(notice("island-0"), forged, stranger, excluded=("island-1",))
    assert found is not None
    assert found.meeting is not None
    assert (found.held, found.came) == ({}, ["island-0"])


@pytest.mark.parametrize(
    ("change", "held"), [({"colour": "red"}, True), ({"run": "another"}, False), ({"at_unix": 5.0}, False)]
)
def test_a_member_with_software_whose_notices_have_other_fields_holds_its_group_up(change: Any, held: bool) -> None:
    document: Any = notice("island-1").model_dump(mode="json") | {"colour": "red"} | change
    signature = KEYS["island-1"].sign(b"shoal/IslandNotice/v1\0" + rfc8785.dumps(document)).hex()
    envelope = {"document": document, "signer": KEYS["island-1"].public, "signature": signature}
    mine = notice("island-0")
    texts = {"island-0": sign(mine, KEYS["island-0"]).to_json().decode(), "island-1": json.dumps(envelope)}
    came: Any = SimpleNamespace(name="1-2-3", participants=[(name, {"notice": text}) for name, text in texts.items()])
    found = members_of_three()._met(came, mine)
    if not held:
        assert found is None
        return
    assert found is not None
    assert found.meeting is None
    assert list(found.held["island-1"]) == ["software version"]
    assert found.came == ["island-0", "island-1"]


def test_who_is_excluded_neither_meets_nor_holds_up_nor_is_held_up_for() -> None:
    there = (notice("island-1", holds=("island-2",)), notice("island-2", inner_steps=7))
    found = met(notice("island-0"), *there, excluded=("island-2",))
    assert found is not None
    assert found.meeting is not None
    assert ([each.island for each in found.meeting.notices], found.came, found.held) == (
        ["island-0", "island-1"],
        ["island-0", "island-1"],
        {},
    )


def test_a_member_of_another_layout_holds_its_group_up_with_the_reason() -> None:
    found = met(notice("island-0"), notice("island-1", layout="f" * 64), notice("island-2"))
    assert found is not None
    assert found.meeting is None
    assert found.company
    assert list(found.held["island-1"]) == ["ranks or shapes"]
    assert found.came == ["island-0", "island-1", "island-2"]
