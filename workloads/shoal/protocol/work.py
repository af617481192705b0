"""Handing out work: the step that a node should serve, leases for it, and checks for validators.

Comes in: requests of members and validators. Goes out: `StepInfo`, `Lease`, `ValidationJob`. Which step, and whether there is room, is decided by
`allocation`; a step's beacon is recorded as revealed in the ledger before the first node sees it.
"""

import secrets

from shoal.contracts.protocol import ClaimRequest, Lease, LeaseRequest, StepInfo, ValidationJob
from shoal.contracts.seeds import beacon_commitment
from shoal.protocol import allocation
from shoal.protocol.leases import given_up, is_open, lease_seconds
from shoal.protocol.node_states import MEMBERS
from shoal.protocol.run_state import RunState
from shoal.protocol.verdicts import expire
from shoal.transport.server import Problem


def servable_steps(state: RunState, node: str) -> list[int]:
    """Openable steps that this node may serve, smallest first: not those whose beacon was known before it was admitted."""
    steps = state.openable_steps()
    if not any(step in state.view.revealed for step in steps):
        return steps
    joined = state.view.joined
    live = [joined[r.node] for r in state.nodes.all() if r.state in MEMBERS and r.node in joined]
    own = joined.get(node)
    if own is None:
        return []
    return [step for step in steps if allocation.may_serve(own, state.view.revealed.get(step), live)]


def step_for(state: RunState, node: str) -> StepInfo | None:
    """The step that a member should work on; None when none is open to it. When all that may be worked on is under way, the smallest is shown."""
    state.nodes.require_member(node)
    latest = state.view.latest_version
    steps = servable_steps(state, node)
    if not steps or latest is None:
        return None
    loads = state.loads(steps)
    step = allocation.step_to_serve(loads, state.signal_rate())
    load = next((load for load in loads if load.step == step), loads[0])
    state.reveal(load.step)
    value = state.beacon(load.step)
    oldest, newest = state.version_window(load.step)
    return StepInfo(
        run=state.config.run,
        step=load.step,
        beacon=value.hex(),
        commitment=beacon_commitment(value),
        min_version=oldest,
        max_version=newest,
        latest_version=latest,
        needed_groups=load.needed_groups,
        accepted_groups=load.accepted_groups,
        pending_groups=load.pending_groups,
    )


def lease_for(state: RunState, request: LeaseRequest) -> Lease:
    """A lease for a step with room; raises `Problem` 409 when the node should look again a little later."""
    record = state.nodes.require_member(request.node)
    if request.step not in servable_steps(state, request.node):
        raise Problem(
            409, "Step is not open to this node", f"step {request.step} is not open: ask GET /v1/step which one is"
        )
    with state.lease_lock:
        now = state.clock()
        mine = [r for r in state.leases.all() if r.lease.node == request.node]
        for old in given_up(mine, now):
            state.leases.put(old.model_copy(update={"status": "abandoned"}))
            record = state.nodes.change(record, abandoned_leases=record.abandoned_leases + 1)
        if not allocation.has_room(state.loads([request.step])[0], state.signal_rate()):
            raise Problem(
                409,
                "Enough is under way",
                f"step {request.step} will probably be filled by what is pending: ask GET /v1/step again in a second",
            )
        state.reveal(request.step)
        expires = now + lease_seconds(state.config.sampling.max_completion_tokens)
        return state.leases.issue(request.node, request.step, state.config.sampling.groups_per_submission, expires)


def end_overdue_leases(state: RunState) -> int:
    """Abandon leases whose time is over, at their nodes' account; returns how many."""
    now, ended = state.clock(), 0
    with state.lease_lock:
        for record in state.leases.all():
            if record.status != "open" or is_open(record, now):
                continue
            state.leases.put(record.model_copy(update={"status": "abandoned"}))
            node = state.nodes.get(record.lease.node)
            if node is not None:
                state.nodes.change(node, abandoned_leases=node.abandoned_leases + 1)
            ended += 1
    return ended


def claim(state: RunState, request: ClaimRequest) -> ValidationJob | None:
    """A file for this validator to check; files of sealed steps are settled as expired on the way. None when nothing waits."""
    while True:
        job = state.queue.claim(request.validator, state.clock(), state.config.validation.claim_seconds)
        if job is None:
            return None
        record = job.record
        if record.step in state.view.sealed:
            expire(state, record, f"step {record.step} was sealed before this file was checked")
            continue
        oldest, newest = state.version_window(record.step)
        return ValidationJob(
            claim=secrets.token_hex(16),
            run=record.run,
            node=record.node,
            lease=record.lease,
            step=record.step,
            submission=record.submission,
            sha256=record.sha256,
            size=record.size,
            beacon=state.beacon(record.step).hex(),
            min_version=oldest,
            max_version=newest,
        )
