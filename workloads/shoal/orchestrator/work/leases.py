"""Leases: the right of a node to submit one file for one step, numbered one after the other.

A lease is written to the store before it is given (`leases/<step>/<node>/<number>.json`, create-if-absent), so a number is never given twice even
when Redis is lost; its state is in Redis. Called by `services` for `POST /v1/leases`, uploads and submissions, and by the background work.
"""

import secrets
from collections.abc import Callable
from typing import Literal

import redis

from shoal.contracts import keys
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import Lease
from shoal.contracts.work import FIRST_PART_NUMBER, LeasePart
from shoal.orchestrator.doubts import Doubts, LeasesInDoubt
from shoal.orchestrator.record_cache import RecordCache
from shoal.orchestrator.work.records import DrawnBy, LeaseRecord
from shoal.storage import Store

FIRST_OPEN_LEASES, MAX_OPEN_LEASES = 2, 4
"""A node fills its engine with rows of one lease as those of another end, and hands in a third. It shows that it can by its files: it may have two
leases at first, and one more for each `FILES_A_LEASE`. Asking for a further one drops the oldest: that worker has moved on or was restarted."""
FILES_A_LEASE = 4
"""Accepted files since the last rejected one, beyond those of its probation."""
PROBATION_LEASES = 1
"""Leases of a key on probation: keys are free, and each would hold two places of a step. A second request drops the first lease."""
UPLOAD_SECONDS = 60.0
"""Life of an upload grant beyond the transfer itself."""
SLOWEST_UPLOAD = 256 * 1024
"""Bytes a second of the slowest line that is waited for."""
MEMORY_SECONDS = 120.0
"""How long the leases of a sealed step are remembered after their own end, so that a late notice gets `expired` and not a riddle."""


def upload_seconds(size: int) -> float:
    """How long an upload of `size` bytes may take."""
    return UPLOAD_SECONDS + size / SLOWEST_UPLOAD


def is_open(record: LeaseRecord, now_unix: float) -> bool:
    """Whether a file may still come for this lease."""
    return record.status == "open" and record.lease.expires_unix > now_unix


def other_file(lease: str, sha256: str) -> Refusal:
    """The message for a second file on one lease; `sha256`: of the first."""
    words = f"lease {lease} was bound to file {sha256[:12]}...: one lease is good for one file"
    return Refusal(ProblemCode.LEASE_FOR_ANOTHER_FILE, words)


def given_up(records: list[LeaseRecord], now_unix: float, most: int = MAX_OPEN_LEASES) -> list[LeaseRecord]:
    """Open leases of one node that a further lease pushes out, so that it has `most` at most: the oldest."""
    held = sorted((r for r in records if is_open(r, now_unix)), key=lambda r: r.lease.expires_unix)
    return held[: max(0, len(held) - (most - 1))]


def not_heard_of(records: list[LeaseRecord], step: int, now_unix: float, fresh_unix: float) -> LeaseRecord | None:
    """Of leases that their node does not name the first one for this step that it can still use: the answer that gave it was lost. It is given once
    more with the end that it has, so that asking prolongs nothing; with less than half the time to `fresh_unix` left it is of no use."""
    usable = [
        record
        for record in records
        if is_open(record, now_unix)
        and (record.lease.step, record.sha256) == (step, None)
        and record.lease.expires_unix - now_unix >= (fresh_unix - now_unix) / 2
    ]
    return min(usable, key=lambda record: record.lease.submission, default=None)


def halves(whole: LeasePart, count: int) -> tuple[LeasePart, LeasePart | None]:
    """The first `count` groups of a part, and the others."""
    first, left = whole.groups[:count], whole.groups[count:]
    return whole.model_copy(update={"groups": first}), (whole.model_copy(update={"groups": left}) if left else None)


def _parts_of(step: int, node: str) -> str:
    """The counter of a node's leases that finish another one."""
    return f"{step}/{node}/parts"


class LeaseBook:
    """Leases of the steps under way, under the hash `<prefix>:leases`."""

    def __init__(self, client: redis.Redis, prefix: str, store: Store, doubts: Doubts) -> None:
        self._redis = client
        self._hash = f"{prefix}:leases"
        self._numbers = f"{prefix}:submission-numbers"
        self._store = store
        self._doubts = doubts
        self._parsed = RecordCache(LeaseRecord.from_json)

    def all(self) -> list[LeaseRecord]:
        return self._parsed.all(self._redis.hgetall(self._hash))

    def get(self, lease: str) -> LeaseRecord | None:
        data = self._redis.hget(self._hash, lease)
        return LeaseRecord.from_json(data) if data is not None else None

    def put(self, record: LeaseRecord) -> None:
        self._redis.hset(self._hash, record.lease.lease, record.to_json())

    def put_if_absent(self, record: LeaseRecord) -> None:
        self._redis.hsetnx(self._hash, record.lease.lease, record.to_json())

    def forget(self, lease: Lease) -> None:
        """A lease of closed work, and the numbers of its node there, of which there would be one for each node and step. The store has them still."""
        self._redis.hdel(self._hash, lease.lease)
        self._redis.hdel(self._numbers, f"{lease.step}/{lease.node}", _parts_of(lease.step, lease.node))

    def issue(
        self,
        node: str,
        step: int,
        groups: int,
        given_unix: float,
        expires_unix: float,
        drawn_by: DrawnBy,
        first: Callable[[int], int] | None = None,
    ) -> Lease:
        """Give the next submission number of this node and step. The store decides: a number that is taken there is skipped.

        `first`: how many groups of a number a lease is for, where that may be fewer than all.
        """
        field = f"{step}/{node}"
        while True:
            number = int(self._redis.hincrby(self._numbers, field, 1)) - 1
            count = first(number) if first is not None else groups
            part, more = halves(LeasePart(node=node, submission=number, groups=list(range(groups))), count)
            lease = Lease(
                lease=secrets.token_hex(16),
                node=node,
                step=step,
                submission=number,
                expires_unix=expires_unix,
                part=part if more is not None else None,
            )
            record = LeaseRecord(
                lease=lease,
                groups=count,
                drawn_by=drawn_by,
                given_unix=given_unix,
                part=lease.part,
                sized=more is not None,
                more=more,
            )
            if self._write(record):
                return lease

    def issue_part(
        self,
        part: LeasePart,
        *,
        node: str,
        step: int,
        given_unix: float | None,
        expires_unix: float,
        drawn_by: DrawnBy | None,
        lease: str | None = None,
        follows: str | None = None,
        status: Literal["open", "returned"] = "open",
        sized: bool = False,
        more: LeasePart | None = None,
    ) -> LeaseRecord:
        """A lease for what another one left. Its number is one of those that draw nothing, so that a node passes over no draw of its own by it."""
        name = lease or secrets.token_hex(16)
        while True:
            count = int(self._redis.hincrby(self._numbers, _parts_of(step, node), 1))
            number = FIRST_PART_NUMBER + count - 1
            record = LeaseRecord(
                lease=Lease(lease=name, node=node, step=step, submission=number, expires_unix=expires_unix, part=part),
                groups=len(part.groups),
                status=status,
                drawn_by=drawn_by,
                given_unix=given_unix,
                part=part,
                follows=follows,
                sized=sized,
                more=more,
            )
            if self._write(record):
                return record

    def _write(self, record: LeaseRecord) -> bool:
        """Write a new lease to the store and to Redis; False where its number is taken."""
        lease = record.lease
        with self._doubts.about(LeasesInDoubt(lease.step, lease.node)):
            if not self._store.create(keys.lease(lease.step, lease.node, lease.submission), record.to_json()):
                return False
            self.put(record)
            return True

    def give_again(self, record: LeaseRecord, given_unix: float, expires_unix: float, drawn_by: DrawnBy) -> Lease:
        """Open a lease again that ended without a file. Where its node has changed its pool, the store, which outlives Redis, is informed."""
        lease = record.lease.model_copy(update={"expires_unix": expires_unix})
        changes = {"lease": lease, "status": "open", "sha256": None, "size": None, "charged": False}
        again = record.model_copy(update={**changes, "drawn_by": drawn_by, "given_unix": given_unix})
        if record.drawn_by != drawn_by:
            self._store.put(keys.lease(lease.step, lease.node, lease.submission), again.to_json())
        self.put(again)
        return lease

    def number_is_taken(self, lease: Lease) -> None:
        """Make later numbers of this node and step go on after this lease's."""
        field, number = f"{lease.step}/{lease.node}", lease.submission
        if number >= FIRST_PART_NUMBER:
            field, number = _parts_of(lease.step, lease.node), number - FIRST_PART_NUMBER
        if int(self._redis.hget(self._numbers, field) or 0) <= number:
            self._redis.hset(self._numbers, field, number + 1)

    def require(self, lease: str, node: str) -> LeaseRecord:
        """The node's own lease; raises `Refusal` for an unknown one and for another node's."""
        record = self.get(lease)
        if record is None:
            raise Refusal(
                ProblemCode.NO_SUCH_LEASE,
                f"lease {lease} is unknown or expired long ago: ask for the open step and a new lease",
            )
        if record.lease.node != node:
            raise Refusal(ProblemCode.LEASE_OF_ANOTHER_NODE, f"lease {lease} was not given to node {node[:12]}...")
        return record

    def name_file(self, record: LeaseRecord, sha256: str, size: int, expires_unix: float) -> LeaseRecord:
        """Bind a lease to the one file that it may hand in, and keep it open while that is uploaded; raises `Refusal`."""
        if record.sha256 is not None and (record.sha256, record.size) != (sha256, size):
            raise other_file(record.lease.lease, record.sha256)
        lease = record.lease.model_copy(update={"expires_unix": max(record.lease.expires_unix, expires_unix)})
        bound = record.model_copy(update={"lease": lease, "sha256": sha256, "size": size})
        self.put(bound)
        return bound
