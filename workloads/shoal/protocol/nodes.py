"""The nodes of a run in Redis: one record a node, changed only along the edges of `node_states`.

Comes in: invites, heartbeats, silence, slashes. Goes out: records, and who may act (`require_member`). Called by the orchestrator's services and its
background work; `recovery` fills it again from the ledger.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import redis

from shoal.contracts.protocol import NodeState
from shoal.protocol.node_states import EXCLUDED, MEMBERS, Event, next_state
from shoal.protocol.records import NodeRecord
from shoal.transport.server import Problem

SWAP = """
local now = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if now ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
"""Writes a record only if the one before it is still there: heartbeats, evictions and other orchestrators write at the same time."""
MOST_TRIES = 100  # each lost try is another writer's progress on this one node


@dataclass(frozen=True)
class Seen:
    """A record and the text in Redis that it was read from, or written as."""

    text: str
    record: NodeRecord


class NodeRegistry:
    """Records under the hash `<prefix>:nodes`. `evicted` is the ledger's word, which no record overrules. Safe to use from several threads.

    Records are kept as they were read last, so that going through ten thousand of them parses only what has changed. What is kept is never
    believed: it saves parsing a text that is still the same, no more.
    """

    def __init__(self, client: redis.Redis, prefix: str, evicted: Set[str], banned: Set[str] = frozenset()) -> None:
        """`evicted`: all that the ledger excludes; `banned`: those of them that an admin did."""
        self._redis = client
        self._hash = f"{prefix}:nodes"
        self._evicted = evicted
        self._banned = banned
        self._swap = client.register_script(SWAP)
        self._seen: dict[str, Seen] = {}

    def get(self, node: str) -> NodeRecord | None:
        data = self._redis.hget(self._hash, node)
        if data is None:
            return NodeRecord(node=node, state=self._excluded(node)) if node in self._evicted else None
        return self._as_the_ledger_says(self.read(data, node).record)

    def recall(self, node: str) -> Seen | None:
        """The record as it was read or written last; by now it may be another."""
        return self._seen.get(node)

    def remember(self, text: str, record: NodeRecord) -> Seen:
        """Keep what was just written."""
        seen = Seen(text, record)
        self._seen[record.node] = seen
        return seen

    def read(self, data: str | bytes, node: str | None = None) -> Seen:
        """Parse a record, unless it is the one that was read last of `node`."""
        text = data if isinstance(data, str) else data.decode()
        seen = self._seen.get(node) if node is not None else None
        return seen if seen is not None and seen.text == text else self.remember(text, NodeRecord.from_json(text))

    def _as_the_ledger_says(self, record: NodeRecord) -> NodeRecord:
        if record.node in self._evicted and record.state not in EXCLUDED:
            return record.model_copy(update={"state": self._excluded(record.node)})
        return record

    def _excluded(self, node: str) -> NodeState:
        return "Banned" if node in self._banned else "Evicted"

    def all(self) -> list[NodeRecord]:
        found = {str(node): text for node, text in self._redis.hgetall(self._hash).items()}
        if len(self._seen) > len(found):  # Redis was lost, or another run's records: what is gone need not be kept
            self._seen = {node: seen for node, seen in list(self._seen.items()) if node in found}
        return [self._as_the_ledger_says(self.read(text, node).record) for node, text in found.items()]

    def put(self, record: NodeRecord) -> None:
        self._redis.hset(self._hash, record.node, record.to_json())

    def put_if_absent(self, record: NodeRecord) -> None:
        self._redis.hsetnx(self._hash, record.node, record.to_json())

    def change(self, record: NodeRecord, event: Event | None = None, **changes: Any) -> NodeRecord:
        """Apply an event and field changes to a record, store and return it. An excluded node stays what it is whatever a stale copy says."""
        for _ in range(MOST_TRIES):
            text = self._redis.hget(self._hash, record.node) or ""
            current = (
                self._as_the_ledger_says(self.read(text, record.node).record)
                if text
                else self.get(record.node) or record
            )
            state = next_state(current.state, event) if event is not None else current.state
            changed = current.model_copy(update={"state": state, **changes})
            written = changed.to_json().decode()
            if self._swap(keys=[self._hash], args=[record.node, text, written]):
                self.remember(written, changed)
                return changed
        raise Problem(
            503, "Record is busy", "the node's record is being changed by others: try again", {"Retry-After": "1"}
        )

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
