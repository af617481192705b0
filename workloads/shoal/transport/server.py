"""The server side: who signed a request, body limits, and running the application.

A FastAPI service makes one `SignatureGate`, asks it for the signer of each request that needs one, raises `Refusal` to refuse, and calls
`serve(app, port)`. Who may do what is the service's own decision.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.run import bind_address
from shoal.crypto.http_signatures import NONCE_SECONDS, BadRequestSignature, SignedBy, has_digest, verify_request
from shoal.transport.patience import BODY_SECONDS, WHOLE_BODY, PatientProtocol, allow_connections
from shoal.transport.problems import refused

MAX_BODY_BYTES = 1 << 20
"""Greatest JSON body in bytes where a service says nothing else."""


def target_of(scope: Scope) -> str:
    """Path and query as the client wrote them: what it signed.

    Not from `request.url`, which is put together with the Host header, in which a client may write a path of its own; and not decoded, or a signed
    `/a?b` would fit a request for `/a%3Fb`.
    """
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


class NonceMemory(Protocol):
    """Remembers nonces for a time, shared by all replicas of a service (Redis `SET NX EX`)."""

    async def first_use(self, key: str, nonce: str, seconds: int) -> bool: ...


class SignatureGate:
    """Checks signatures of requests to this service, known to its callers as `base_url`, and to those outside by further names."""

    def __init__(
        self, base_url: str, nonces: NonceMemory, further: Callable[[], Sequence[str | None]] = lambda: ()
    ) -> None:
        """`further` gives other URLs of this same service, asked for again each time; None among them is passed over."""
        self._base_url = base_url.rstrip("/")
        self._further = further
        self._nonces = nonces

    async def signer(self, request: Request, admit: Callable[[str], None] = lambda _: None) -> SignedBy:
        """Who signed the request; raises `Refusal` when nobody did, the signature does not fit or it is a replay.

        The URL that must have been signed is one of ours, whatever Host the client wrote: a request signed for another service does not fit.
        The signature is over the head, which has the body's digest: no body is read before the head's signature fits, and before `admit`, given
        the key, has let it pass (by not raising).
        """
        target, headers = target_of(request.scope), dict(request.headers)
        signed = self.check(request.method, target, headers, None)
        admit(signed.key)
        body = await request.body()
        if not has_digest(headers, body):
            signed = self.check(request.method, target, headers, body)
        await self._take_nonce(signed)
        return signed

    async def head_signer(self, request: Request) -> SignedBy:
        """Who signed the head of a request whose body is not kept: the caller reads it as it comes, and holds it to the head's digest.

        Raises `Refusal`.
        """
        signed = self.check(request.method, target_of(request.scope), dict(request.headers), None)
        await self._take_nonce(signed)
        return signed

    async def _take_nonce(self, signed: SignedBy) -> None:
        if not await self._nonces.first_use(signed.key, signed.nonce, NONCE_SECONDS):
            raise Refusal(ProblemCode.SEEN_BEFORE, "sign every request with a new nonce")

    def check(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> SignedBy:
        """Who signed a request to `target` (path and query), with `body` None its head; whether its nonce is new is left to the caller.

        Raises `Refusal`.
        """
        problem = ""
        for url in self._names(headers.get("host", "")):
            try:
                return verify_request(method=method, url=url + target, headers=headers, body=body, now_unix=time.time())
            except BadRequestSignature as error:
                problem = problem or str(error)
        raise Refusal(ProblemCode.NOT_SIGNED, problem)

    def _names(self, host: str) -> list[str]:
        """Our URLs, the likeliest first: that whose host the client wrote, which a proxy between may have changed."""
        urls = [self._base_url, *(url.rstrip("/") for url in self._further() if url is not None)]
        return sorted(dict.fromkeys(urls), key=lambda url: urlsplit(url).netloc != host)


class BodyLimit:
    """ASGI middleware: a body above the limit is refused with 413 before it is read into memory; `exempt` paths bound themselves.

    `by_path` are paths with a limit of their own, in bytes.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int = MAX_BODY_BYTES,
        exempt: tuple[str, ...] = (),
        by_path: Mapping[str, int] | None = None,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._exempt = exempt
        self._by_path = by_path or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._exempt:
            await self._app(scope, receive, send)
            return
        most = self._by_path.get(scope["path"], self._max_bytes)
        length = dict(scope["headers"]).get(b"content-length")
        if length is not None and (not length.isdigit() or int(length) > most):
            await refused(Refusal(ProblemCode.BODY_TOO_LARGE, f"send at most {most} bytes"))(scope, receive, send)
            return
        if length is not None and scope.get(WHOLE_BODY):  # nothing to wait for, and nothing beyond the length
            await self._app(scope, receive, send)
            return
        read, waited, whole = 0, 0.0, False
        clock = asyncio.get_running_loop().time

        async def bounded() -> Message:
            nonlocal read, waited, whole
            if whole:
                return await receive()  # waits for the client to go away, as long polls do
            began = clock()
            try:
                async with asyncio.timeout(max(0.0, BODY_SECONDS - waited)):
                    message = await receive()
            except TimeoutError:
                raise Refusal(ProblemCode.BODY_TOO_SLOW, f"send it within {BODY_SECONDS:.0f} s") from None
            waited += clock() - began
            whole = not message.get("more_body", False)
            read += len(message.get("body", b""))
            if read > most:
                raise Refusal(ProblemCode.BODY_TOO_LARGE, f"send at most {most} bytes")
            return message

        await self._app(scope, bounded, send)


def serve(app: FastAPI, port: int, *, grace_seconds: int = 10) -> None:
    """Run the application on `SHOAL_BIND`:`port` until SIGTERM; open requests get `grace_seconds` to end."""
    allow_connections()
    uvicorn.run(
        app,
        http=PatientProtocol,
        ws="none",
        host=bind_address(),
        port=port,
        log_config=None,  # its lines go where all of this process go
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=grace_seconds,
        timeout_keep_alive=30,
        server_header=False,
        proxy_headers=False,
    )
