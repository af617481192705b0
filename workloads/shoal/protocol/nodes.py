"""The nodes of a run in Redis: one record a node, changed only along the edges of `node_states`.

Comes in: invites, heartbeats, silence, slashes. Goes out: records, and who may act (`require_member`). Called by the orchestrator's services and its
background work; `recovery` fills it again from the ledger.
"""

import threading
from collections.abc import Set
from typing import Any

import redis

from shoal.contracts.protocol import NodeState
from shoal.protocol.node_states import EXCLUDED, MEMBERS, Event, next_state
from shoal.protocol.records import NodeRecord
from shoal.transport.server import Problem


class NodeRegistry:
    """Records under the hash `<prefix>:nodes`. `evicted` is the ledger's word, which no record overrules. Safe to use from several threads."""

    def __init__(self, client: redis.Redis, prefix: str, evicted: Set[str]) -> None:
        self._redis = client
        self._hash = f"{prefix}:nodes"
        self._evicted = evicted
        self._lock = threading.Lock()  # a heartbeat must not write back what it read before an eviction

    def get(self, node: str) -> NodeRecord | None:
        data = self._redis.hget(self._hash, node)
        if data is None:
            return NodeRecord(node=node, state="Evicted") if node in self._evicted else None
        return self._as_the_ledger_says(NodeRecord.from_json(data))

    def _as_the_ledger_says(self, record: NodeRecord) -> NodeRecord:
        if record.node in self._evicted and record.state not in EXCLUDED:
            return record.model_copy(update={"state": "Evicted"})
        return record

    def all(self) -> list[NodeRecord]:
        return [self._as_the_ledger_says(NodeRecord.from_json(data)) for data in self._redis.hvals(self._hash)]

    def put(self, record: NodeRecord) -> None:
        self._redis.hset(self._hash, record.node, record.to_json())

    def put_if_absent(self, record: NodeRecord) -> None:
        self._redis.hsetnx(self._hash, record.node, record.to_json())

    def change(self, record: NodeRecord, event: Event | None = None, **changes: Any) -> NodeRecord:
        """Apply an event and field changes to a record, store and return it. An excluded node stays what it is whatever a stale copy says."""
        with self._lock:
            current = self.get(record.node) or record
            state = next_state(current.state, event) if event is not None else current.state
            changed = current.model_copy(update={"state": state, **changes})
            self.put(changed)
        return changed

    def counts(self) -> dict[NodeState, int]:
        """How many nodes are in each state that occurs."""
        found: dict[NodeState, int] = {}
        for record in self.all():
            found[record.state] = found.get(record.state, 0) + 1
        return found

    def require_known(self, node: str) -> NodeRecord:
        """The record of a node that is not excluded; raises `Problem` 403."""
        record = self.get(node)
        if record is not None and record.state in EXCLUDED:
            raise Problem(
                403,
                record.state,
                f"node {node[:12]}... is {record.state.lower()} from this run and does not come back; the ledger has the reason",
            )
        if record is None or record.state == "Discovered":
            raise Problem(
                403, "Not admitted", "register at discovery, wait for an invite, and bring it with the first heartbeat"
            )
        return record

    def require_member(self, node: str) -> NodeRecord:
        """The record of a node that may work; raises `Problem` 403 with its state as the reason."""
        record = self.require_known(node)
        if record.state not in MEMBERS:
            raise Problem(
                403,
                "Not a member now",
                f"node {node[:12]}... is {record.state}: bring an invite with a heartbeat (a dead node registers again)",
            )
        return record
