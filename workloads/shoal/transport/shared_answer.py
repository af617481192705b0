"""The answer to a question that anybody may ask unsigned, and that costs: `GET /v1/run` reads every node, lease and waiting file from Redis, and
`GET /metrics` writes out every figure of the process.

Whoever asks now and then gets a reading of that moment. Of a crowd, those that come while one is made share it; beyond a pace of readings
everybody gets the last one, at most a second old. Made by the applications of orchestrator and discovery; for one event loop.

`KeptAnswers` are large ones that never change, of which each is held once for all who are being sent it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from shoal.transport.pace import Pace

KEPT_SECONDS = 1.0
"""The operator and `shoal up` ask once a second or less often: what they show is never older than their own question before."""
READINGS_PER_SECOND, READINGS_AT_ONCE = 2.0, 20
"""Beside the one a second that age asks for. A reading takes some milliseconds a thousand nodes, so that a flood costs a few percent of a core."""


class SharedAnswer:
    """The answer of `read`, shared by all callers."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._pace = Pace(READINGS_PER_SECOND, READINGS_AT_ONCE, clock)
        self._kept: bytes | None = None
        self._kept_at = 0.0
        self._reading: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """The answer; raises what `read` raised, which is kept for nobody who comes later."""
        fresh = self._kept is not None and self._clock() - self._kept_at < KEPT_SECONDS
        if self._kept is not None and fresh and self._pace.take("") > 0.0:
            return self._kept
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._anew())
        return await asyncio.shield(self._reading)  # whoever goes away ends it for nobody

    async def _anew(self) -> bytes:
        began = self._clock()
        found = await self._read()
        self._kept, self._kept_at = found, began
        return found


class KeptAnswers:
    """What `read` gives for a name, read once and kept. For names of which there are few, each with content that never changes."""

    def __init__(self, read: Callable[[str], Awaitable[bytes]]) -> None:
        self._read = read
        self._readings: dict[str, asyncio.Future[bytes]] = {}

    async def get(self, name: str) -> bytes:
        """The same object for everybody; raises what `read` raised, which is read again for whoever comes later."""
        reading = self._readings.get(name)
        if reading is None or (reading.done() and (reading.cancelled() or reading.exception() is not None)):
            reading = self._readings[name] = asyncio.ensure_future(self._read(name))
        return await asyncio.shield(reading)
