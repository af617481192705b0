"""What discovery and orchestrator share as HTTP services: signed bodies, who signed them, health and metrics.

A handler asks for the signer first and parses the body after, so that nobody unsigned learns more than that.
"""

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fastapi import FastAPI, Request, Response
from prometheus_client.exposition import choose_encoder
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from shoal.contracts.base import Contract
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.roster import Role
from shoal.contracts.run import home
from shoal.contracts.trust import OVERLAP_SECONDS, KeysNotice, TrustedKeys
from shoal.telemetry import OPENMETRICS, metrics_kind, render_metrics
from shoal.transport.addresses import address_block
from shoal.transport.pace import Pace
from shoal.transport.problems import mistakes
from shoal.transport.server import SignatureGate
from shoal.transport.shared_answer import SharedAnswer

Body = TypeVar("Body", bound=Contract)

REQUESTS_PER_SECOND, REQUESTS_AT_ONCE = 20.0, 200
"""Of one node's key. An agent and its worker ask some two times a second, and more often for a moment when a step opens."""
OFFERS_PER_SECOND, OFFERS_AT_ONCE = 50.0, 500
"""Of `GET /v1/join`, for one address, which behind an Ingress is everybody's: this many machines may begin to join, and a flood costs some percent of
a core. Who has joined asks for it no more, so that whoever spends it for others keeps only newcomers waiting."""
LONGEST_POLL_SECONDS = 25.0
"""A long poll ends before the usual 30 s of clients and of proxies between."""


class Gate:
    """Says who signed a request, as a node or as a role of the roster."""

    def __init__(self, signatures: SignatureGate, keys: TrustedKeys, pace: Pace | None = None) -> None:
        self._signatures = signatures
        self._keys = keys
        self._pace = pace or Pace(REQUESTS_PER_SECOND, REQUESTS_AT_ONCE)

    async def node(self, request: Request, admit: Callable[[str], None] = lambda _: None) -> str:
        """The key that signed; raises `Refusal`, also for a stranger's key that asks too often; what `admit` raises before the body is read.

        Whether the key may do anything is decided by its record. Roles are not held back: their replicas share a key.
        """
        return self._in_pace((await self._signatures.signer(request, admit)).key)

    async def node_of_head(self, request: Request) -> str:
        """The key that signed the head; the body is the caller's to read as it comes, and to hold to the digest. Raises as `node` does."""
        return self._in_pace((await self._signatures.head_signer(request)).key)

    def _in_pace(self, key: str) -> str:
        if self._keys.role_of(key) is None:
            hold_back(
                self._pace, key, f"a key has {REQUESTS_AT_ONCE} requests at once and {REQUESTS_PER_SECOND:.0f} a second"
            )
        return key

    async def speaks_for(self, request: Request, body: type[Body]) -> Body:
        """The body, whose field `node` must be the signer; raises `Refusal`."""
        signer = await self.node(request)
        document = await parse(request, body)
        require_same(signer, getattr(document, "node", ""))
        return document

    async def role(self, request: Request, role: Role) -> str:
        """The signer, which must be `role` of the roster, or its body is not read; raises `Refusal`."""

        def admit(signer: str) -> None:
            if self._keys.role_of(signer) != role:
                raise Refusal(
                    ProblemCode.WRONG_ROLE,
                    f"{request.method} {request.scope['path']} is for the {role} of this run only",
                )

        return await self.node(request, admit)


def hold_back(pace: Pace, caller: str, terms: str) -> None:
    """Take one from the caller's pace; raises `Refusal` with `terms` and when to come again."""
    require_no_wait(pace.take(caller), terms)


def require_no_wait(wait: float, terms: str) -> None:
    """Raises `Refusal` for who must wait, in seconds."""
    if wait > 0.0:
        raise Refusal(ProblemCode.TOO_MANY_REQUESTS, f"{terms}: wait {wait:.1f} s", retry_after_seconds=math.ceil(wait))


def address_of(request: Request) -> str:
    """The caller's address: an IPv4 address, or the /64 of an IPv6 one; behind an Ingress the Ingress's."""
    return address_block(request.client.host if request.client is not None else "")


def require_same(signer: str, node: str) -> None:
    """The signer must be the node that the request speaks for; raises `Refusal`."""
    if signer != node:
        raise Refusal(
            ProblemCode.SIGNER_NOT_THE_NODE,
            f"the request speaks for node {node[:12]}... and is signed by {signer[:12]}...",
        )


async def parse(request: Request, body: type[Body]) -> Body:
    """The request's JSON body as a contract; raises `Refusal` naming every wrong field."""
    try:
        return body.from_json(await request.body())
    except ValidationError as error:
        raise Refusal(
            ProblemCode.NOT_VALID, f"{body.__name__}: {mistakes(error.errors(include_url=False, include_input=False))}"
        ) from error


def json_answer(document: Contract | None) -> Response:
    """200 with the document, or 204 without one."""
    if document is None:
        return Response(status_code=204)
    return Response(document.to_json(), media_type="application/json")


def add_keys_route(app: FastAPI, keys: TrustedKeys, notice: Callable[[], KeysNotice]) -> None:
    """`GET /v1/keys`: whom to believe, for whoever asks; nothing in it is secret, and it proves itself."""

    async def read() -> bytes:
        return (await run_in_threadpool(notice)).to_json()

    told = SharedAnswer(read)

    @app.get("/v1/keys")
    async def _keys(request: Request) -> Response:
        after, roster = query_seconds(request, "after", 1e6), keys.roster
        # While the old key of a planned change still acts, the past that it is believed about grows.
        settled = not roster.changes or keys.clock() > roster.changes[-1].document.unix + 2 * OVERLAP_SECONDS
        if after >= roster.generation and settled:
            return Response(status_code=204)
        return Response(await told.get(), media_type="application/json")


def poll_seconds(request: Request) -> float:
    """`wait_seconds` of a long poll; raises `Refusal` outside 0 to the longest."""
    return query_seconds(request, "wait_seconds", LONGEST_POLL_SECONDS)


def query_seconds(request: Request, name: str, most: float) -> float:
    """A number of seconds in the query, 0 where it is absent; raises `Refusal` outside 0 to `most`."""
    text = request.query_params.get(name, "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= most:
        raise Refusal(ProblemCode.NOT_VALID, f"{name}: given {text[:20]!r}; allowed: 0 to {most:.0f}")
    return seconds


def add_health(app: FastAPI, alive: Callable[[], str | None], ready: Callable[[], str | None]) -> None:
    """`/healthz`, `/readyz`, `/metrics`; the functions give None, or what is wrong. `alive` answers at once, `ready` may ask Redis.

    Probes take none of the threads of requests: a pod whose threads are all at files is alive, and is not to be restarted.
    """
    thread = ThreadPoolExecutor(1, "ready")

    async def read() -> bytes:
        return (await asyncio.get_running_loop().run_in_executor(thread, ready) or "").encode()

    told = SharedAnswer(read)

    def answer(problem: str | None) -> Response:
        return Response(problem or "ok", 503 if problem else 200, media_type="text/plain")

    @app.get("/healthz", include_in_schema=False)
    async def _healthz() -> Response:
        return answer(alive())

    @app.get("/readyz", include_in_schema=False)
    async def _readyz() -> Response:
        return answer((await told.get()).decode())

    figures = {kind: _figures(kind) for kind in ("", OPENMETRICS)}

    @app.get("/metrics", include_in_schema=False)
    async def _metrics(request: Request) -> Response:
        kept, content_type = figures[metrics_kind(request.headers.get("accept"))]
        return Response(await kept.get(), media_type=content_type)


def _figures(kind: str) -> tuple[SharedAnswer, str]:
    """`/metrics` for all who ask with one of the two kinds of Accept header, and its content type."""

    async def read() -> bytes:
        return (await run_in_threadpool(render_metrics, kind))[0]

    return SharedAnswer(read), choose_encoder(kind)[1]


def read_secret(name: str) -> bytes:
    """A file of this pod's Secret; exits with its path when it is missing."""
    path = home() / "secrets" / name
    try:
        return path.read_bytes()
    except OSError as error:
        raise SystemExit(f"cannot read {path}: {error.strerror}; it comes from the Secret of this role") from error
