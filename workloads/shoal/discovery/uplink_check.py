"""The measurement of a machine's way out, on discovery's side: gives out tests, counts and drops what is uploaded, and keeps what it saw for an hour.

Comes in: questions and uploads of strangers' machines. Goes out: `UplinkResult`, and the figure that discovery writes into a registration in the
place of what the node says. The time runs on the clock of Redis, which all discoveries have, from the moment when a test was given out to the last
byte: a proxy that takes a whole body before it passes it on makes a line no faster; nor does a node that sends something beforehand. What
is shown is what came for this key in that hour, not whose line it was.

Nothing is kept of an upload: uvicorn reads no further than 64 KiB ahead. Tests, results and the places of those that run are in Redis.
"""

import hashlib
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import redis.asyncio
from pydantic import Field

from shoal.contracts.base import Contract
from shoal.contracts.pools import PoolTerms, terms_of
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import Registration
from shoal.contracts.uplink import UplinkRequest, UplinkResult, UplinkTest
from shoal.telemetry import get_logger
from shoal.transport.pace import Pace
from shoal.transport.patience import within
from shoal.transport.service import require_no_wait

AIM_SECONDS = 3.0
"""An upload is as long as this at the speed that the pool requires: long beside a round trip and TCP's slow start, short for who waits."""
SMALLEST_BYTES, LARGEST_BYTES = 1 << 20, 16 << 20
LIMIT_SECONDS = 15.0
"""At most, of twice what a line that does needs, and of 6 s: what came by then is the measurement of one that does not (`limit_for`)."""
START_SECONDS = 5.0
"""A place is free again when its upload has not begun by then, or by when a line that is good enough is through."""
KEPT_SECONDS = 3600
"""A result counts for this long: for the registration that follows, and those of an agent that is restarted or forgotten."""
MOST_AT_ONCE, MOST_OF_ADDRESS = 8, 2
"""Uploads, by all discoveries: more would measure our line and not theirs. So few of an address that it takes four of them to keep others waiting;
behind an Ingress, where all are one, two uploads of 3 s still are more than `PER_ADDRESS` lets in."""
PER_KEY = (1 / 30, 3)
PER_ADDRESS = (0.5, 10)
"""Tests a second, and at once. Behind an Ingress one address is everybody's: then this is how fast newcomers of a pool that requires this come in."""


def size_for(wanted: int) -> int:
    """Bytes of an upload that shows a speed, 10^6 bits a second."""
    return min(max(int(wanted * 1e6 / 8 * AIM_SECONDS), SMALLEST_BYTES), LARGEST_BYTES)


def limit_for(wanted: int) -> float:
    """Seconds after which an upload of that size is cut off. Its line is then no faster than half of what is wanted, however soon the rest came."""
    needed = size_for(wanted) * 8 / 1e6 / wanted if wanted else 0.0
    return min(2 * max(needed, AIM_SECONDS), LIMIT_SECONDS)


_TAKE = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], ARGV[8], '+inf')
local replaced = redis.call('EXISTS', KEYS[2]) == 1 and ARGV[7] or ''
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
    local running, neighbours = 0, 0
    for _, place in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
        if place ~= replaced then
            running = running + 1
            if string.sub(place, 1, #ARGV[2]) == ARGV[2] then neighbours = neighbours + 1 end
        end
    end
    if running >= tonumber(ARGV[5]) or neighbours >= tonumber(ARGV[6]) then return 0 end
    redis.call('ZREM', KEYS[1], replaced)
end
redis.call('ZADD', KEYS[1], ARGV[4], ARGV[1])
return 1
"""
"""A test's place in a set of them by when they end: 1 if it has one, instead of the one of a test before it, if that has not begun. In one step:
who is refused was never counted, and has what it had. Places that end later than any can are from before the clock was set back."""


class GivenTest(Contract):
    """A test in Redis."""

    test: UplinkTest
    given_unix: float = Field(ge=0.0)
    address: str = ""

    @property
    def place(self) -> str:
        return f"{self.address} {self.test.test}"


class UplinkCheck:
    """Tests of all machines at one discovery. For one event loop."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        prefix: str,
        pools: Callable[[], Sequence[PoolTerms]],
        clock: Callable[[], Awaitable[float]] | None = None,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pools` gives the run's pools as they are by now; `clock` (default: that of Redis) times uploads, which another discovery may have begun;
        `ticks` the pace."""
        self._redis = client
        self._prefix = f"{prefix}:uplink"
        self._pools = pools
        self._clock = clock or self._redis_time
        self._keys = Pace(*PER_KEY, ticks)
        self._addresses = Pace(*PER_ADDRESS, ticks)

    def wanted(self, pool: str) -> int:
        """Uplink that strangers' machines in a pool must have, 10^6 bits a second; 0: nothing, or it takes none."""
        terms = terms_of(self._pools(), pool)
        return terms.requirements.uplink_mbps if terms is not None and terms.open else 0

    async def measured(self, node: str) -> UplinkResult | None:
        """A node's measured uplink within the last hour."""
        found = await self._redis.get(self._result(node))
        return UplinkResult.from_json(found) if found is not None else None

    async def require_still(self, registration: Registration) -> None:
        """Raises `Refusal` for a stranger's machine whose pool requires more by now than was measured when it registered: it is to do so again."""
        wanted, had = self.wanted(registration.pool), registration.hardware.uplink_mbps
        if not wanted or registration.proof is not None:
            return
        seen = ""
        if (had or 0.0) < wanted:
            seen = f"{had:g} were measured" if had is not None else "it was not measured"
        elif (found := await self.measured(registration.node)) is not None:  # else it was, and an hour ago
            seen = _lacks(found, wanted)
        if seen:
            words = (
                f"pool {registration.pool!r} requires an uplink of {wanted} Mbit/s by now, {seen}: POST /v1/nodes again"
            )
            raise Refusal(ProblemCode.UPLINK_OUTDATED, words)

    async def with_measured(self, registration: Registration) -> Registration:
        """The registration with our figure in the place of the node's; raises `Refusal` for a stranger's machine that has not shown enough.

        A pod of the pool's own says so by a proof, which only the orchestrator can check: who forges one comes in without a figure, and no further.
        """
        wanted, found = self.wanted(registration.pool), await self.measured(registration.node)
        if wanted and registration.proof is None and (seen := _lacks(found, wanted)):
            words = f"pool {registration.pool!r} requires an uplink of {wanted} Mbit/s, {seen}"
            raise Refusal(ProblemCode.UPLINK_NOT_MEASURED, words)
        # Who says to be a pod of ours is not asked for it: a test that was too short for its pool is not a figure for the orchestrator either.
        counts = found is not None and found.size >= size_for(wanted)
        hardware = registration.hardware.model_copy(update={"uplink_mbps": found.mbps if counts and found else None})
        return registration.model_copy(update={"hardware": hardware})

    async def give(self, request: UplinkRequest, address: str) -> UplinkTest:
        """A new test, instead of one that was not made; raises `Refusal` for who asks too often, or while many are at it."""
        require_no_wait(
            self._keys.wait(request.node), f"a key has {PER_KEY[1]} tests at once and one in {1 / PER_KEY[0]:.0f} s"
        )
        require_no_wait(
            self._addresses.wait(address),
            f"an address has {PER_ADDRESS[1]} tests at once and one in {1 / PER_ADDRESS[0]:.0f} s",
        )
        wanted = self.wanted(request.pool)
        test = UplinkTest(
            test=secrets.token_hex(16), node=request.node, size=size_for(wanted), limit_seconds=limit_for(wanted)
        )
        given = GivenTest(test=test, given_unix=await self._clock(), address=address)
        before = await self._redis.get(self._test(request.node))
        # A proxy that takes a body whole begins only when a line that is good enough is through.
        patience = max(START_SECONDS, test.limit_seconds / 2 + 1.0)
        await self._take_place(given, patience, GivenTest.from_json(before).place if before is not None else "")
        # Only now: a crowd, or others at its address, cost a machine none of its own tests.
        self._keys.take(request.node)
        self._addresses.take(address)
        await self._redis.set(self._test(request.node), given.to_json(), ex=math.ceil(test.limit_seconds))
        return test

    async def _take_place(self, given: GivenTest, seconds: float, replaced: str = "") -> None:
        """For this long after it was given. Raises `Refusal` when there is none. A place that the test has still is its for longer."""
        now = await self._clock()
        told = (
            given.place, f"{given.address} ", now, given.given_unix + seconds, MOST_AT_ONCE, MOST_OF_ADDRESS, replaced, now + LIMIT_SECONDS + 1.0,
        )  # fmt: skip
        if not await self._redis.eval(_TAKE, 2, self._running, self._test(given.test.node), *map(str, told)):
            words = f"{MOST_AT_ONCE} machines are measured, or {MOST_OF_ADDRESS} at your address: try again later"
            raise Refusal(ProblemCode.TOO_MANY_UPLOADS, words, retry_after_seconds=3)

    async def _redis_time(self) -> float:
        """Seconds since 1970 by the one clock that all discoveries have."""
        seconds, micros = await self._redis.time()
        return float(seconds) + float(micros) / 1e6

    async def receive(
        self, node: str, test: str, body: AsyncIterator[bytes], fits: Callable[[bytes], bool]
    ) -> UplinkResult:
        """Count a test's upload and keep the result; `fits` says whether a SHA-256 is the one that was signed.

        What came within the limit is the result of a line that is too slow for all of it. Raises `Refusal` for a test that is not open, for
        one that was begun late where there is no place by now; for another size; and for other bytes than were signed.
        """
        data = await self._redis.getdel(self._test(node))
        given = GivenTest.from_json(data) if data is not None else None
        waited = await self._clock() - given.given_unix if given is not None else 0.0
        left = given.test.limit_seconds - waited if given is not None else 0.0
        if given is None or given.test.test != test or waited < 0.0 or left <= 0.0:  # before 0: the clock was set back
            raise Refusal(
                ProblemCode.NO_SUCH_TEST, "it was used, replaced, expired or never given out: ask for a new one"
            )
        # Who begins late has lost its place, and others may be at it by now.
        await self._take_place(given, given.test.limit_seconds)
        try:
            return await self._counted(given, left, body, fits)
        finally:
            await self._redis.zrem(self._running, given.place)

    async def _counted(
        self, given: GivenTest, left: float, body: AsyncIterator[bytes], fits: Callable[[bytes], bool]
    ) -> UplinkResult:
        size, came, digest = given.test.size, 0, hashlib.sha256()
        try:
            async for part in within(body, lambda: left):
                came += len(part)
                digest.update(part)
                if came > size:
                    raise Refusal(ProblemCode.UPLOAD_TOO_LARGE, f"this test is of {size} bytes")
        except TimeoutError:
            pass
        else:
            if came < size:
                raise Refusal(ProblemCode.UPLOAD_TOO_SMALL, f"this test is of {size} bytes, {came} came")
            if not fits(digest.digest()):
                raise Refusal(ProblemCode.NOT_SIGNED, "the bytes differ from the signed ones")
        elapsed = await self._clock() - given.given_unix
        if elapsed < 0.0:
            raise Refusal(ProblemCode.NO_SUCH_TEST, "the clock was set back during the test: ask for a new one")
        seconds = max(elapsed, 1e-3)
        result = UplinkResult(mbps=round(came * 8 / 1e6 / seconds, 2), size=came, seconds=round(seconds, 3))
        node = given.test.node
        await self._redis.set(self._result(node), result.to_json(), ex=KEPT_SECONDS)
        get_logger().info("uplink measured", node=node, mbps=result.mbps, bytes=came, seconds=result.seconds)
        return result

    @property
    def _running(self) -> str:
        return f"{self._prefix}:running"

    def _test(self, node: str) -> str:
        return f"{self._prefix}:test:{node}"

    def _result(self, node: str) -> str:
        return f"{self._prefix}:result:{node}"


def _lacks(found: UplinkResult | None, wanted: int) -> str:
    """Why a result does not show the speed that is wanted, in words; empty when it does."""
    if found is None:
        return "it is not measured yet"
    if found.mbps < wanted:
        return f"{found.mbps:g} were measured"
    if found.size < size_for(wanted):
        return f"it was measured with {found.size} bytes, which are too few"
    return ""
