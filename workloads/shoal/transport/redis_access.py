"""Redis as discovery and orchestrator use it: connections with short timeouts, key names of a run, and the memory of nonces.

Nothing in Redis is the only copy of anything that matters; a server that is away turns into 503 with Retry-After, and callers try again.
"""

import redis
import redis.asyncio
import redis.asyncio.retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

TIMEOUT_SECONDS = 5.0  # Redis answers in under a millisecond; one that does not within seconds is away
RETRIES = 2  # enough for a connection that broke; a longer absence is the caller's to wait out
CONNECTIONS = 32  # of one process; a thousand that ask in the same moment take turns


def connect(url: str) -> redis.Redis:
    """A thread-safe client. Connects on first use, so that a service starts while Redis is still away."""
    return redis.Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), RETRIES),
    )


def connect_async(url: str) -> redis.asyncio.Redis:
    """The same for coroutines, of which any number may ask at once: they share CONNECTIONS, and wait for one as long as for an answer."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        decode_responses=True,
        max_connections=CONNECTIONS,
        timeout=TIMEOUT_SECONDS,
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=redis.asyncio.retry.Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), RETRIES),
    )
    return redis.asyncio.Redis.from_pool(pool)


class RedisNonces:
    """`transport.server.NonceMemory`: a nonce is new once, for all replicas of a service."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self.client = client
        self._prefix = prefix

    async def first_use(self, key: str, nonce: str, seconds: int) -> bool:
        return bool(await self.client.set(nonce_key(self._prefix, key, nonce), "1", nx=True, ex=seconds))


def nonce_key(prefix: str, key: str, nonce: str) -> str:
    """Where a nonce of a signer is remembered."""
    return f"{prefix}:nonce:{key}:{nonce}"
