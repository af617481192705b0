"""The nodes of a run in Redis: one record a node, changed only along the edges of `node_states`.

Comes in: invites, heartbeats, silence, slashes. Goes out: records, and who may act (`require_member`). Called by the orchestrator's services and its
background work; `recovery` fills it again from the ledger.
"""

from collections.abc import Callable, Sequence, Set
from typing import Any

import redis
from pydantic import Field

from shoal.contracts.base import Contract, NodeId, unset
from shoal.contracts.node_states import EXCLUDED, MEMBERS, Event, next_state
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import GroupPlace, NodeState
from shoal.orchestrator.record_cache import RecordCache

SWAP = """
local now = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if now ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
"""Writes a record only if the one before it is still there: heartbeats, evictions and other orchestrators write at the same time."""
DELETE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""
"""Deletes a record that has not changed."""
MOST_GONE = 1000
"""Records of dead nodes, and of refused ones, kept for `shoal node list`; the ledger has their work."""
FULL_ROOM = 2.0
"""Of a node that dropped no lease: it may hold as many as its files permit (`work.standing`)."""
MOST_TRIES = 100  # each lost try is another writer's progress on this one node


class NodeRecord(Contract):
    """One node as the orchestrator sees it. Times are seconds since 1970 on the orchestrator's clock unless said otherwise."""

    node: NodeId
    state: NodeState = "Discovered"
    pool: str = Field(
        default="", description="that it was last admitted to; empty: never, or not known since Redis was lost"
    )
    invited_pool: str = Field(
        default="", description="that its newest invite was for; of one without any: that it was refused"
    )
    outside: bool | None = Field(
        default=None, description="a stranger's machine; None: not known since the orchestrator lost its memory"
    )
    address: str = Field(
        default="",
        description="address block that its newest invite was given to; empty: not known since Redis was lost",
    )
    refused: str = Field(default="", description="why its registration was not answered with an invite")
    refused_unix: float = Field(default=0.0, description="when that was first so")
    last_heartbeat_unix: float = 0.0
    answered_seen_unix: float = Field(
        default=0.0, description="discovery's time of the registration that the last invite answered"
    )
    invite_nonce: str = ""
    capable_nonce: str = Field(default="", description="nonce of the invite under which its challenge was answered")
    uplink_mbps: float | None = Field(
        default=None,
        description="as discovery measured it before the registration of its newest invite; None: not measured",
    )
    gflops: float = Field(default=0.0, description="as that challenge measured them")
    challenge_seconds: float = Field(default=0.0, ge=0.0, description="how long that challenge took")
    invite_expires_unix: float = 0.0
    policy_version: int | None = None
    abandoned_leases: int = 0
    room: float = Field(
        default=FULL_ROOM,
        exclude_if=lambda room: room == FULL_ROOM,
        description="leases that it may hold: each dropped one halves it, accepted files restore it (`work.standing`)",
    )
    waits_until_unix: float = Field(
        default=0.0,
        exclude_if=lambda unix: unix == 0.0,
        description="before this time it gets no lease: it dropped one",
    )
    together: int | None = Field(
        default=None,
        exclude_if=unset,
        description="leases that its worker would have at a time, as it last said; None: it never did",
    )
    dropped_unix: float = Field(
        default=0.0,
        exclude_if=lambda unix: unix == 0.0,
        description="when it was last charged for a dropped lease: others that it had then cost nothing more",
    )
    overtaken_unix: float = Field(
        default=0.0,
        exclude_if=lambda unix: unix == 0.0,
        description="the same for a late lease of a step that others filled: others that it had then may still be dropped at a cost",
    )
    program_seconds: float = Field(
        default=0.0,
        ge=0.0,
        exclude_if=lambda seconds: seconds == 0.0,
        description="CPU seconds of its files' programs at that time, older ones counting less (`work.program_time`)",
    )
    program_seconds_unix: float = Field(default=0.0, exclude_if=lambda unix: unix == 0.0)
    restarts: int = Field(
        default=0, ge=0, description="milliseconds since 1970 of the newest restart that was asked for"
    )
    group: GroupPlace | None = Field(default=None, description="never given: an orchestrator of 0.2.0 could")
    welcome: bool = Field(
        default=False, description="an admin said that it may join, whatever its pool's admission says"
    )
    logs_wanted: str = Field(default="", description="id of a question for logs that was not answered")
    metrics: dict[str, float] = Field(default_factory=dict)

    @property
    def place(self) -> str:
        """The pool in which it counts: a member's own, of others the one that they are to come to."""
        return self.pool or self.invited_pool if self.state in MEMBERS else self.invited_pool or self.pool


class NodeRegistry:
    """Records under the hash `<prefix>:nodes`. `evicted` is the ledger's word, which no record overrules. Safe to use from several threads."""

    def __init__(self, client: redis.Redis, prefix: str, evicted: Set[str], banned: Set[str] = frozenset()) -> None:
        """`evicted`: all nodes that the ledger excludes; `banned`: those that an admin excluded."""
        self._redis = client
        self._hash = f"{prefix}:nodes"
        self._evicted = evicted
        self._banned = banned
        self._swap = client.register_script(SWAP)
        self._delete = client.register_script(DELETE)
        self.parsed = RecordCache(NodeRecord.from_json)
        self.crowded = False
        """Whether as many as are remembered waited outside at the last look: refusing another is then not worth a record."""

    def get(self, node: str) -> NodeRecord | None:
        data = self._redis.hget(self._hash, node)
        if data is None:
            return NodeRecord(node=node, state=self._excluded(node)) if node in self._evicted else None
        return self._as_the_ledger_says(self.parsed.read(node, data).record)

    def _as_the_ledger_says(self, record: NodeRecord) -> NodeRecord:
        if record.node in self._evicted and record.state not in EXCLUDED:
            return record.model_copy(update={"state": self._excluded(record.node)})
        return record

    def _excluded(self, node: str) -> NodeState:
        return "Banned" if node in self._banned else "Evicted"

    def all(self) -> list[NodeRecord]:
        return [self._as_the_ledger_says(record) for record in self.parsed.all(self._redis.hgetall(self._hash))]

    def forget_oldest(self, records: Sequence[NodeRecord]) -> int:
        """Delete the records of nodes that are gone or wait, except for the `MOST_GONE` of each that reported last; returns how many.

        Keys are free: who makes many, or leaves often, shall not fill Redis. A node that was forgotten registers again, as the gone do anyway.
        """
        dead = [record for record in records if record.state == "Dead" and not record.welcome]
        waiting = [record for record in records if record.state == "Discovered" and not record.welcome]
        self.crowded = len(waiting) >= MOST_GONE
        return self._forget(dead, lambda record: record.last_heartbeat_unix) + self._forget(
            waiting, lambda record: max(record.refused_unix, record.invite_expires_unix)
        )

    def _forget(self, gone: list[NodeRecord], heard_of: Callable[[NodeRecord], float]) -> int:
        deleted = 0
        for record in sorted(gone, key=heard_of, reverse=True)[MOST_GONE:]:
            seen = self.parsed.recall(record.node)
            if (
                seen is not None and seen.record == record
            ):  # what has changed since is not deleted, by the script neither
                deleted += int(self._delete(keys=[self._hash], args=[record.node, seen.text]))
        return deleted

    def put(self, record: NodeRecord) -> None:
        self._redis.hset(self._hash, record.node, record.to_json())

    def put_if_absent(self, record: NodeRecord) -> None:
        self._redis.hsetnx(self._hash, record.node, record.to_json())

    def change(self, record: NodeRecord, event: Event | None = None, **changes: Any) -> NodeRecord:
        """Apply an event and field changes to a record, store and return it. An excluded node keeps its state, whatever a stale copy has."""
        for _ in range(MOST_TRIES):
            text = self._redis.hget(self._hash, record.node) or ""
            current = (
                self._as_the_ledger_says(self.parsed.read(record.node, text).record)
                if text
                else self.get(record.node) or record
            )
            state = next_state(current.state, event) if event is not None else current.state
            changed = current.model_copy(update={"state": state, **changes})
            written = changed.to_json().decode()
            if self._swap(keys=[self._hash], args=[record.node, text, written]):
                self.parsed.remember(record.node, written, changed)
                return changed
        raise Refusal(
            ProblemCode.RECORD_BUSY, "other requests are changing the node's record: try again", retry_after_seconds=1
        )

    def counts(self) -> dict[NodeState, int]:
        """How many nodes are in each state that occurs."""
        found: dict[NodeState, int] = {}
        for record in self.all():
            found[record.state] = found.get(record.state, 0) + 1
        return found

    def require_known(self, node: str) -> NodeRecord:
        """The record of a node that is not excluded; raises `Refusal`."""
        record = self.get(node)
        if record is not None and record.state in EXCLUDED:
            raise Refusal(
                ProblemCode(record.state.lower()),
                f"node {node[:12]}... is {record.state.lower()} from this run and does not come back; the ledger has the reason",
            )
        if record is None or record.state == "Discovered":
            raise Refusal(
                ProblemCode.NOT_ADMITTED,
                "register at discovery, wait for an invite, and bring it with the first heartbeat",
            )
        return record

    def require_member(self, node: str) -> NodeRecord:
        """The record of a node that may work; raises `Refusal` with its state as the reason."""
        record = self.require_known(node)
        if record.state not in MEMBERS:
            raise Refusal(
                ProblemCode.NOT_A_MEMBER,
                f"node {node[:12]}... is {record.state}: bring an invite with a heartbeat (a dead node registers again)",
            )
        return record
