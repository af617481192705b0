"""Invites for registered nodes: discovery's registrations come in, signed invites go back there, and the ledger records them.

Called by the orchestrator's background work. Keys are free: how many invites the ledger takes is bounded (`LedgerView.has_room_for_invite`), and so
is how often one key gets an invite (`Inviter`).
"""

import math
import secrets
import time
from collections.abc import Callable, Iterable
from functools import cache

from shoal.contracts.node_states import MEMBERS
from shoal.contracts.pools import is_own_pod, terms_of
from shoal.contracts.protocol import Invite, KnownNode, KnownNodes
from shoal.contracts.signed import sign
from shoal.crypto.canonical import document_digest
from shoal.ledger.entries import NodeInvited
from shoal.ledger.facts import InvitedNode
from shoal.orchestrator.nodes.invites import InviteTerms, Places, make_invite, wants_invite, why_not
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.run_state import RunState
from shoal.telemetry import get_logger
from shoal.transport import Refused, SignedClient, Unavailable
from shoal.transport.addresses import address_block
from shoal.transport.pace import Pace

FULL_LOOK_SECONDS = 10.0
"""Seconds between two scans of all waiting registrations. The next scan notices a pool that opens or a place that becomes free."""
SKEW_SECONDS = 300.0
"""Largest difference between discovery's clock and ours at which a start finds newcomers at once; otherwise the first full scan finds them."""
MOST_ANSWERS = 4
"""Pages of newcomers in a round: more than arrive in OVERLAP_SECONDS, which the next round reads again."""
OVERLAP_SECONDS = 5.0
"""Two discoveries' clocks, and a registration that took long to be written, may differ by this much."""
STEP_SECONDS = 1e-3  # what a time in a query is rounded to
INVITES_PER_SECOND, INVITES_AT_ONCE = 1 / 120, 10
"""Invites of one key. A restarted machine needs one. Each used invite is two entries of the ledger, which a node must not fill by rejoining."""


class Inviter:
    """Remembers how far it has looked, in discovery's time.

    Each round looks at all who came since the last one; while a look at all is under way, also at one answer's more of those: however many wait
    for a pool that does not take them, a newcomer waits for one answer of them at most.
    """

    def __init__(self, state: RunState, discovery: SignedClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._discovery = discovery
        self._clock = clock
        self._full_at = -FULL_LOOK_SECONDS
        self._all: float | None = None  # from where the look at all continues; None between two
        self._until = 0.0  # where it ends: who comes later is a newcomer, of whom a flood brings more than we look at
        self._newest = state.clock() - SKEW_SECONDS  # until discovery's own time is known, from the first look at all
        self._pace = Pace(INVITES_PER_SECOND, INVITES_AT_ONCE, clock)

    def round(self) -> int:
        """Invite registered nodes that ask for it; returns how many. A node that cannot be invited stays Discovered and is tried again."""
        invited, since = 0, max(0.0, self._newest - OVERLAP_SECONDS)
        for _ in range(MOST_ANSWERS):  # others register meanwhile: without a bound a flood would keep us here
            answer = self._ask(since)
            invited += invite(self._state, self._discovery, answer.nodes, self._pace)
            # Only now: what failed half way is looked at again.
            self._newest = max((known.seen_unix for known in answer.nodes), default=self._newest)
            if not answer.more:
                break
            since = _after(since, answer)
        return invited + self._look_at_all()

    def _look_at_all(self) -> int:
        """One answer more of a look at all, if it is time for one."""
        if self._all is None:
            if self._clock() < self._full_at + FULL_LOOK_SECONDS:
                return 0
            self._all, self._until = 0.0, self._newest
        answer = self._ask(self._all)
        invited = invite(self._state, self._discovery, answer.nodes, self._pace)
        last = max((known.seen_unix for known in answer.nodes), default=self._newest)
        if answer.more and last < self._until:
            self._all = _after(self._all, answer)
            return invited
        self._all, self._full_at = None, self._clock()
        if not answer.more:
            self._newest = last
        return invited

    def _ask(self, since_unix: float) -> KnownNodes:
        """Registrations that wait for an invite, the first ones from a time on."""
        path = f"/v1/nodes?since={since_unix:.3f}"
        answer = self._discovery.call("GET", path, reply=KnownNodes, deadline_seconds=5.0, timeout_seconds=5.0)
        if answer is None:
            raise Unavailable("discovery sent no list of nodes")
        return answer


def _after(since_unix: float, answer: KnownNodes) -> float:
    """From when to ask on: the last one's millisecond; a step at least, should all of the answer have been forgotten, or be of one."""
    last = max((known.seen_unix for known in answer.nodes), default=0.0)
    return max(since_unix + STEP_SECONDS, math.floor(last * 1000) / 1000)


def invite(state: RunState, discovery: SignedClient, registered: Iterable[KnownNode], pace: Pace) -> int:
    """Invite those of `registered` that ask for it; returns how many. Who asks too often waits in discovery for a later look."""
    places = cache(lambda: Places(state.nodes.all()))  # read once an answer, and only where some pool has a limit
    invited = 0
    for known in registered:
        try:
            invited += _invite_one(state, discovery, known, pace, places)
        except ValueError as error:  # what a stranger registered must not keep all others outside
            node, problem = known.registration.node, f"{type(error).__name__}: {str(error)[:300]}"
            get_logger().warning("cannot invite a node", node=node, problem=problem)
    return invited


def _invite_one(
    state: RunState, discovery: SignedClient, known: KnownNode, pace: Pace, places: Callable[[], Places]
) -> bool:
    """Whether the node was invited now."""
    addresses, node = state.config.addresses, known.registration.node
    record = state.nodes.get(node)
    if node in state.view.evicted or not wants_invite(known, record, state.config.run):
        return False
    own_pod = is_own_pod(state.run_secret, known.registration.pool, node, known.registration.proof)
    welcome = record is not None and record.welcome
    refusal = why_not(
        known.registration,
        state.config.pools,
        own_pod=own_pod,
        welcome=welcome,
        calibrated=state.calibrated,
        claimed=state.rewards_claimed,
        quantization=state.config.quantization,
    ) or _why_not_moved(known, record)
    if refusal:
        _note_refusal(state, known, record, refusal)
        return False
    terms_here = terms_of(state.config.pools, known.registration.pool)
    limit = terms_here.admission.nodes_per_address if terms_here is not None and not own_pod else 0
    if limit and places().full(known, limit):
        _note_refusal(state, known, record, f"pool {known.registration.pool!r} takes {limit} machines from one address")
        return False
    if pace.wait(node) > 0.0:
        return False
    url = addresses.orchestrator if own_pod else addresses.public_orchestrator or addresses.orchestrator
    terms = InviteTerms(run=state.config.run, orchestrator_url=url)
    made = make_invite(known, terms, nonce=secrets.token_hex(16), now_unix=state.clock())
    if limit:
        places().take(known)
    _note_invite(state, known, made)
    # Before the node can have the invite: it is judged by this record when it comes.
    record = state.nodes.change(
        record or NodeRecord(node=node),
        "invited",
        invited_pool=known.registration.pool,
        outside=not own_pod,
        address=address_block(known.address),
        refused="",
        uplink_mbps=known.registration.hardware.uplink_mbps,
        invite_nonce=made.nonce,
        invite_expires_unix=float(made.expires_unix),
    )
    try:
        discovery.call("PUT", f"/v1/nodes/{node}/invite", sign(made, state.key), deadline_seconds=5.0)
    except Refused as refused:  # the registration ended meanwhile
        get_logger().info("invite not delivered", node=node, problem=str(refused))
        return False
    state.nodes.change(record, answered_seen_unix=known.seen_unix)
    pace.take(node)  # only now: what failed on our side costs the node nothing
    return True


def _note_invite(state: RunState, known: KnownNode, made: Invite) -> None:
    """Record the invite in the ledger, if there is room; otherwise it is recorded when the node joins."""
    if not state.view.has_room_for_invite(made.node, state.clock()):
        return
    registration = known.registration
    noted = InvitedNode(
        pool=made.pool,
        expires_unix=made.expires_unix,
        registered_unix=known.seen_unix,
        software_version=registration.software_version,
        hardware=registration.hardware,
    )
    digest = document_digest(registration)
    state.ledger.append(NodeInvited(node=made.node, nonce=made.nonce, invited=noted, registration=digest))


def _why_not_moved(known: KnownNode, record: NodeRecord | None) -> str:
    """Why a member cannot have an invite to another pool: its leases were given, and its files are judged, by its own pool's terms."""
    pool = known.registration.pool
    if record is None or record.state not in MEMBERS or record.pool in ("", pool):  # "": not known since Redis was lost
        return ""
    return f"a member of another pool, {record.pool!r}; it may change to {pool!r} after it has left"


def _note_refusal(state: RunState, known: KnownNode, record: NodeRecord | None, refusal: str) -> None:
    """Say once for each reason why a machine is not invited. Its next registration is looked at again: the pool may be open by then."""
    if record is None and state.nodes.crowded:
        return
    record = record or NodeRecord(node=known.registration.node)
    if record.refused == refusal:
        return
    get_logger().info("did not invite a node", node=record.node, reason=refusal)
    # The pool of a node that is inside, or invited, decides what is asked of it: a registration that is refused changes nothing there.
    pool = known.registration.pool if record.state == "Discovered" else record.invited_pool
    state.nodes.change(record, refused=refusal, refused_unix=state.clock(), invited_pool=pool)
