"""The short way of a heartbeat: nine of ten requests to an orchestrator are a member's that says again that it lives.

Such a one costs a signature check and a share of one call of Redis: `SWAP`, which takes the nonce and writes the node's record only if it still is
what the new one was made from: no heartbeat undoes an eviction. Heartbeats of a few milliseconds travel to Redis together. Everything
else goes on untouched: an invite, a node that is not a member or must register again, a body that does not parse, state that is being rebuilt. It
goes to the service's own route, `membership.heartbeat`. No nonce is taken for it here.
"""

import asyncio
import contextlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import redis.asyncio
from pydantic import ValidationError
from redis.exceptions import NoScriptError, RedisError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.contracts.node_states import MEMBERS, next_state
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import HEARTBEAT_SECONDS, Heartbeat, HeartbeatReply
from shoal.crypto.http_signatures import NONCE_SECONDS, SignedBy
from shoal.orchestrator import metrics
from shoal.orchestrator.nodes import membership
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.recovery import BUILT
from shoal.orchestrator.run_state import RunState
from shoal.transport.pace import Pace
from shoal.transport.peers import peer_is_away
from shoal.transport.problems import refused
from shoal.transport.redis_access import nonce_key
from shoal.transport.server import SignatureGate, target_of
from shoal.transport.service import json_answer

PATH = "/v1/heartbeats"
MAX_BODY_BYTES = 32 << 10
"""64 metrics of 100 bytes fit four times; the service's own route handles longer bodies."""
LINGER_SECONDS = 0.004
"""Heartbeats wait this long for others to travel with: at a thousand a second, four share what one call of Redis costs this process."""
BATCH = 64
"""Most heartbeats in one call, which blocks Redis for about 200 microseconds."""
BEATS_PER_SECOND, BEATS_AT_ONCE = 1.0, 30
"""Rate limit of one key: an agent without an invite beats once a second, and at once after a refusal."""
TRIES = 4  # a record that changes under this many heartbeats in a row is left to the service's own route

SWAP = """
local built, nodes = KEYS[1], KEYS[2]
local found = {}
local whole = redis.call('EXISTS', built) == 1
for i = 3, #KEYS do
  local at = 2 + (i - 3) * 4
  local node, before, after, mark = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local now = whole and redis.call('HGET', nodes, node)
  if not now then
    found[i - 2] = 'absent'
  elseif redis.call('GET', KEYS[i]) == mark then
    found[i - 2] = 'done'
  elseif now ~= before then
    found[i - 2] = now
  elseif not redis.call('SET', KEYS[i], mark, 'NX', 'EX', ARGV[1]) then
    found[i - 2] = 'seen'
  else
    redis.call('HSET', nodes, node, after)
    found[i - 2] = 'done'
  end
end
return found
"""
"""KEYS: the mark of a whole state, the nodes' hash, a nonce each. ARGV: seconds that a nonce is kept, then node, record before, record after and
mark of each. Says for each: `done`, `seen` (a replay), `absent`, or the record that is there instead of the one before. A nonce keeps the mark of
the swap that took it. So a call which is repeated because its answer was lost is `done` again; a replay is another swap."""


@dataclass(frozen=True)
class Swap:
    """One record to write: `before` is the record that it was made from."""

    node: str
    nonce: str
    before: str
    after: str
    mark: str = field(default_factory=lambda: secrets.token_hex(8))


class SwapQueue:
    """Sends swaps to Redis together. For one event loop."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self._redis = client
        self._prefix = prefix
        self._waiting: list[tuple[Swap, asyncio.Future[str]]] = []
        self._sending: asyncio.Task[None] | None = None
        self._digest = ""

    async def put(self, swap: Swap) -> str:
        """The outcome (see `SWAP`); raises RedisError."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((swap, answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return await answer

    async def _send(self) -> None:
        await asyncio.sleep(LINGER_SECONDS)
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            try:
                found = await self._call([swap for swap, _ in batch])
            except Exception as error:  # each of them hears of it, and the next batch has its own try
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), what in zip(batch, found, strict=True):
                if not answer.done():  # its request may have been given up
                    answer.set_result(what)

    async def _call(self, swaps: Sequence[Swap]) -> list[str]:
        names = [f"{self._prefix}:{BUILT}", f"{self._prefix}:nodes"]
        names += [nonce_key(self._prefix, swap.node, swap.nonce) for swap in swaps]
        values: list[str] = [str(NONCE_SECONDS)]
        for swap in swaps:
            values += (swap.node, swap.before, swap.after, swap.mark)
        with contextlib.suppress(NoScriptError):  # a Redis that was restarted does not know it
            if self._digest:
                return list(await self._redis.evalsha(self._digest, len(names), *names, *values))
        self._digest = str(await self._redis.script_load(SWAP))
        return list(await self._redis.evalsha(self._digest, len(names), *names, *values))


class QuickHeartbeats:
    """ASGI middleware in front of the orchestrator's application."""

    def __init__(self, app: ASGIApp, state: RunState, gate: SignatureGate, client: redis.asyncio.Redis) -> None:
        self._app = app
        self._state = state
        self._gate = gate
        self._queue = SwapQueue(client, state.prefix)
        # What is charged for is a new nonce: else who overhears a heartbeat could spend its sender's pace by sending it again. On the long way
        # nonces are looked at later, so it has a pace of its own, which may be spent for somebody while his plain heartbeats go on.
        self._pace = Pace(BEATS_PER_SECOND, BEATS_AT_ONCE)
        self._long_pace = Pace(BEATS_PER_SECOND, BEATS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        length = headers.get("content-length", "")
        if not (length.isdecimal() and len(length) < 6 and int(length) <= MAX_BODY_BYTES):
            await self._app(scope, receive, send)
            return
        try:
            body = await _read(receive)
            if body is None:
                return  # the client went away
            signed = self._gate.check("POST", target_of(scope), headers, body)
            _require_no_wait(self._pace.wait(signed.key))
            reply = await self._note(signed, body)
            if reply is None:
                _require_no_wait(self._long_pace.take(signed.key))
        except Refusal as refusal:
            answer = refused(refusal)
        except RedisError as error:
            answer = peer_is_away(error)
        else:
            if reply is None:
                await self._app(scope, _again(body, receive), send)
                return
            metrics.HEARTBEATS.labels(reply.state).inc()
            answer = json_answer(reply)
        await answer(scope, receive, send)

    async def _note(self, signed: SignedBy, body: bytes) -> HeartbeatReply | None:
        """The answer, or None for a heartbeat that is not plain."""
        try:
            beat = Heartbeat.from_json(body)
        except ValidationError:
            return None
        state = self._state
        if not state.is_read or beat.invite is not None or beat.node != signed.key or beat.node in state.view.evicted:
            return None
        before = state.nodes.parsed.recall(beat.node)
        if before is None:  # most likely a stranger, who is not to ask Redis more often than on the long way
            _require_no_wait(self._long_pace.wait(signed.key))
        for _ in range(TRIES):
            after, text = None, ""
            if before is not None:
                if before.record.state not in MEMBERS or not membership.is_in_order(state, before.record):
                    return None
                after = _with_beat(before.record, beat, state.clock())
                text = after.to_json().decode()
            found = await self._queue.put(Swap(beat.node, signed.nonce, before.text if before else "", text))
            if found == "absent":
                return None
            if found == "seen":
                raise Refusal(ProblemCode.SEEN_BEFORE, "sign every request with a new nonce")
            if found == "done":
                assert after is not None  # no record is the empty text
                self._pace.take(signed.key)
                state.nodes.parsed.remember(beat.node, text, after)
                return membership.reply_to(state, after)
            before = state.nodes.parsed.read(beat.node, found)
        return None


def _require_no_wait(wait: float) -> None:
    """Raises `Refusal` for a heartbeat that comes too early."""
    if wait > 0.0:
        words = f"a heartbeat is due every {HEARTBEAT_SECONDS:.0f} s: wait {wait:.1f} s"
        raise Refusal(ProblemCode.TOO_MANY_HEARTBEATS, words, retry_after_seconds=math.ceil(wait))


def _with_beat(record: NodeRecord, beat: Heartbeat, now_unix: float) -> NodeRecord:
    """The record after a heartbeat, as `membership.heartbeat` makes it."""
    fields = membership.fields_of(beat, now_unix)
    return record.model_copy(update={"state": next_state(record.state, "heartbeat"), **fields})


async def _read(receive: Receive) -> bytes | None:
    """The whole body, which the server holds to its announced length; None when the client went away."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """`receive` as it was before the body was read."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
