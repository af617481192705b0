"""Waiting for invites: one look at Redis for all long polls of this process, however many nodes wait.

In: nodes whose polls are held. Out: each one's invite when it is there. Called by `discovery`. A thousand nodes that each asked for themselves four
times a second would keep a core busy with nothing.
"""

import asyncio
from collections import defaultdict

import redis.asyncio

POLL_SECONDS = 0.25
"""How often the invites of all who wait are looked for."""
BATCH = 500
"""Most in one call: Redis serves nobody else meanwhile."""


class InviteWatch:
    """For one event loop. `prefix` and a node's id are the key of its invite."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self._redis = client
        self._prefix = prefix
        self._waiting: dict[str, list[asyncio.Future[str]]] = defaultdict(list)
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, node: str, seconds: float) -> str | None:
        """The node's invite; None when there is none after `seconds`. Raises RedisError."""
        found = await self._redis.get(self._prefix + node)
        if found is not None or seconds <= 0:
            return None if found is None else str(found)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[node].append(answer)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            return None
        finally:
            self._waiting[node].remove(answer)
            if not self._waiting[node]:
                del self._waiting[node]

    async def _look(self) -> None:
        """Until nobody waits. What goes wrong is told to all who wait now."""
        while self._waiting:
            await asyncio.sleep(POLL_SECONDS)
            nodes = list(self._waiting)
            try:
                for start in range(0, len(nodes), BATCH):
                    part = nodes[start : start + BATCH]
                    found = await self._redis.mget([self._prefix + node for node in part])
                    for node, text in zip(part, found, strict=True):
                        if text is not None:
                            self._tell(node, str(text))
            except Exception as error:
                for node in nodes:
                    self._tell(node, error)

    def _tell(self, node: str, what: str | Exception) -> None:
        for answer in self._waiting.get(node, ()):
            if answer.done():  # its poll was given up
                continue
            if isinstance(what, Exception):
                answer.set_exception(what)
            else:
                answer.set_result(what)
