"""Membership: heartbeats, admission, relay tokens, and the end of nodes that fell silent.

Comes in: heartbeats. Goes out: `HeartbeatReply`, entries node-joined and node-dead in the ledger, and node-invited where `inviting` wrote none.
Invites are made by `inviting`.
A node is admitted once its invite's nonce is in the ledger, which also makes invites single use across restarts.
"""

import math

from shoal.contracts.node_states import EXCLUDED, MEMBERS, silence_event
from shoal.contracts.pools import SAMPLER
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import (
    RELAY_TOKEN_SECONDS,
    Exclusions,
    Heartbeat,
    HeartbeatReply,
    RelayToken,
    Url,
)
from shoal.contracts.relay_token import encode
from shoal.ledger.entries import NodeDead, NodeInvited, NodeJoined
from shoal.ledger.facts import InvitedNode
from shoal.ledger.view import Files
from shoal.orchestrator.completeness import complete
from shoal.orchestrator.doubts import NodeInDoubt
from shoal.orchestrator.nodes import admin, capability_check
from shoal.orchestrator.nodes.invites import BadInvite, check_invite
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work.lease_returns import give_up_leases
from shoal.telemetry import get_logger


def heartbeat(state: RunState, beat: Heartbeat) -> HeartbeatReply:
    """Note that a node lives; admit it when it brings a good invite.

    Raises `Refusal` for strangers, the excluded, bad invites, and members that must register again (`require_pool`).
    """
    now = state.clock()
    record = state.nodes.get(beat.node)
    if beat.invite is not None and not _is_used(state, beat):
        record = _admit(state, beat, record)
    record = state.nodes.require_known(beat.node)
    require_pool(state, record)
    return reply_to(state, state.nodes.change(record, "heartbeat", **fields_of(beat, now)))


def is_in_order(state: RunState, record: NodeRecord) -> bool:
    """Whether `require_pool` has nothing against a node."""
    return not _is_shut_out(state, record) and not _must_register(state, record)


def require_pool(state: RunState, record: NodeRecord) -> None:
    """Raises `Refusal` for a member that must register again, which its agent then does by itself; its leases stand meanwhile.

    And for a stranger that became one before prepare had found that its rewards could not be scored again.
    """
    if _is_shut_out(state, record):
        words = "this run's rewards cannot be scored again, so that its own pods alone have work"
        raise Refusal(ProblemCode.NOT_ADMITTED, words)
    if _must_register(state, record):
        words = "the orchestrator lost this node's pool with Redis: register at discovery again"
        raise Refusal(ProblemCode.POOL_FORGOTTEN, words)


def _is_shut_out(state: RunState, record: NodeRecord) -> bool:
    return bool(record.outside) and state.rewards_claimed


def _must_register(state: RunState, record: NodeRecord) -> bool:
    """Whether what hangs on a member's registration went with Redis: what draws its tokens, its place at its address, or whose it is."""
    if record.state not in MEMBERS:
        return False
    if record.outside is None and state.rewards_claimed:
        return True  # a stranger's invite names a pool too
    return not record.pool and any(
        terms.sampler != SAMPLER or terms.admission.nodes_per_address for terms in state.config.pools
    )


def fields_of(beat: Heartbeat, now_unix: float) -> dict[str, object]:
    """The fields that a heartbeat writes into its node's record."""
    fields: dict[str, object] = {"last_heartbeat_unix": now_unix, "policy_version": beat.policy_version}
    if beat.metrics:
        fields["metrics"] = beat.metrics
    return fields


def reply_to(state: RunState, record: NodeRecord) -> HeartbeatReply:
    """The answer to a heartbeat that was just noted in `record`."""
    token = None
    if record.state == "Healthy":
        # The token carries whole seconds: rounding up keeps its life at least what the constant says.
        expires = math.ceil(record.last_heartbeat_unix) + RELAY_TOKEN_SECONDS
        token = encode(RelayToken(run=state.config.run, node=record.node, expires_unix=expires), state.key)
    files = state.view.files_of.get(record.node, Files())
    return HeartbeatReply(
        state=record.state,
        relay_token=token,
        relays=_relays_for(state, record),
        latest_version=state.view.latest_version,
        assignment=admin.assignment_of(record),
        logs_wanted=record.logs_wanted or None,
        files_accepted=files.accepted,
        files_rejected=files.rejected,
        run_complete=complete(state),
    )


def exclusions(state: RunState) -> Exclusions:
    """Who may not read from relays any more."""
    records = {record.node for record in state.nodes.all() if record.state in EXCLUDED}
    return Exclusions(nodes=sorted(records | state.view.evicted))


def _relays_for(state: RunState, record: NodeRecord) -> list[Url]:
    """Relays as the node reaches them: by their addresses from outside, where there are any, or from inside. One that is not known gets both."""
    addresses = state.config.addresses
    if record.outside is None:
        return [*addresses.relays, *addresses.public_relays]
    return addresses.public_relays if record.outside and addresses.public_relays else addresses.relays


def _is_used(state: RunState, beat: Heartbeat) -> bool:
    """A node repeats its first heartbeat when the answer was lost: its own used invite is then no offence and no new admission."""
    assert beat.invite is not None
    return state.view.invite_nonces.get(beat.invite.document.nonce) == beat.node


def _admit(state: RunState, beat: Heartbeat, record: NodeRecord | None) -> NodeRecord:
    assert beat.invite is not None
    if beat.node in state.view.evicted or (record is not None and record.state in EXCLUDED):
        raise Refusal(
            ProblemCode.EVICTED, f"node {beat.node[:12]}... was evicted from this run; the ledger has the reason"
        )
    try:
        invite = check_invite(
            beat.invite,
            orchestrator_key=state.key.public,
            run=state.config.run,
            node=beat.node,
            now_unix=state.clock(),
        )
    except BadInvite as error:
        raise Refusal(ProblemCode.INVITE_NOT_VALID, str(error)) from error
    if record is not None and record.outside and record.invite_nonce != invite.nonce:
        # What was decided of a stranger's machine (its pool, what it must show) was decided with the newest one.
        raise Refusal(ProblemCode.INVITE_NOT_VALID, "a newer invite was given; register at discovery for another")
    capability_check.require_answer(state, invite, record)
    with state.doubts.about(NodeInDoubt(beat.node)):
        if not state.view.has_invite(beat.node, invite.nonce):
            noted = InvitedNode(pool=invite.pool, expires_unix=invite.expires_unix)
            state.ledger.append(NodeInvited(node=beat.node, nonce=invite.nonce, invited=noted))
        state.ledger.append(NodeJoined(node=beat.node, nonce=invite.nonce))
        if state.view.invite_nonces.get(invite.nonce) != beat.node:
            words = "this invite was used before; register at discovery for a new one"
            raise Refusal(ProblemCode.INVITE_NOT_VALID, words)
        record = record or NodeRecord(node=beat.node, state="Invited")
        joined = state.nodes.change(record, "joined", pool=invite.pool, last_heartbeat_unix=state.clock())
    get_logger().info("node joined", node=beat.node, pool=invite.pool)
    return joined


def reap(state: RunState) -> None:
    """Mark silent members, end the leases of dead ones, withdraw unused invites, and forget nodes that left long ago."""
    now = state.clock()
    records = state.nodes.all()
    state.nodes.forget_oldest(records)
    for record in records:
        if record.state == "Invited" and record.invite_expires_unix < now:
            state.nodes.change(record, "invite-expired")
        if record.state not in MEMBERS:
            continue
        event = silence_event(now - record.last_heartbeat_unix)
        if event is None:
            continue
        changed = state.nodes.change(record, event)
        if changed.state == "Dead":
            state.ledger.append(NodeDead(node=record.node))
            give_up_leases(state, record.node)
            get_logger().warning(
                "node is dead", node=record.node, silent_seconds=round(now - record.last_heartbeat_unix)
            )
