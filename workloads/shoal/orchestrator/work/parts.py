"""Leases that are handed in in parts: what a file left out, and who finishes it.

Comes in: a file with whole groups of a lease (`HandedPart`), ends of leases, verdicts. Goes out: leases for the rest, drawn as the first node would
have drawn it. Each lease still has one file: the rest of one is a lease of its own, kept by its node or free for everybody. So each group is leased
to one node at a time. A part that is refused is free again, and so is one whose lease ends without a file.

A node gains nothing by leaving out what it dislikes: others draw just that, and the groups that it likes count only together with it
(`step_counter.counting`). Giving up a rest of its own costs a node what handing back a lease costs. A rest that nobody finishes is offered to
`MOST_CONTINUING` other nodes in turn and to none twice.

Costs: an object more in the store for each part and each rest. The lease for a rest is found in the leases of open steps, which a request for a
lease reads anyway. Called by `uploads`, `handout`, `verdicts` and `recovery`.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from shoal.contracts.base import LeaseId
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import HandedPart, Lease, rest_of
from shoal.contracts.work import LeasePart, may_be_parted
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work.leases import halves, is_open
from shoal.orchestrator.work.open_work import closed, known
from shoal.orchestrator.work.records import DrawnBy, LeaseRecord, SubmissionRecord
from shoal.orchestrator.work.standing import drop

FREE = ("returned", "abandoned")
MOST_CONTINUING = 2
"""Nodes that try a part which others left. What two of them could not finish, as its rows are too long for instance, no third one will."""


def split(state: RunState, lease: LeaseRecord, handed: HandedPart | None) -> tuple[LeasePart | None, LeasePart | None]:
    """The part that a file of this lease has, and the rest that it leaves; None for a whole lease and for no rest. Raises `Refusal`."""
    if handed is None:
        return lease.part, None
    work = known(state, lease.lease.step)
    if state.config.part_seconds is None:
        raise Refusal(
            ProblemCode.WRONG_GROUPS, "this run takes leases whole: its spec has no `rollouts.handInEverySeconds`"
        )
    if work is None or not may_be_parted(work):
        raise Refusal(ProblemCode.WRONG_GROUPS, f"a lease for {lease.lease.step} is handed in whole: it has no parts")
    whole = lease.part or LeasePart(
        node=lease.lease.node, submission=lease.lease.submission, groups=list(range(work.shape.groups))
    )
    there = set(handed.groups)
    rest = [place for place in whole.groups if place not in there]
    if not rest or len(rest) + len(handed.groups) != len(whole.groups):
        raise Refusal(
            ProblemCode.WRONG_GROUPS,
            f"groups {handed.groups[:8]} are no part of this lease, which holds {whole.groups[:8]}: name some of these and not all",
        )
    return (
        LeasePart(node=whole.node, submission=whole.submission, groups=handed.groups, left=len(rest)),
        LeasePart(node=whole.node, submission=whole.submission, groups=rest),
    )


def open_rest(state: RunState, file: SubmissionRecord, lease: LeaseRecord) -> LeaseRecord | None:
    """The lease for what a submitted file leaves, made once: its node's, or free at its node's account. The caller holds `lease_lock`."""
    if file.rest is None:
        return None
    found = state.leases.get(rest_of(file.lease))
    if found is not None:
        return found
    keeps = file.keeps_rest and lease.lease.expires_unix > state.clock()
    record = state.leases.issue_part(
        file.rest,
        node=file.node,
        step=file.step,
        given_unix=lease.given_unix,
        expires_unix=lease.lease.expires_unix,
        drawn_by=file.drawn_by,
        lease=rest_of(file.lease),
        status="open" if keeps else "returned",
    )
    if not keeps and is_own(record):
        drop(state, record)
    return record


def is_own(record: LeaseRecord) -> bool:
    """Whether the groups of a lease are drawn for its own node."""
    return record.part is None or record.part.node == record.lease.node


def more_of(lease: LeaseId) -> LeaseId:
    """The name of what a sized lease left of its draw."""
    return hashlib.sha256(b"shoal/more/v1\0" + bytes.fromhex(lease)).hexdigest()[:32]


def unbegun(records: Collection[LeaseRecord]) -> list[LeaseRecord]:
    """Groups that sized leases left and nobody has begun. Each is in the record of the lease that left it, so that one write makes both."""
    followed = {record.follows for record in records}
    return [
        LeaseRecord(
            lease=record.lease.model_copy(update={"lease": more_of(record.lease.lease)}),
            groups=len(record.more.groups),
            status="unbegun",
            part=record.more,
        )
        for record in records
        if record.more is not None and more_of(record.lease.lease) not in followed
    ]


def left_for(state: RunState, node: str, step: int) -> LeaseRecord | None:
    """The oldest lease of a step whose part this node may finish; None when there is none. What a sized lease left is for everybody. The caller holds
    `lease_lock`."""
    records = state.leases.all()
    by_name = {record.lease.lease: record for record in records}
    left = [
        record
        for record in free_parts(records, step, state.clock())
        if _is_offered(list(_tried(record, by_name)), node)
    ]
    left += [record for record in unbegun(records) if record.lease.step == step]
    return min(left, key=lambda each: (each.lease.expires_unix, each.lease.lease), default=None)


def _tried(record: LeaseRecord, by_name: Mapping[str, LeaseRecord]) -> Iterator[LeaseRecord]:
    """Leases that were for the same part, the last one first."""
    found: LeaseRecord | None = record
    while found is not None:
        yield found
        found = by_name.get(found.follows) if found.follows is not None else None


def steps_with_rests(records: Collection[LeaseRecord], now_unix: float) -> frozenset[int]:
    """Work with groups that nobody has begun, or that others left and somebody may still finish."""
    by_name = {record.lease.lease: record for record in records}
    in_parts = {record.lease.step for record in records if record.part is not None}
    free = [record for step in in_parts for record in free_parts(records, step, now_unix)]
    offered = [record for record in free if _continuing(list(_tried(record, by_name))) < MOST_CONTINUING]
    return frozenset(record.lease.step for record in (*offered, *unbegun(records)))


def _continuing(tried: Sequence[LeaseRecord]) -> int:
    """How many of these leases for a part were to finish what another left."""
    return sum(record.follows is not None and not record.sized for record in tried)


def _is_offered(tried: Sequence[LeaseRecord], node: str) -> bool:
    """Whether a part for which these leases were is offered to this node."""
    had = {record.lease.node for record in tried} | {
        record.part.node for record in tried if record.part is not None and not record.sized
    }
    return _continuing(tried) < MOST_CONTINUING and node not in had


def continued(
    state: RunState, before: LeaseRecord, node: str, expires_unix: float, drawn_by: DrawnBy, count: int | None = None
) -> Lease:
    """A lease of this node for the part that `left_for` found; of what a sized lease left, for the first `count` groups.

    The caller holds `lease_lock`. One write makes it: from then on the lease before it, which it names, is free no more, whatever is marked later.
    """
    assert before.part is not None
    is_unbegun = before.status == "unbegun"
    part, more = halves(
        before.part.model_copy(update={"left": 0}), (count if is_unbegun else None) or len(before.part.groups)
    )
    record = state.leases.issue_part(
        part,
        node=node,
        step=before.lease.step,
        given_unix=state.clock(),
        expires_unix=expires_unix,
        drawn_by=drawn_by,
        follows=before.lease.lease,
        sized=is_unbegun,
        more=more,
    )
    if not is_unbegun:
        state.leases.put(before.model_copy(update={"status": "passed"}))
    return record.lease


def free_parts(records: Collection[LeaseRecord], step: int, now_unix: float) -> list[LeaseRecord]:
    """Parts of this step's leases that nobody works on, and for which no file is there."""
    followed = {record.follows for record in records}
    return [
        record
        for record in records
        if record.part is not None
        and record.lease.step == step
        and record.lease.lease not in followed
        and (record.status in FREE or (record.status == "open" and not is_open(record, now_unix)))
    ]


def without_file(record: LeaseRecord) -> LeaseRecord:
    """A lease whose file was not accepted: another node has the next try, even where it is sized and of its node's own draw."""
    changes = {"status": "abandoned", "sha256": None, "size": None, "sized": record.sized and not is_own(record)}
    return record.model_copy(update=changes)


def free_again(state: RunState, lease: str) -> None:
    """After a verdict other than accept the groups of this lease's file are free for another node to draw, while their step is open."""
    with state.lease_lock:
        record = state.leases.get(lease)
        if record is None or record.part is None or record.status != "submitted":
            return
        if not closed(state, known(state, record.lease.step)):
            state.leases.put(without_file(record))
