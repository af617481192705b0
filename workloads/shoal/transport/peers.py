"""The answers of discovery and orchestrator while store or Redis is away: apart from `service`, which agents use on machines without Redis."""

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from redis.exceptions import RedisError

from shoal.contracts.problems import ProblemCode, Refusal
from shoal.storage import StoreUnavailable
from shoal.telemetry import get_logger
from shoal.transport.problems import refused


def add_peer_answers(app: FastAPI, failed: Callable[[], None]) -> None:
    """Answer 503 with Retry-After while store or Redis is away; `failed` is told, because a write may be half done."""

    async def away(_: Request, error: Exception) -> Response:
        failed()
        return peer_is_away(error)

    app.add_exception_handler(RedisError, away)
    app.add_exception_handler(StoreUnavailable, away)


def peer_is_away(error: Exception) -> Response:
    """The answer while store or Redis does not."""
    code = ProblemCode.STORE_AWAY if isinstance(error, StoreUnavailable) else ProblemCode.REDIS_AWAY
    get_logger().warning("peer away", problem=code, error=f"{type(error).__name__}: {str(error)[:300]}")
    return refused(Refusal(code, "nothing is lost: try again in a second", retry_after_seconds=1))
