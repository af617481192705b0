"""The measurement of a machine's way out, on discovery's side: gives out tests, counts and drops what is uploaded, and keeps what it saw for an hour.

Comes in: questions and uploads of strangers' machines. Goes out: `UplinkResult`, and the figure that discovery writes into a registration in the
place of what the node says. The time runs on our clock from the moment when a test was given out to the last byte: a proxy that takes a whole body
before it passes it on makes a line no faster by that, and nor does a node that sends something beforehand. What is shown is what came for this key in
that hour, not whose line it was.

Nothing is kept of an upload: uvicorn reads no further than 64 KiB ahead. Tests, results and the places of those that run are in Redis.
"""

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence

import redis.asyncio
from pydantic import Field

from shoal.contracts.base import Contract
from shoal.contracts.pools import PoolTerms, terms_of
from shoal.contracts.protocol import Registration
from shoal.contracts.uplink import UplinkRequest, UplinkResult, UplinkTest
from shoal.protocol.service import hold_back, require_no_wait
from shoal.telemetry import get_logger
from shoal.transport.pace import Pace
from shoal.transport.patience import within
from shoal.transport.server import Problem

AIM_SECONDS = 3.0
"""An upload is as long as this at the speed that the pool wants: long beside a round trip and TCP's slow start, short for who waits."""
SMALLEST_BYTES, LARGEST_BYTES = 1 << 20, 16 << 20
LIMIT_SECONDS = 15.0
"""Five times what a line that does needs; what came by then is the measurement of one that does not."""
START_SECONDS = 5.0  # a place is free again when its upload has not begun by then
KEPT_SECONDS = 3600
"""A result counts for so long: for the registration that follows, and those of an agent that is restarted or forgotten."""
MOST_AT_ONCE = 8
"""Uploads, by all discoveries: more would measure our line and not theirs."""
PER_KEY = (1 / 30, 3)
PER_ADDRESS = (0.5, 10)
"""Tests a second, and at once. Behind an Ingress one address is everybody's: then this is how fast newcomers of a pool that wants this come in."""


class GivenTest(Contract):
    """A test in Redis."""

    test: UplinkTest
    given_unix: float = Field(ge=0.0)


class UplinkCheck:
    """Tests of all machines at one discovery. For one event loop."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        prefix: str,
        pools: Callable[[], Sequence[PoolTerms]],
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pools` gives the run's pools as they are by now; `clock` times uploads, which another discovery may have begun, `ticks` the pace."""
        self._redis = client
        self._prefix = f"{prefix}:uplink"
        self._pools = pools
        self._clock = clock
        self._keys = Pace(*PER_KEY, ticks)
        self._addresses = Pace(*PER_ADDRESS, ticks)

    def wanted(self, pool: str) -> int:
        """What strangers' machines in a pool must have, 10^6 bits a second; 0: nothing, or it takes none."""
        terms = terms_of(self._pools(), pool)
        return terms.requirements.uplink_mbps if terms is not None and terms.open else 0

    async def measured(self, node: str) -> float | None:
        """What was measured of a node within the last hour."""
        found = await self._redis.get(self._result(node))
        return UplinkResult.from_json(found).mbps if found is not None else None

    async def with_measured(self, registration: Registration) -> Registration:
        """The registration with our figure in the place of the node's; raises `Problem` 428 for a stranger's machine that has not shown enough.

        A pod of the pool's own says so by a proof, which only the orchestrator can check: who forges one comes in without a figure, and no further.
        """
        wanted, found = self.wanted(registration.pool), await self.measured(registration.node)
        if wanted and registration.proof is None and (found is None or found < wanted):
            seen = f"{found:g} were measured" if found is not None else "it is not measured yet"
            words = f"pool {registration.pool!r} wants an uplink of {wanted} Mbit/s, {seen}: POST /v1/uplink-tests, then PUT /v1/uplink"
            raise Problem(428, "Measure first", words)
        hardware = registration.hardware.model_copy(update={"uplink_mbps": found})
        return registration.model_copy(update={"hardware": hardware})

    async def give(self, request: UplinkRequest, address: str) -> UplinkTest:
        """A new test, in place of one that was not made; raises `Problem` 429 for who asks too often, or while many are at it."""
        require_no_wait(
            self._keys.wait(request.node), f"a key has {PER_KEY[1]} tests at once and one in {1 / PER_KEY[0]:.0f} s"
        )
        hold_back(
            self._addresses,
            address,
            f"an address has {PER_ADDRESS[1]} tests at once and one in {1 / PER_ADDRESS[0]:.0f} s",
        )
        now = self._clock()
        async with self._redis.pipeline(transaction=True) as together:
            together.zremrangebyscore(self._running, "-inf", now)
            together.zadd(self._running, {request.node: now + START_SECONDS})
            together.zcard(self._running)
            *_, running = await together.execute()
        if running > MOST_AT_ONCE:
            await self._redis.zrem(self._running, request.node)
            raise Problem(
                429, "Many uploads at once", f"{MOST_AT_ONCE} machines are measured: come again", {"Retry-After": "3"}
            )
        self._keys.take(
            request.node
        )  # only now: a crowd, or others at its address, cost a machine none of its own tests
        size = int(self.wanted(request.pool) * 1e6 / 8 * AIM_SECONDS)
        test = UplinkTest(
            test=secrets.token_hex(16),
            node=request.node,
            size=min(max(size, SMALLEST_BYTES), LARGEST_BYTES),
            limit_seconds=LIMIT_SECONDS,
        )
        given = GivenTest(test=test, given_unix=self._clock())
        await self._redis.set(self._test(request.node), given.to_json(), ex=int(LIMIT_SECONDS) + 1)
        return test

    async def receive(
        self, node: str, test: str, body: AsyncIterator[bytes], fits: Callable[[bytes], bool]
    ) -> UplinkResult:
        """Count a test's upload and keep the result; `fits` says whether a SHA-256 is the one that was signed.

        What came within the limit is the result of a line that is too slow for all of it. Raises `Problem` 409 for a test that is not open, 413 and
        422 for another size, 401 for other bytes than were signed.
        """
        data = await self._redis.getdel(self._test(node))
        given = GivenTest.from_json(data) if data is not None else None
        if given is None or given.test.test != test:
            raise Problem(
                409, "No such test", "it was made, replaced, is over or was never given out: ask for a new one"
            )
        await self._redis.zadd(self._running, {node: given.given_unix + LIMIT_SECONDS})
        try:
            return await self._counted(given, body, fits)
        finally:
            await self._redis.zrem(self._running, node)

    async def _counted(
        self, given: GivenTest, body: AsyncIterator[bytes], fits: Callable[[bytes], bool]
    ) -> UplinkResult:
        size, came, digest = given.test.size, 0, hashlib.sha256()
        left = given.given_unix + LIMIT_SECONDS - self._clock()
        try:
            async for part in within(body, lambda: left):
                came += len(part)
                digest.update(part)
                if came > size:
                    raise Problem(413, "Upload is too large", f"this test is of {size} bytes", {"Connection": "close"})
        except TimeoutError:
            pass
        else:
            if came < size:
                raise Problem(422, "Upload is too small", f"this test is of {size} bytes, {came} came")
            if not fits(digest.digest()):
                raise Problem(401, "Request is not signed as required", "other bytes came than were signed")
        seconds = max(self._clock() - given.given_unix, 1e-3)
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
