"""Membership: invites for registered nodes, heartbeats, relay tokens, and the end of nodes that fell silent.

Comes in: registrations from discovery, heartbeats. Goes out: invites to discovery, `HeartbeatReply`, entries node-joined and node-dead in the ledger.
A node is admitted once its invite's nonce is in the ledger, which also makes invites single use across restarts.
"""

import math
import secrets

from shoal.contracts.canonical import sign
from shoal.contracts.pools import is_own_pod, terms_of
from shoal.contracts.protocol import (
    RELAY_TOKEN_SECONDS,
    Exclusions,
    Heartbeat,
    HeartbeatReply,
    KnownNode,
    KnownNodes,
    RelayToken,
    Url,
)
from shoal.contracts.relay_token import encode
from shoal.protocol import admin, capability_check
from shoal.protocol.invites import (
    BadInvite,
    InviteTerms,
    Places,
    address_block,
    check_invite,
    make_invite,
    wants_invite,
    why_not,
)
from shoal.protocol.leases import is_open
from shoal.protocol.ledger_view import Files
from shoal.protocol.node_states import EXCLUDED, MEMBERS, silence_event
from shoal.protocol.records import NodeRecord
from shoal.protocol.run_state import RunState
from shoal.telemetry import get_logger
from shoal.transport import Refused, SignedClient
from shoal.transport.server import Problem


def heartbeat(state: RunState, beat: Heartbeat) -> HeartbeatReply:
    """Note that a node lives; admit it when it brings a good invite. Raises `Problem` 403 for strangers, the excluded, and bad invites."""
    now = state.clock()
    record = state.nodes.get(beat.node)
    if beat.invite is not None and not _is_used(state, beat):
        record = _admit(state, beat, record)
    record = state.nodes.require_known(beat.node)
    return reply_to(state, state.nodes.change(record, "heartbeat", **fields_of(beat, now)))


def fields_of(beat: Heartbeat, now_unix: float) -> dict[str, object]:
    """What a heartbeat writes into its node's record."""
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
        assignment=admin.assignment_of(state, record),
        logs_wanted=record.logs_wanted or None,
        files_accepted=files.accepted,
        files_rejected=files.rejected,
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
        raise Problem(403, "Evicted", f"node {beat.node[:12]}... was evicted from this run; the ledger has the reason")
    try:
        invite = check_invite(
            beat.invite,
            orchestrator_key=state.key.public,
            run=state.config.run,
            node=beat.node,
            now_unix=state.clock(),
        )
    except BadInvite as error:
        raise Problem(403, "Invite is not valid", str(error)) from error
    if record is not None and record.outside and record.invite_nonce != invite.nonce:
        # What was decided of a stranger's machine (its pool, what it must show) was decided with the newest one.
        raise Problem(403, "Invite is not valid", "a newer invite was given; register at discovery for another")
    capability_check.require_answer(state, invite, record)
    state.ledger.append("node-joined", node=beat.node, detail=invite.nonce)
    if state.view.invite_nonces.get(invite.nonce) != beat.node:
        raise Problem(403, "Invite is not valid", "this invite was used before; register at discovery for a new one")
    record = record or NodeRecord(node=beat.node, state="Invited")
    joined = state.nodes.change(record, "joined", pool=invite.pool, last_heartbeat_unix=state.clock())
    get_logger().info("node joined", node=beat.node, pool=invite.pool)
    return joined


def send_invites(state: RunState, discovery: SignedClient) -> int:
    """Invite every registered node that asks for it; returns how many. A node that cannot be invited stays Discovered and is tried again."""
    answer = discovery.call("GET", "/v1/nodes", reply=KnownNodes, deadline_seconds=5.0, timeout_seconds=5.0)
    addresses, invited = state.config.addresses, 0
    places: Places | None = None  # read once a round, and only where some pool has a limit
    for known in answer.nodes if answer is not None else []:
        node = known.registration.node
        record = state.nodes.get(node)
        if node in state.view.evicted or not wants_invite(known, record, state.config.run):
            continue
        own_pod = is_own_pod(state.run_secret, known.registration.pool, node, known.registration.proof)
        welcome = record is not None and record.welcome
        refusal = why_not(known.registration, state.config.pools, own_pod=own_pod, welcome=welcome) or _why_not_moved(
            known, record
        )
        if refusal:
            _note_refusal(state, known, record, refusal)
            continue
        terms_here = terms_of(state.config.pools, known.registration.pool)
        limit = terms_here.admission.nodes_per_address if terms_here is not None and not own_pod else 0
        if limit:
            places = places or Places(state.nodes.all())
            if places.full(known, limit):
                _note_refusal(
                    state, known, record, f"pool {known.registration.pool!r} takes {limit} machines from one address"
                )
                continue
        url = addresses.orchestrator if own_pod else addresses.public_orchestrator or addresses.orchestrator
        terms = InviteTerms(run=state.config.run, orchestrator_url=url)
        invite = make_invite(known, terms, nonce=secrets.token_hex(16), now_unix=state.clock())
        if places is not None:
            places.take(known)
        # Before the node can have the invite: it is judged by this record when it comes.
        record = state.nodes.change(
            record or NodeRecord(node=node),
            "invited",
            invited_pool=known.registration.pool,
            outside=not own_pod,
            address=address_block(known.address),
            refused="",
            invite_nonce=invite.nonce,
            invite_expires_unix=float(invite.expires_unix),
        )
        try:
            discovery.call("PUT", f"/v1/nodes/{node}/invite", sign(invite, state.key), deadline_seconds=5.0)
        except Refused as refused:  # the registration ended meanwhile
            get_logger().info("invite not delivered", node=node, problem=str(refused))
            continue
        state.nodes.change(record, answered_seen_unix=known.seen_unix)
        invited += 1
    return invited


def _why_not_moved(known: KnownNode, record: NodeRecord | None) -> str:
    """Why a member cannot have an invite to another pool: what it holds was given, and is judged, by the terms of its own."""
    pool = known.registration.pool
    if record is None or record.state not in MEMBERS or record.pool in ("", pool):  # "": not known since Redis was lost
        return ""
    return f"a member of another pool, {record.pool!r}; it may change to {pool!r} when it has left"


def _note_refusal(state: RunState, known: KnownNode, record: NodeRecord | None, refusal: str) -> None:
    """Say once for each reason why a machine is not invited. Its next registration is looked at again: the pool may be open by then."""
    record = record or NodeRecord(node=known.registration.node)
    if record.refused == refusal:
        return
    get_logger().info("node is not invited", node=record.node, reason=refusal)
    # The pool of a node that is inside, or invited, decides what is asked of it: a registration that is refused changes nothing there.
    pool = known.registration.pool if record.state == "Discovered" else record.invited_pool
    state.nodes.change(record, refused=refusal, invited_pool=pool)


def reap(state: RunState) -> None:
    """Mark members that fell silent, give their leases up when they are dead, and take back invites that nobody used."""
    now = state.clock()
    for record in state.nodes.all():
        if record.state == "Invited" and record.invite_expires_unix < now:
            state.nodes.change(record, "invite-expired")
        if record.state not in MEMBERS:
            continue
        event = silence_event(now - record.last_heartbeat_unix)
        if event is None:
            continue
        changed = state.nodes.change(record, event)
        if changed.state == "Dead":
            state.ledger.append("node-dead", node=record.node)
            abandoned = _give_up_leases(state, record.node)
            state.nodes.change(changed, abandoned_leases=changed.abandoned_leases + abandoned)
            get_logger().warning(
                "node is dead", node=record.node, silent_seconds=round(now - record.last_heartbeat_unix)
            )


def _give_up_leases(state: RunState, node: str) -> int:
    now, count = state.clock(), 0
    with state.lease_lock:
        for lease in state.leases.all():
            if lease.lease.node == node and is_open(lease, now):
                state.leases.put(lease.model_copy(update={"status": "abandoned"}))
                count += 1
    return count
