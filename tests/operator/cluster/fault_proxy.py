"""A proxy in front of the API server that misbehaves on demand: answers 429 or 500, or cuts watches. The operator under test talks through it.

It ends TLS with a certificate of the control plane's CA and passes every header on, so that a service account's token works as ever.
A `fault` looks at each request and gives the status to answer with, or None to pass it on.
"""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import uvicorn
from control_plane import ControlPlane
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from servers import Loopback, wait_until

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
REASONS = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}
"""Headers of one hop; each side makes its own."""


@dataclass(frozen=True)
class Asked:
    """What a fault decides by."""

    method: str
    path: str
    query: str


Fault = Callable[[Asked], int | None]


class FaultProxy:
    """`start`, set `fault` and `refuse` as the story goes, `stop`. `answered` counts requests by the status that a fault gave them.

    `gone` counts what the API server itself said of watches from too long ago (410).
    """

    def __init__(self, plane: ControlPlane, loopback: Loopback) -> None:
        self.address = loopback.address()
        self.port = 6443
        self.url = f"https://{self.address}:{self.port}"
        self.fault: Fault | None = None
        self.answered: dict[int, int] = {}
        self.gone = 0
        self._plane = plane
        self._cuts: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        certificate, key = plane.authority.server(f"proxy-{self.address}", [self.address], [])
        app = Starlette(routes=[Route("/{path:path}", self._serve, methods=METHODS)])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                host=self.address,
                port=self.port,
                ssl_certfile=str(certificate),
                ssl_keyfile=str(key),
                log_level="critical",
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        wait_until("the fault proxy to listen", lambda: self._server.started)

    def stop(self) -> None:
        """Cut everything and listen no more."""
        self.cut()
        self._server.should_exit = True
        self._thread.join(10.0)

    def cut(self) -> None:
        """End every answer that is being streamed (watches) where it is."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: [event.set() for event in self._cuts])

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        context = ssl.create_default_context(cafile=str(self._plane.authority.certificate))
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(
            base_url=self._plane.url, verify=context, trust_env=False, timeout=None, limits=limits
        ) as self._upstream:
            await self._server.serve()

    async def _serve(self, request: Request) -> Response:
        asked = Asked(request.method, request.url.path, request.url.query)
        status = self.fault(asked) if self.fault else None
        if status is not None:
            self.answered[status] = self.answered.get(status, 0) + 1
            body = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": REASONS.get(status, ""),
                "message": "the fault proxy says so",
                "code": status,
            }
            return JSONResponse(body, status, {"Retry-After": "1"} if status == 429 else None)
        headers = {key: value for key, value in request.headers.items() if key not in _HOP}
        forwarded = self._upstream.build_request(
            request.method,
            request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            headers=headers,
            content=await request.body(),
        )
        try:
            answer = await self._upstream.send(forwarded, stream=True)
        except httpx.TransportError as error:
            return JSONResponse({"kind": "Status", "message": str(error), "code": 503}, 503)
        kept = {key: value for key, value in answer.headers.items() if key not in _HOP}
        return StreamingResponse(self._stream(answer), answer.status_code, kept)

    async def _stream(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        cut = asyncio.Event()
        self._cuts.add(cut)
        pieces = answer.aiter_raw().__aiter__()
        ended = asyncio.ensure_future(cut.wait())
        try:
            while True:
                piece = asyncio.ensure_future(anext(pieces, None))
                await asyncio.wait({piece, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not piece.done():
                    piece.cancel()
                    return
                try:
                    data = piece.result()
                except httpx.TransportError:
                    return
                if data is None:
                    return
                self.gone += data.count(b'"code":410')
                yield data
        finally:
            ended.cancel()
            self._cuts.discard(cut)
            await answer.aclose()
