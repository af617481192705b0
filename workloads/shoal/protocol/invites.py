"""Invites: who gets one, what is in it, and whether one that comes back is good. Pure.

The orchestrator reads registrations from discovery, decides with `wants_invite`, and leaves a signed invite there; the node brings it with its first
heartbeat, where `check_invite` judges it. An invite is single use: its nonce goes to the ledger when it is used.
"""

from shoal.contracts.base import Contract
from shoal.contracts.canonical import BadSignature, Signed
from shoal.contracts.protocol import Invite, KnownNode
from shoal.protocol.node_states import EXCLUDED
from shoal.protocol.records import NodeRecord

INVITE_SECONDS = 120
"""An invite is taken within seconds by an agent that long-polls; two minutes allow for a restart of its machine."""


class BadInvite(ValueError):
    """An invite that does not admit; the message says why."""


class InviteTerms(Contract):
    """What is needed to make invites."""

    run: str
    orchestrator_url: str


def wants_invite(known: KnownNode, record: NodeRecord | None, run: str) -> bool:
    """Whether this registration asks for an invite that it has not got.

    Each registration is answered once: an agent that lost its invite, or its memory, registers again. Times compared are discovery's own, so that
    clocks of two machines never are.
    """
    if known.registration.run != run:
        return False
    if record is None:
        return True
    return record.state not in EXCLUDED and known.seen_unix > record.answered_seen_unix


def make_invite(known: KnownNode, terms: InviteTerms, *, nonce: str, now_unix: float) -> Invite:
    """An invite bound to node, pool and run."""
    return Invite(
        run=terms.run,
        pool=known.registration.pool,
        node=known.registration.node,
        orchestrator_url=terms.orchestrator_url,
        nonce=nonce,
        expires_unix=int(now_unix) + INVITE_SECONDS,
    )


def check_invite(signed: Signed[Invite], *, orchestrator_key: str, run: str, node: str, now_unix: float) -> Invite:
    """The invite, if the orchestrator signed it for this node and run and it has not expired; raises `BadInvite`."""
    try:
        invite = signed.verified(orchestrator_key)
    except BadSignature as error:
        raise BadInvite(f"{error}; register at discovery for a new invite") from error
    if invite.run != run:
        raise BadInvite(f"invite is for run {invite.run!r}, this is {run!r}")
    if invite.node != node:
        raise BadInvite(f"invite is for node {invite.node[:12]}..., not for {node[:12]}...")
    if invite.expires_unix < now_unix:
        raise BadInvite(
            f"invite expired {now_unix - invite.expires_unix:.0f} s ago; register at discovery for a new one"
        )
    return invite
