"""Leases without a file: handed back, displaced, or expired. The place is free at once.

Comes in: `LeaseReturn` of a node. A return costs the node what a lease costs that runs out (`standing`), except when the step was sealed meanwhile.
It gains nothing by either: the next lease that it gets for the same step is the same one. Its submission number, and so its prompts and seeds, are
the same too. Otherwise a node could skip whatever it prefers not to do. Called by the orchestrator's route and by `work.lease_for`; every lease that
ends without a file ends here.
"""

from collections.abc import Sequence
from typing import Literal

from shoal.contracts.protocol import Lease, LeaseReturn
from shoal.orchestrator.evaluation import credit
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work.leases import is_open
from shoal.orchestrator.work.parts import is_own
from shoal.orchestrator.work.records import DrawnBy, LeaseRecord
from shoal.orchestrator.work.standing import drop
from shoal.telemetry import get_logger


def take_back(state: RunState, request: LeaseReturn) -> None:
    """End a lease; one that is over or has its file is unchanged. Raises `Refusal`."""
    with state.lease_lock:
        record = state.leases.require(request.lease, request.node)
        if not is_open(record, state.clock()):
            return
        end(state, record.model_copy(update={"sha256": None, "size": None}), "returned")
    get_logger().info("lease returned", node=request.node, step=record.lease.step, submission=record.lease.submission)


def give_up_leases(state: RunState, node: str) -> None:
    """End what a node holds that is dead or excluded."""
    now = state.clock()
    with state.lease_lock:
        for record in state.leases.all():
            if record.lease.node == node and is_open(record, now):
                end(state, record, "abandoned")


def end(state: RunState, record: LeaseRecord, status: Literal["abandoned", "returned"]) -> None:
    """Close an open lease for which no file came, at its node's account. Handing back what another node left off is free: it goes to one more. What
    nobody had begun costs what a draw of its own does: a node chooses as little among these."""
    state.leases.put(record.model_copy(update={"status": status, "charged": False}))
    credit.give_back(state, record)
    if status != "returned" or is_own(record) or record.sized:
        drop(state, record)


def give_again(
    state: RunState,
    ended: Sequence[LeaseRecord],
    step: int,
    expires_unix: float,
    drawn_by: DrawnBy,
    *,
    takes_parts: bool,
) -> Lease | None:
    """The lease with the lowest number among a node's leases for this step that `ended` without a file, now open again; None when there is none.

    The rest of a lease is for everybody (`parts`). A sized lease of its own draw is still the node's where it `takes_parts` and nobody has begun it
    since. The caller holds `lease_lock`.
    """
    followed = {record.follows for record in state.leases.all()} if any(record.sized for record in ended) else set()
    without_file = [
        record
        for record in ended
        if record.status in ("returned", "abandoned")
        and record.lease.step == step
        and (
            record.part is None
            or (takes_parts and record.sized and is_own(record) and record.lease.lease not in followed)
        )
    ]
    if not without_file:
        return None
    record = min(without_file, key=lambda each: each.lease.submission)
    return state.leases.give_again(record, state.clock(), expires_unix, drawn_by)
