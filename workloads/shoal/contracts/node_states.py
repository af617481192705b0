"""The states of a node: one table, one row an edge (DESIGN section 4).

`next_state` says where an event leads; an event without a row leaves the node where it is. Called by `nodes`, which keeps the state, for every
invite, heartbeat, silence and slash. Evicted has no way back, Banned only by the admin who banned: a node that is to return
needs a new key, and starts as a stranger.
"""

from typing import Literal

from shoal.contracts.protocol import HEARTBEAT_SECONDS, NodeState

Event = Literal["invited", "invite-expired", "joined", "heartbeat", "late", "silent", "evict", "ban", "unban"]

EDGES: dict[tuple[NodeState, Event], NodeState] = {
    ("Discovered", "invited"): "Invited",
    ("Invited", "invited"): "Invited",
    ("Invited", "invite-expired"): "Discovered",
    ("Invited", "joined"): "Healthy",
    # The node's agent restarted: it registered again and comes back with a new invite.
    ("Healthy", "joined"): "Healthy",
    ("Healthy", "late"): "Unhealthy",
    ("Healthy", "silent"): "Dead",
    ("Unhealthy", "joined"): "Healthy",
    ("Unhealthy", "heartbeat"): "Healthy",
    ("Unhealthy", "silent"): "Dead",
    # A dead node registers again by itself; a heartbeat alone does not bring it back, because its leases were given up.
    ("Dead", "invited"): "Invited",
    ("Dead", "joined"): "Healthy",
    ("Discovered", "evict"): "Evicted",
    ("Invited", "evict"): "Evicted",
    ("Healthy", "evict"): "Evicted",
    ("Unhealthy", "evict"): "Evicted",
    ("Dead", "evict"): "Evicted",
    ("Discovered", "ban"): "Banned",
    ("Invited", "ban"): "Banned",
    ("Healthy", "ban"): "Banned",
    ("Unhealthy", "ban"): "Banned",
    ("Dead", "ban"): "Banned",
    ("Evicted", "ban"): "Banned",
    # An admin takes a ban back; the ledger says whether the node was evicted besides, and then it stays so.
    ("Banned", "unban"): "Discovered",
}

LATE_SECONDS = 1.5 * HEARTBEAT_SECONDS
"""A heartbeat this late was missed, not merely slow on the way."""
SILENT_SECONDS = 3 * HEARTBEAT_SECONDS
"""Three heartbeats missed make a node Dead (DESIGN section 4)."""

MEMBERS: frozenset[NodeState] = frozenset({"Healthy", "Unhealthy"})
"""States in which a node may ask for work and hand it in."""
EXCLUDED: frozenset[NodeState] = frozenset({"Evicted", "Banned"})
"""States in which a node is refused everything."""


def next_state(state: NodeState, event: Event) -> NodeState:
    """Where `event` leads from `state`; the same state when the table has no such edge."""
    return EDGES.get((state, event), state)


def silence_event(silent_seconds: float) -> Event | None:
    """The event that a silence of this length causes for a member, or None for a usual one."""
    if silent_seconds >= SILENT_SECONDS:
        return "silent"
    return "late" if silent_seconds >= LATE_SECONDS else None
