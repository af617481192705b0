"""Groups of nodes: how they are chosen, that they stand and fall together, and what their nodes are told; over a real Redis for the keeping."""

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_states import Orchestrator

from servers import Redis
from shoal.contracts.pools import PoolTerms
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import GroupPlace, Heartbeat
from shoal.orchestrator.nodes import membership
from shoal.orchestrator.nodes.group_keeping import keep_groups
from shoal.orchestrator.nodes.groups import (
    Candidate,
    GroupEvent,
    GroupState,
    NodeGroup,
    follow,
    form,
    network,
    next_group_state,
)

STATES: tuple[GroupState, ...] = get_args(GroupState)
EVENTS: tuple[GroupEvent, ...] = get_args(GroupEvent)

candidates = st.lists(
    st.builds(
        Candidate,
        node=st.integers(0, 40).map(lambda n: f"{n:064x}"),
        kind=st.sampled_from(["a", "b"]),
        block=st.sampled_from(["", "203.0.113.7", "203.0.99.1", "198.51.100.2", "2001:db8:1::/64"]),
        round_trip_ms=st.floats(0, 500),
    ),
    unique_by=lambda member: member.node,
    max_size=30,
)


@given(members=candidates, size=st.integers(2, 5))
def test_every_group_has_its_size_one_kind_and_nodes_of_its_own(members: list[Candidate], size: int) -> None:
    kinds = {member.node: member.kind for member in members}
    made = form([], members, size, "salt")
    nodes = [node for group in made for node in group.nodes]
    assert len(nodes) == len(set(nodes))
    assert all(len(group.nodes) == size and len({kinds[node] for node in group.nodes}) == 1 for group in made)
    for kind in "ab":
        left = [node for node, its in kinds.items() if its == kind and node not in nodes]
        assert len(left) < size, "nobody waits who could have been grouped"


@given(members=candidates, size=st.integers(2, 4), lost=st.sets(st.integers(0, 29)), order=st.randoms())
@settings(max_examples=60)
def test_groups_without_a_loss_stand_and_the_others_are_dissolved(
    members: list[Candidate], size: int, lost: set[int], order: object
) -> None:
    before = form([], members, size, "one")
    order.shuffle(members)  # type: ignore[attr-defined]
    gone = {member.node for index, member in enumerate(members) if index in lost}
    left = [member for member in members if member.node not in gone]
    standing = follow(before, left, size)
    assert {group.group for group in standing} == {g.group for g in before if not set(g.nodes) & gone}
    assert all(group.nodes == next(g.nodes for g in before if g.group == group.group) for group in standing)
    after = form(standing, left, size, "two")
    assert {group.group for group in after} & {group.group for group in before} == set(), "names are never used again"
    grouped = [node for group in (*standing, *after) for node in group.nodes]
    assert len(grouped) == len(set(grouped))


def test_neighbours_come_together() -> None:
    near = [
        Candidate(f"{n:064x}", block=b)
        for n, b in enumerate(["203.0.113.7", "198.51.100.2", "203.0.99.1", "198.51.100.9"])
    ]
    pairs = [{network(near[int(node, 16)].block) for node in group.nodes} for group in form([], near, 2, "s")]
    assert pairs == [{"198.51"}, {"203.0"}]
    times = [Candidate(f"{n:064x}", round_trip_ms=ms) for n, ms in enumerate([200.0, 10.0, 210.0, 12.0])]
    assert [{int(node, 16) for node in group.nodes} for group in form([], times, 2, "s")] == [{1, 3}, {0, 2}]


@pytest.mark.parametrize(("block", "of"), [("203.0.113.7", "203.0"), ("2001:db8:1:2::/64", "2001:db8:1"), ("", "")])
def test_the_larger_network_of_an_address(block: str, of: str) -> None:
    assert network(block) == of


def test_every_edge_of_a_groups_life() -> None:
    table = {(state, event): next_group_state(state, event) for state in STATES for event in EVENTS}
    assert {key: to for key, to in table.items() if key[0] != to} == {
        ("Formed", "all-told"): "Ready",
        ("Formed", "member-lost"): "Dissolved",
        ("Formed", "size-changed"): "Dissolved",
        ("Ready", "member-lost"): "Dissolved",
        ("Ready", "size-changed"): "Dissolved",
    }


def test_a_group_of_another_size_than_the_pools_is_dissolved_and_one_that_was_told_is_ready() -> None:
    members = [Candidate(f"{n:064x}") for n in range(2)]
    nodes = tuple(member.node for member in members)
    assert follow([NodeGroup("g" * 32, nodes)], members, 3) == []
    (ready,) = follow([NodeGroup("g" * 32, nodes, told=frozenset(nodes))], members, 2)
    assert ready.state == "Ready"


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    made = Orchestrator(tmp_path, redis_server.url, pools=[PoolTerms(name="pool", open=True, group_size=2)])
    made.announce(0)
    return made


def place(run: Orchestrator, node: str) -> GroupPlace | None:
    assignment = membership.heartbeat(run.state, Heartbeat(node=node)).assignment
    return assignment.group if assignment is not None else None


def test_nodes_are_told_their_place_and_grouped_anew_when_one_dies(run: Orchestrator) -> None:
    one, two, three = (run.join() for _ in range(3))
    assert place(run, one) is None, "who has no group has nothing to do yet"
    keep_groups(run.state)
    run.clock.now += 1
    first = [node for node in (one, two, three) if place(run, node) is not None]
    assert len(first) == 2
    places = {node: place(run, node) for node in first}
    assert sorted(found.rank for found in places.values() if found is not None) == [0, 1]
    assert {tuple(found.nodes) for found in places.values() if found is not None} == {
        tuple(sorted(first, key=lambda n: places[n].rank))
    }  # type: ignore[union-attr]
    keep_groups(run.state)
    ready = place(run, first[0])
    assert ready is not None
    assert ready.ready

    for _ in range(4):  # one falls silent, the others go on
        run.clock.now += 10
        for node in (one, two, three):
            if node != first[0]:
                run.beat(node)
    membership.reap(run.state)
    keep_groups(run.state)
    others = [node for node in (one, two, three) if node != first[0]]
    again = [place(run, node) for node in others]
    assert all(found is not None and found.group != ready.group and not found.ready for found in again)


def test_two_orchestrators_that_take_turns_keep_one_set_of_groups(run: Orchestrator) -> None:
    nodes = [run.join() for _ in range(4)]
    keep_groups(run.state)
    run.clock.now += 1
    before = [place(run, node) for node in nodes]
    second = run.new_state()
    second.ledger.load()
    keep_groups(second)
    assert [found.group for found in before if found] == [found.group for node in nodes if (found := place(run, node))]


def test_after_redis_was_lost_nodes_register_anew_and_are_grouped_again(run: Orchestrator) -> None:
    nodes = [run.join() for _ in range(2)]
    keep_groups(run.state)
    run.lose_redis()
    keep_groups(run.state)
    for number, node in enumerate(nodes):
        with pytest.raises(Refusal, match="pool-forgotten"):
            run.beat(node)
        assert run.beat(node, run.invite(node, f"{number:032x}")) == "Healthy"
    keep_groups(run.state)
    assert all(place(run, node) is not None for node in nodes)
