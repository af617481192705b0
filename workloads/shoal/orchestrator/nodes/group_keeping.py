"""Keeps groups of nodes in Redis, and each node's place in its record, as `groups` decides. Called once a round of the background work.

Several orchestrators take turns by a short lock. Groups are in Redis only: when it is lost, nodes are grouped anew once their pools are known again.
A node's place is written before the group is, so that a heartbeat noted after `formed_unix` was answered with it.
"""

import secrets

from pydantic import Field

from shoal.contracts.base import Contract, LeaseId, NodeId, RunName
from shoal.contracts.node_states import MEMBERS
from shoal.contracts.protocol import GroupPlace
from shoal.orchestrator.nodes.groups import Candidate, GroupState, NodeGroup, follow, form
from shoal.orchestrator.records import NodeRecord
from shoal.orchestrator.run_state import RunState
from shoal.telemetry import get_logger

LOCK_SECONDS = 10
"""A round takes milliseconds; one whose orchestrator died under it holds the others up for so long."""
ROUND_TRIP = "heartbeat_round_trip_ms"


class GroupRecord(Contract):
    """A group in Redis."""

    group: LeaseId
    pool: RunName
    nodes: list[NodeId] = Field(min_length=1, max_length=64)
    state: GroupState = "Formed"
    formed_unix: float


def keep_groups(state: RunState) -> None:
    """One round for every pool whose nodes work together; nothing where there is none."""
    sizes = {terms.name: terms.group_size for terms in state.config.pools if terms.group_size > 1}
    if not sizes:
        return
    token = secrets.token_hex(16)
    lock = f"{state.prefix}:groups-lock"
    if not state.redis.set(lock, token, nx=True, ex=LOCK_SECONDS):
        return
    try:
        records = state.nodes.all()
        kept = [GroupRecord.from_json(data) for data in state.redis.hvals(_key(state))]
        for pool, size in sizes.items():
            members = [record for record in records if record.pool == pool and record.state in MEMBERS]
            _keep_pool(state, pool, size, members, [group for group in kept if group.pool == pool])
        for group in kept:
            if group.pool not in sizes:
                state.redis.hdel(_key(state), group.group)
        members_now = {record.node for record in records if record.pool in sizes and record.state in MEMBERS}
        for record in records:
            if record.group is not None and record.node not in members_now:
                state.nodes.change(record, group=None)
    finally:
        if state.redis.get(lock) == token:
            state.redis.delete(lock)


def _keep_pool(state: RunState, pool: str, size: int, members: list[NodeRecord], kept: list[GroupRecord]) -> None:
    before = {group.group: group for group in kept}
    places = {record.node: record for record in members}
    candidates = [_candidate(record) for record in members]
    standing = follow([_group(group, places) for group in kept], candidates, size)
    for name in set(before) - {group.group for group in standing}:
        state.redis.hdel(_key(state), name)
        get_logger().info("group dissolved", group=name, pool=pool, nodes=len(before[name].nodes))
    made = form(standing, candidates, size, secrets.token_hex(16))
    wanted: dict[str, GroupPlace] = {}
    for group in (*standing, *made):
        for rank, node in enumerate(group.nodes):
            wanted[node] = GroupPlace(
                group=group.group, rank=rank, nodes=list(group.nodes), ready=group.state == "Ready"
            )
    for record in members:
        if record.group != wanted.get(record.node):
            state.nodes.change(record, group=wanted.get(record.node))
    for group in (*standing, *made):
        formed = before[group.group].formed_unix if group.group in before else state.clock()
        after = GroupRecord(
            group=group.group, pool=pool, nodes=list(group.nodes), state=group.state, formed_unix=formed
        )
        if before.get(group.group) != after:
            state.redis.hset(_key(state), group.group, after.to_json())
            get_logger().info("group", group=group.group, pool=pool, state=group.state, nodes=len(group.nodes))


def _group(group: GroupRecord, members: dict[str, NodeRecord]) -> NodeGroup:
    """A kept group, with those of its nodes that have had a heartbeat answered since they were given their places."""
    told = frozenset(
        node
        for node in group.nodes
        if (record := members.get(node)) is not None
        and record.group is not None
        and record.group.group == group.group
        and record.last_heartbeat_unix > group.formed_unix
    )
    return NodeGroup(group.group, tuple(group.nodes), group.state, told)


def _candidate(record: NodeRecord) -> Candidate:
    return Candidate(
        node=record.node, block=record.address, round_trip_ms=max(0.0, record.metrics.get(ROUND_TRIP, 0.0))
    )


def _key(state: RunState) -> str:
    return f"{state.prefix}:groups"
