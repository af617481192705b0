"""Invites: who gets one, what is in it, and whether a presented one is valid. Pure.

The orchestrator reads registrations from discovery, decides with `wants_invite`, and leaves a signed invite there; the node brings it with its first
heartbeat, where `check_invite` judges it. An invite is single use: its nonce goes to the ledger when it is used.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from shoal.contracts.base import Contract
from shoal.contracts.node_states import EXCLUDED, MEMBERS
from shoal.contracts.pools import PoolTerms, Quantization, code_fits, terms_of
from shoal.contracts.protocol import Invite, KnownNode, Registration
from shoal.contracts.requirements import missing
from shoal.contracts.signed import BadSignature, Signed
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.transport.addresses import address_block

INVITE_SECONDS = 120
"""An invite is taken within seconds by an agent that long-polls; two minutes allow for a restart of its machine."""


class BadInvite(ValueError):
    """An invite that does not admit; the message says why."""


class InviteTerms(Contract):
    """The settings for making invites."""

    run: str
    orchestrator_url: str


def wants_invite(known: KnownNode, record: NodeRecord | None, run: str) -> bool:
    """Whether this registration asks for an invite that it has not got.

    Each registration is answered once: an agent that lost its invite, or its memory, registers again. Discovery's
    time distinguishes a registration from the previous one. It need not be later: there may be several discoveries, and clocks are set back.
    """
    if known.registration.run != run:
        return False
    if record is None:
        return True
    return record.state not in EXCLUDED and known.seen_unix != record.answered_seen_unix


def why_not(
    registration: Registration,
    pools: Sequence[PoolTerms],
    *,
    own_pod: bool,
    welcome: bool = False,
    calibrated: bool = True,
    claimed: bool = False,
    quantization: Quantization | None = None,
) -> str:
    """Why a registered machine is not invited, in words; empty when it may join. What it says of its hardware is taken at its word.

    `welcome`: an admin let it in, whatever the pool's list and codes say. `calibrated`: the base model has a proof profile, without which no
    stranger joins; prepare refuses a run with an open pool and no profile, this one a pool that was opened later. `claimed`: the same of a run whose
    rewards no validator can compute. `quantization` is the run's.
    """
    terms = terms_of(pools, registration.pool)
    if terms is None:
        return f"this run has no pool {registration.pool!r}"
    if problem := _rounds_otherwise(terms, registration, quantization):
        return problem
    if own_pod:
        return ""  # the admin chose its resources
    if not terms.open:
        return f"pool {registration.pool!r} is not open to strangers' machines"
    if not calibrated:
        return (
            f"pool {registration.pool!r} was opened after prepare had left the model's proofs uncalibrated: a stranger's proof would need no"
            " forward pass; the admin closes the pool, or starts a run with spec.prepare.gpu"
        )
    if claimed:
        return (
            f"pool {registration.pool!r} was opened in a run whose rewards cannot be scored again: a stranger would give itself any reward;"
            " the admin closes the pool, or starts a run with another environment"
        )
    admission, run, node = terms.admission, registration.run, registration.node
    if (admission.nodes or admission.codes) and node not in admission.nodes and not welcome:
        if not admission.codes:
            return f"pool {registration.pool!r} is open to listed machines only, and {node[:12]}... is not listed"
        if not code_fits(registration.code, admission, run, registration.pool, node):
            return f"pool {registration.pool!r} needs an invite code, and {'the given one is not valid' if registration.code else 'none was given'}"
    lacks = missing(registration.hardware, terms.requirements)
    return f"pool {registration.pool!r} requires {lacks[0]}" if lacks else ""


def _rounds_otherwise(terms: PoolTerms, registration: Registration, quantization: Quantization | None) -> str:
    """Run, pool and machine agree how the weights are rounded that sample: validators hold one model of each version. Empty when they do."""
    pool, said = f"pool {terms.name!r}", terms.quantization or "none"
    if terms.quantization != quantization:
        return (
            f"{pool} has quantization {said}, but the run's rollouts.quantization is {quantization or 'none'}, by which its files are judged: make"
            " the pool's the same"
        )
    if registration.quantization != terms.quantization:
        return (
            f"{pool} samples with quantization {said}, and this machine's software said {registration.quantization or 'none'} when it registered:"
            " join again with the run's release"
        )
    return ""


class Places:
    """How many nodes of each pool are inside (invited, or members) from each address, by the orchestrator's own records.

    Discovery's rows will not do: a node writes its own again when it likes, and they are forgotten while the node stays a member.
    """

    def __init__(self, records: Iterable[NodeRecord]) -> None:
        self._of = {
            each.node: (each.place, each.address)
            for each in records
            if each.address and (each.state == "Invited" or each.state in MEMBERS)
        }
        self._taken = Counter(self._of.values())

    def full(self, known: KnownNode, limit: int) -> bool:
        """Whether `limit` other nodes have the pool and address of this registration already. `limit` 0: never."""
        place, node = _place(known), known.registration.node
        return 0 < limit <= self._taken[place] - (self._of.get(node) == place)

    def take(self, known: KnownNode) -> None:
        """Note an invite: the node leaves the place that it had."""
        node = known.registration.node
        if node in self._of:
            self._taken[self._of[node]] -= 1
        self._of[node] = _place(known)
        self._taken[self._of[node]] += 1


def _place(known: KnownNode) -> tuple[str, str]:
    return known.registration.pool, address_block(known.address)


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
