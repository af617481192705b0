"""The capability check at the door, on the orchestrator's side: gives out challenges, times them, and says who may join.

Comes in: requests of invited nodes. Goes out: a `Challenge` with a seed of ours, then `ChallengeResult` or a refusal. A challenge is bound to its
node and to the invite that it holds. It lives in Redis, is answered once, and is timed on our clock from the moment it is given out. Only strangers'
machines in pools whose requirements name `gflops` are asked. What it shows is that something computed that fast for this key at that moment, not
whose machine it was (docs/ledger.md).
"""

import hashlib
import secrets
import threading

from pydantic import Field

from shoal.contracts.base import Contract
from shoal.contracts.node_states import MEMBERS
from shoal.contracts.pools import terms_of
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import Challenge, ChallengeAnswer, ChallengeRequest, ChallengeResult, Invite
from shoal.crypto.challenge import BadProduct, ChallengeWork, check, decode_answer, plan
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.run_state import RunState
from shoal.telemetry import get_logger

MOST_TRIES = 3
"""Challenges for one key in `TRIES_SECONDS`, whatever invites it has: a machine that was busy may try again, and checking costs us a second each."""
TRIES_SECONDS = 600  # from the first one on; several times what an invite lives

MOST_WAITING = 4
_waiting = threading.BoundedSemaphore(MOST_WAITING)
_checking = threading.Lock()
"""One product is checked at a time and few wait for it: a crowd at the door must take neither the processor nor the threads from those who work."""


class GivenChallenge(Contract):
    """A challenge in Redis."""

    challenge: Challenge
    invite_nonce: str
    given_unix: float = Field(ge=0.0)


class SeenAnswer(Contract):
    """An answer that came when too many waited: which one, to which challenge, and when it was here first."""

    challenge: str
    digest: str
    seen_unix: float = Field(ge=0.0)


def wanted_gflops(state: RunState, record: NodeRecord | None) -> int:
    """Arithmetic that a node's machine must show, 10^9 operations a second; 0 for pods of a pool's own and pools that ask for nothing."""
    if record is None or record.outside is False:
        return 0
    terms = terms_of(state.config.pools, record.invited_pool or record.pool)
    return terms.requirements.gflops if terms is not None and terms.open else 0


def require_answer(state: RunState, invite: Invite, record: NodeRecord | None) -> None:
    """Raise `Refusal` unless the node has met its pool's requirement under this invite."""
    terms = terms_of(state.config.pools, invite.pool)
    if terms is None or not terms.open or terms.requirements.gflops == 0:
        return
    if record is None or record.outside is None:
        # Redis was lost after the invite: whether this is an own pod is known again with its next registration.
        raise Refusal(ProblemCode.INVITE_NOT_VALID, "the invite is unknown; register at discovery for a new one")
    if record.outside and record.capable_nonce != invite.nonce:
        raise Refusal(
            ProblemCode.CHALLENGE_NOT_PASSED,
            f"pool {invite.pool!r} requires {terms.requirements.gflops} gflops: POST /v1/challenges, then /v1/challenge-answers",
        )


def give(state: RunState, request: ChallengeRequest) -> Challenge:
    """A new challenge, instead of one that was not answered; raises `Refusal` when none is due and after too many."""
    record = state.nodes.require_known(request.node)
    gflops = wanted_gflops(state, record)
    # A member is asked too: its agent restarted, and comes back with a new invite.
    welcome = record.state == "Invited" or record.state in MEMBERS
    if not welcome or gflops == 0 or record.capable_nonce == record.invite_nonce:
        raise Refusal(
            ProblemCode.CHALLENGE_NOT_DUE, f"node {request.node[:12]}... is {record.state} and needs no challenge now"
        )
    counter = f"{state.prefix}:challenge-tries:{request.node}"
    state.redis.set(counter, 0, ex=TRIES_SECONDS, nx=True)
    if int(state.redis.incr(counter)) > MOST_TRIES:
        raise Refusal(
            ProblemCode.TOO_MANY_CHALLENGES,
            f"{MOST_TRIES} were given to this node within {TRIES_SECONDS // 60} minutes; register at discovery again later, when the machine is idle",
            retry_after_seconds=60,
        )
    lanes, depth, limit = plan(gflops)
    challenge = Challenge(
        challenge=secrets.token_hex(16),
        node=request.node,
        seed=secrets.token_hex(32),
        lanes=lanes,
        depth=depth,
        limit_seconds=limit,
    )
    given = GivenChallenge(challenge=challenge, invite_nonce=record.invite_nonce, given_unix=state.clock())
    state.redis.set(_key(state, request.node), given.to_json(), ex=int(limit) + TRIES_SECONDS)
    return challenge


def receive(state: RunState, answer: ChallengeAnswer) -> ChallengeResult:
    """Judge an answer, the only one to its challenge; raises `Refusal` if wrong or late, if nothing waits for it, and in a crowd.

    A right answer may be sent again while its invite is the newest: it gets the same result.
    """
    record = state.nodes.require_known(answer.node)
    if record.capable_nonce and record.capable_nonce == record.invite_nonce:
        # Our reply to the right answer was lost, and the node sends it again.
        return ChallengeResult(seconds=record.challenge_seconds, gflops=record.gflops)
    came = _came(state, answer)
    if not _waiting.acquire(blocking=False):
        kept = int(came.seen_unix - state.clock()) + TRIES_SECONDS
        state.redis.set(_seen_key(state, answer.node), came.to_json(), ex=max(kept, 1))
        raise Refusal(ProblemCode.TOO_MANY_ANSWERS, "nothing is lost: send the answer again", retry_after_seconds=1)
    try:
        return _judge(state, record, answer, came.seen_unix)
    finally:
        _waiting.release()


def _came(state: RunState, answer: ChallengeAnswer) -> SeenAnswer:
    """When this answer was here first. The time that it stood in our crowd is not the node's; another answer is a later one."""
    digest = hashlib.sha256(answer.product.encode()).hexdigest()
    data = state.redis.get(_seen_key(state, answer.node))
    before = SeenAnswer.from_json(data) if data is not None else None
    if before is not None and (before.challenge, before.digest) == (answer.challenge, digest):
        return before
    return SeenAnswer(challenge=answer.challenge, digest=digest, seen_unix=state.clock())


def _judge(state: RunState, record: NodeRecord, answer: ChallengeAnswer, came_unix: float) -> ChallengeResult:
    data = state.redis.getdel(_key(state, answer.node))
    given = GivenChallenge.from_json(data) if data is not None else None
    if given is None or given.challenge.challenge != answer.challenge or given.invite_nonce != record.invite_nonce:
        raise Refusal(ProblemCode.NO_SUCH_CHALLENGE, "it was answered, replaced or never given out: ask for a new one")
    challenge, seconds = given.challenge, max(came_unix - given.given_unix, 1e-3)
    if seconds > challenge.limit_seconds:
        raise Refusal(
            ProblemCode.CHALLENGE_TOO_SLOW,
            f"the answer took {seconds:.1f} s, {challenge.limit_seconds:.1f} s are allowed for this pool",
        )
    work = ChallengeWork(bytes.fromhex(challenge.seed), challenge.lanes, challenge.depth)
    try:
        product = decode_answer(answer.product)
        with _checking:
            check(work, product)
    except BadProduct as error:
        get_logger().warning("challenge failed", node=answer.node, problem=str(error))
        raise Refusal(ProblemCode.CHALLENGE_WRONG, str(error)) from error
    gflops = work.flop / seconds / 1e9
    state.nodes.change(record, capable_nonce=given.invite_nonce, gflops=gflops, challenge_seconds=seconds)
    get_logger().info("challenge answered", node=answer.node, seconds=round(seconds, 2), gflops=round(gflops, 1))
    return ChallengeResult(seconds=seconds, gflops=gflops)


def _key(state: RunState, node: str) -> str:
    return f"{state.prefix}:challenge:{node}"


def _seen_key(state: RunState, node: str) -> str:
    return f"{state.prefix}:challenge-seen:{node}"
