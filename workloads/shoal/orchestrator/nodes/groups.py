"""Groups: nodes of a pool that must work together, chosen by what they have and how close they are. Pure.

Comes in: the members of a pool whose `groupSize` is above 1, and the groups that stand. Goes out: the groups as they are to be. A group stands while
each of its nodes is a member of the run; when one is lost it is dissolved and the others are free for new ones. The order of a group is the rank of
its nodes, and does not change while it stands. `group_keeping` keeps them in Redis.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

GroupState = Literal["Formed", "Ready", "Dissolved"]
GroupEvent = Literal["all-told", "member-lost", "size-changed"]

GROUP_EDGES: dict[tuple[GroupState, GroupEvent], GroupState] = {
    # Every member has had a heartbeat answered with its place: they may meet.
    ("Formed", "all-told"): "Ready",
    ("Formed", "member-lost"): "Dissolved",
    ("Ready", "member-lost"): "Dissolved",
    ("Formed", "size-changed"): "Dissolved",
    ("Ready", "size-changed"): "Dissolved",
}

NEAR_MS = 5.0
"""Times to the orchestrator that differ by less are taken for the same: they change more from one heartbeat to the next."""


def next_group_state(state: GroupState, event: GroupEvent) -> GroupState:
    """Where `event` leads; the same state when the table has no such edge. A dissolved group does not come back."""
    return GROUP_EDGES.get((state, event), state)


@dataclass(frozen=True)
class Candidate:
    """A member as it is looked at for a group."""

    node: str
    kind: str = ""
    """What all of a group must have in common, such as the type of GPU."""
    block: str = ""
    """Address block as discovery saw it."""
    round_trip_ms: float = 0.0
    """Measured by the node from its heartbeats; 0: not known. A claim: it decides about neighbours, nothing else."""


@dataclass(frozen=True)
class NodeGroup:
    """Nodes by rank, and who of them has been told."""

    group: str
    nodes: tuple[str, ...]
    state: GroupState = "Formed"
    told: frozenset[str] = frozenset()


def network(block: str) -> str:
    """The larger network of an address block: the first two numbers of IPv4, the first 48 bits of IPv6. Who shares it is probably near."""
    if ":" in block:
        return ":".join(block.split("/")[0].split(":")[:3])
    return ".".join(block.split(".")[:2])


def follow(groups: Iterable[NodeGroup], members: Sequence[Candidate], size: int) -> list[NodeGroup]:
    """The groups that stand after a look at the members; those that do not are dissolved (and not returned)."""
    present = {member.node: member.kind for member in members}
    standing = []
    for group in groups:
        state = group.state
        if len({present.get(node) for node in group.nodes}) != 1 or any(node not in present for node in group.nodes):
            state = next_group_state(state, "member-lost")
        if len(group.nodes) != size:
            state = next_group_state(state, "size-changed")
        if group.told >= set(group.nodes):
            state = next_group_state(state, "all-told")
        if state != "Dissolved":
            standing.append(NodeGroup(group.group, group.nodes, state, group.told))
    return standing


def form(groups: Sequence[NodeGroup], members: Sequence[Candidate], size: int, salt: str) -> list[NodeGroup]:
    """New groups of members that have none, neighbours together; who is left over waits.

    `salt` (random) makes the names of groups, so that one that was dissolved is never taken for its successor.
    """
    taken = {node for group in groups for node in group.nodes}
    alike: defaultdict[str, list[Candidate]] = defaultdict(list)
    for member in members:
        if member.node not in taken:
            alike[member.kind].append(member)
    made = []
    for _, free in sorted(alike.items()):
        free.sort(key=_place)
        for begin in range(0, len(free) - size + 1, size):
            nodes = tuple(member.node for member in free[begin : begin + size])
            made.append(NodeGroup(_name(salt, nodes), nodes))
    return made


def _place(member: Candidate) -> tuple[str, str, int, str]:
    """Neighbours are next to one another in this order: by network, then block, then time to the orchestrator."""
    return network(member.block), member.block, int(member.round_trip_ms / NEAR_MS), member.node


def _name(salt: str, nodes: Sequence[str]) -> str:
    return hashlib.sha256("\n".join([salt, *nodes]).encode()).hexdigest()[:32]
